"""What needs no computing is answered without the libraries that take long to import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clocs.models.describe import COUNTS, describe
from clocs.store.store import Store
from command_line import clocs

HEAVY = ("torch", "polars", "matplotlib", "scipy", "fastapi", "httpx", "anyio", "fsspec")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--help",), 0),
        (("pretrain", "--help-all"), 0),
        (("info",), 0),
        (("info", "cmsc-chapman"), 0),
        (("info", "rhythm-chapman", "--json"), 0),
        (("info", "STORE"), 0),
        (("pretrain", "x", "--epoch", "3"), 2),
        (("pretran",), 2),
    ],
    ids=str,
)
def test_an_answer_at_once_imports_nothing_heavy(
    words: tuple[str, ...], code: int, small_store: Store
) -> None:
    describe(small_store.path)  # counts it, once
    given = [str(small_store.path) if word == "STORE" else word for word in words]
    script = (
        "import sys\n"
        "from clocs.cli.main import run\n"
        f"sys.argv = ['clocs', *{given!r}]\n"
        f"assert run() == {code}\n"
        f"assert not set({HEAVY!r}) & sys.modules.keys(), set({HEAVY!r}) & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_mistyped_word_gets_one_sentence_with_what_was_meant() -> None:
    for words, said in {
        ("pretrain", "x", "--epoch", 3): "pretrain has no option --epoch; did you mean --epochs?",
        ("pretrain", "x", "--keep", "bets"): "--keep is 'bets'; did you mean best?",
        ("pretrain", "x"): "--out is missing: clocs pretrain STORE... --out PATH",
        ("pretran", "x"): "there is no command 'pretran'; did you mean pretrain?",
        ("retrieval", "x"): "there is no command retrieval any more; use `clocs evaluate "
        "CHECKPOINT... STORE --protocol retrieval`",
        ("explore", "--store", "x"): "explore has no --store any more; give the stores "
        "without it: `clocs explore STORE`",
        ("pretrain", "x", "--out", "y", "--seeds", "many"): "'many' is not a valid integer",
        ("pretrain", "x", "--out", "y", "--lr", -1): "-1.0 is not in the range",
    }.items():
        done = clocs(*words, code=2)
        assert said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stdout == ""


def test_counts_of_a_store_are_kept_and_belong_to_its_content(
    small_store: Store, tmp_path: Path
) -> None:
    kind, facts = describe(small_store.path)
    assert kind == "store" and (small_store.path / COUNTS).is_file()
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in small_store.path.iterdir():
        if file.is_file():
            (copy / file.name).symlink_to(file)
    (copy / COUNTS).unlink()
    (copy / COUNTS).write_text("{}")
    for folder in small_store.path.iterdir():
        if folder.is_dir():
            (copy / folder.name).symlink_to(folder)
    _, again = describe(copy)
    assert {**again, "vectors": None} == {**facts, "vectors": None}


def test_the_shell_completes_commands_options_and_words() -> None:
    def completed(typed: str) -> str:
        given = {"_CLOCS_COMPLETE": "bash_complete", "COMP_WORDS": f"clocs {typed}"}
        given["COMP_CWORD"] = str(len(typed.split()) + typed.endswith(" "))
        done = subprocess.run(
            [sys.executable, "-m", "clocs"],
            env=os.environ | given, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    assert "plain,pretrain" in completed("pre")
    assert "plain,--epochs" in completed("pretrain x --ep")
    assert "plain,patient" in completed("embed x y --level pa")
    assert "plain,rhythm-chapman" in completed("predict rh")
    assert "plain,cmsc\n" in completed("pretrain x --method cm")
    assert "plain,ptbxl" in completed("prepare pt")
    assert "plain,AFIB" in completed("predict rhythm-chapman x --label A")
    assert "file,records" in completed("info records")

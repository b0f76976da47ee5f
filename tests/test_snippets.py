"""What the first pages of the documentation show runs, on small stand-ins."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import Done
from snippets import (
    ROOT,
    Snippet,
    commands,
    one_process,
    python_page,
    run_command,
    snippets,
    wide_tables,
)
from stand_ins import write_stand_ins

# The pages that a newcomer follows run; the commands and the Python of all others are parsed, with
# their options and parameters, by test_docs.py.
RUN = (
    "README.md", "docs/first-steps.md", "docs/own-ecgs.md", "docs/prediction.md",
    "docs/python.md",
)  # fmt: skip
PAGES = {page: ROOT / page for page in RUN}
# What no test here can have, by the beginning of a line, and why; and where it is tested instead.
NOT_RUN = {
    "source .venv/bin/activate": "only the shell that a person types in",
    "script/": "sets up .venv first (test_demo.py, test_fuzz.py)",
    "python -m benchmarks.": "needs published recordings (tests/measurements)",
    "python benchmarks/": "needs published recordings, and takes minutes",
    "clocs finetune cmsc-chapman": "takes minutes (test_finetune.py)",
    "clocs predict rhythm-chapman my.edf": "explains once more (test_explain.py)",
    "clocs predict rhythm-chapman stores/chapman": "of a published recording (test_explain.py)",
    "pip install": "needs a network (test_wheel.py)",
}
# Words that are added to a command, by its beginning, the longest that fits: less of the same.
SHORTER = {
    "clocs pretrain": "--epochs 1 --seeds 1",
    "clocs prepare synthetic": "--patients 8",
}
# What is replaced in a page before it runs.
REPLACED = {
    "README.md": {
        "seeds=5": "epochs=1",
    },
    "docs/first-steps.md": {" --explain why.png": ""},  # README.md has the same
    "docs/prediction.md": {"sample --explain explanation.png": "sample"},  # and this, too
    "docs/python.md": {"epochs=20": "epochs=1", "n_trials=12": "n_trials=2"},
}
MADE = re.compile(r"""(?:--out |\bout=)["']?([\w./-]+)""")  # what a snippet writes
AGAIN = re.compile(r"(?:runs|stores)/[^/]+|store")  # what a later block of a page makes once more
GROUPS = ("runs", "stores")  # folders whose contents a page finds one by one
TOKEN = "more-than-sixteen-characters"


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder whose contents every page finds in its own."""
    folder = tmp_path_factory.mktemp("stand-ins")
    with one_process():
        write_stand_ins(folder)
        yield folder


@pytest.mark.parametrize("page", PAGES)
def test_everything_on_the_page_runs(
    page: str, stand_in: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks one after the other, in one folder; tables fit into 80 columns."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache))
    monkeypatch.setenv("HF_HOME", str(own_cache))
    monkeypatch.setenv("CLOCS_TOKEN", TOKEN)
    parts = [to_run(page, part) for part in snippets(PAGES[page])]
    folder = tmp_path / "page"
    lay_out(stand_in, folder, "\n".join(part.text for part in parts))
    with python_page("page") as execute:
        for part in parts:
            for name in MADE.findall(part.text):
                if AGAIN.fullmatch(name):
                    shutil.rmtree(folder / name, ignore_errors=True)
            if part.language == "python":
                execute(part.text, folder)
                continue
            for words in commands(part.text, folder, CLOCS_TOKEN=TOKEN):
                done = run(words, folder)
                assert not wide_tables(done.stdout + done.stderr), words


def to_run(page: str, part: Snippet) -> Snippet:
    """A snippet with replaced settings, without what cannot run."""
    text = part.text
    for old, new in REPLACED.get(page, {}).items():
        text = text.replace(old, new)
    if part.language == "sh":
        lines = text.splitlines(keepends=True)
        text = "".join(line for line in lines if not bare(line).startswith(tuple(NOT_RUN)))
    return Snippet(part.language, text)


def bare(line: str) -> str:
    """A command without what may stand before it."""
    return re.sub(r"^\s*(time |[A-Z_]+=\S+ )*", "", line)


def lay_out(stand_in: Path, folder: Path, text: str) -> None:
    """Link what there is, but for what the page makes itself."""
    made = set(MADE.findall(text))
    for one in stand_in.iterdir():
        for leaf in one.iterdir() if one.name in GROUPS else [one]:
            name = leaf.relative_to(stand_in)
            if name.as_posix() not in made:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).symlink_to(leaf)
    if "docs/" in text:  # results that are filled into pages
        leave = shutil.ignore_patterns("_site", "images")
        shutil.copytree(ROOT / "docs", folder / "docs", ignore=leave)


def run(words: list[str], folder: Path) -> Done:
    """A command, made shorter."""
    line = " ".join(words)
    fitting = [start for start in SHORTER if line.startswith(start)]
    more = SHORTER[max(fitting, key=len)].split() if fitting else []
    return run_command([*words, *more], folder)


def test_what_is_not_run_or_replaced_or_shortened_is_still_in_the_docs() -> None:
    parts = {page: snippets(path) for page, path in PAGES.items()}
    texts = [one.text for found in parts.values() for one in found]
    lines = [bare(line) for text in texts for line in text.splitlines()]
    for start in (*NOT_RUN, *SHORTER):
        assert any(line.startswith(start) for line in lines), start
    for page, pairs in REPLACED.items():
        for old in pairs:
            assert any(old in one.text for one in parts[page]), (page, old)

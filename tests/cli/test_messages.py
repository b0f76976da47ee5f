from __future__ import annotations

import ast
import errno
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import clocs
import warm
from clocs.cli.main import root_command, running_command
from clocs.cli.messages import in_one_sentence, in_options
from clocs.store.store import Store
from command_line import as_json
from command_line import clocs as run

ROOT = root_command()


def words(message: str, *arguments: str) -> str:
    return in_options(message, running_command(ROOT, list(arguments)))


def test_the_command_is_the_first_word() -> None:
    assert running_command(ROOT, ["evaluate", "info"]).name == "evaluate"
    assert running_command(ROOT, []) is ROOT


@pytest.mark.parametrize(
    ("library", "printed"),
    [
        ("give another folder as `out`", "give another folder as --out"),
        ("`leads` are II, `batch_size` is 1", "--leads are II, --batch-size is 1"),
        ("continue with `resume=True`", "continue with --resume"),
        ("raise `patience=15`", "raise --patience 15"),
        ("`store` has no lead", "STORE has no lead"),
        ("`fraction` is for another command", "`fraction` is for another command"),
        ("made by `clocs pretrain`", "made by `clocs pretrain`"),
    ],
)
def test_parameters_in_backticks_become_options_of_the_command(library: str, printed: str) -> None:
    assert words(library, "pretrain", "store") == printed


def test_problems_that_are_not_printed_are_where_it_says(tmp_path: Path) -> None:
    """A table of vectors has no row for a file that cannot be read."""
    for number in range(43):
        (tmp_path / f"{number}.csv").touch()
    command = ("embed", "cmsc-chapman", tmp_path, "--out", tmp_path / "vectors.parquet")
    *shown, last = run(*command, code=1).stderr.splitlines()
    assert len([line for line in shown if "is empty" in line]) == 40
    assert last.endswith("not shown: 3 more with a problem; --json lists all of them")
    assert len(as_json(*command, code=1)["problems"]) == 43


def test_no_message_of_the_library_names_an_option() -> None:
    flag = re.compile(r"(^| )--[a-z]")
    command = re.compile(r"(`|^ *|Next: )(clocs|ray) [^`]*")  # to be typed as it is
    found = []
    for path in Path(clocs.__file__).parent.rglob("*.py"):
        if "cli" in path.parts or path.name == "__main__.py":
            continue
        found += [
            f"{path.name}: {text}"
            for text in texts(ast.parse(path.read_text("utf-8")))
            if flag.search(command.sub("", text))
        ]
    assert not found


def texts(node: ast.AST) -> Iterator[str]:
    """All strings in it; those with values in them as a whole."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(getattr(part, "value", "")) for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for part in ast.iter_child_nodes(node):
            yield from texts(part)


def test_an_error_of_the_library_names_the_option(small_store: Store, tmp_path: Path) -> None:
    few = ("--epochs", 1, "--embedding-dim", 8)
    same = ("pretrain", small_store.path, "--out", tmp_path / "run", *few)
    run(*same)
    said = run(*same, "--seeds", 2, code=1).stderr
    assert "--out" in said
    assert "`out`" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_sentence(small_store: Store) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "clocs", "info", str(small_store.path)],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("clocs: the output cannot be written: the disk is full;")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EACCES, "Permission denied", "out/x"), "cannot be written: permission is"),
        (OSError(errno.ENOSPC, "No space left", "out/x"), "cannot be written: the disk is full"),
        (OSError(errno.ENOENT, "No such file", "out/x"), "cannot be read: it does not exist"),
    ],
)
def test_errors_of_the_system_have_different_sentences(
    error: OSError, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit), in_one_sentence(ROOT):
        raise error
    assert f"out/x {words}" in capsys.readouterr().err


def test_a_closed_pipe_ends_a_command_silently(small_store: Store) -> None:
    command = [sys.executable, "-m", "clocs", "info", str(small_store.path), "--json"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    running.stdout.close()
    assert running.communicate()[1] == ""


def interrupted(
    arguments: list[str], ready: Callable[[], bool], cwd: Path
) -> subprocess.CompletedProcess[str]:
    """The command after a Ctrl-C, which reaches all its processes, as from a terminal."""
    running = warm.Process(
        *("-m", "clocs", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        start_new_session=True,
    )
    deadline = time.monotonic() + 600
    while not ready() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running.poll() is None, running.communicate()[1]
    os.killpg(running.pid, signal.SIGINT)
    printed, said = running.communicate(timeout=600)
    return subprocess.CompletedProcess(arguments, running.wait(), printed, said)


def test_an_interrupted_evaluation_may_have_saved_some_files(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = running_command(ROOT, ["evaluate"])
    with pytest.raises(SystemExit), in_one_sentence(command):
        raise KeyboardInterrupt
    said = "the output may be incomplete; run the same command again for all of it"
    assert capsys.readouterr().err == f"clocs: interrupted; {said}\n"


@pytest.mark.skipif(os.name != "posix", reason="process groups are a matter of POSIX")
class TestCtrlC:
    def test_prepare_says_that_the_same_command_continues(self, tmp_path: Path) -> None:
        arguments = ["prepare", "synthetic", "--patients", "4000", "--out", "store"]
        done = interrupted(arguments, lambda: any((tmp_path / "store").rglob("*")), tmp_path)
        assert done.returncode == 130
        said = "what is done is kept; run the same command again to continue"
        assert done.stderr == f"clocs: interrupted; {said}\n"

    def test_pretrain_says_that_resume_continues(
        self, small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = tmp_path / "run" / "log.jsonl"
        arguments = ["pretrain", str(small_store.path), "--out", "run", "--epochs", "100000"]
        arguments += ["--embedding-dim", "8", "--patience", "100000", "--save-every", "0"]
        done = interrupted(arguments, lambda: log.is_file() and log.stat().st_size > 0, tmp_path)
        assert done.returncode == 130
        again = f"clocs {' '.join(arguments)} --resume"
        assert done.stderr == f"clocs: interrupted; to continue, run: {again}\n"
        # the printed command works, and says itself again, with one --resume

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("clocs.pretraining.pretrain._logged", stop)
        said = run(*shlex.split(again)[1:], code=130, cwd=tmp_path).stderr
        assert said == f"clocs: interrupted; to continue, run: {again}\n"

    def test_other_commands_say_that_nothing_was_written(
        self, small_store: Store, tmp_path: Path
    ) -> None:
        mark = tmp_path / "started"
        code = (
            "import pathlib, sys, time; from clocs.cli import commands, main; "
            f"act = lambda *a, **k: (pathlib.Path({str(mark)!r}).touch(), time.sleep(3600)); "
            "commands.info = act; "
            f"sys.argv = ['clocs', 'info', {str(small_store.path)!r}]; main.main()"
        )
        running = subprocess.Popen(
            [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        while not mark.exists() and running.poll() is None:
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        said = "nothing was written; run the same command again to start over"
        assert running.communicate(timeout=600)[1] == f"clocs: interrupted; {said}\n"
        assert running.returncode == 130


def test_a_folder_in_place_of_a_file_gets_a_sentence(small_store: Store, tmp_path: Path) -> None:
    said = run("predict", small_store.path, tmp_path, code=1).stderr
    assert "is a folder; give a classifier made by `clocs finetune`" in said
    dry = ("reproduce", "table-1", "--out", tmp_path / "runs", "--dry-run", "--stores")
    assert "holds neither stores" in run(*dry, tmp_path, code=1).stderr
    assert "is not a folder" in run(*dry, tmp_path / "nowhere", code=1).stderr
    assert "cannot be read: File name too long" in run("info", "x" * 300, code=1).stderr

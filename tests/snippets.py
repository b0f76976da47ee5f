"""The snippets of the documentation, run in this process: starting one for each takes seconds."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sklearn

from clocs.cli import console
from clocs.explorer.session import Session
from clocs.service.server import Server
from clocs.web.server import Listening
from clocs.workers import UnsendableError
from command_line import Done, clocs

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(sh|bash|console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COLUMNS = 80
# No program is found: each is written down, with its words, after loops, variables and patterns.
EXPAND = """
command_not_found_handle() { printf '%s\\0' $# "$@"; }
PATH=/nonexistent
set -eu
"""


@dataclass(frozen=True)
class Snippet:
    """A block of a page: commands, one per line, without what they print; or Python."""

    language: str  # sh or python
    text: str


def snippets(page: Path) -> list[Snippet]:
    """The blocks of a page that can be run, in order."""
    return list(map(_snippet, BLOCK.findall(page.read_text(encoding="utf-8"))))


def _snippet(found: tuple[str, str]) -> Snippet:
    language, text = found
    if language == "python":
        return Snippet(language, text)
    text = text.replace("\\\n", " ")
    if language == "console":
        typed = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        text = "".join(f"{line}\n" for line in typed)
    return Snippet("sh", text)


def commands(text: str, folder: Path, **variables: str) -> Iterator[list[str]]:
    """The words of every command that a shell would start for this text, in this folder."""
    done = subprocess.run(
        ["bash", "-c", EXPAND + text],
        cwd=folder,
        env={"LC_ALL": "C.UTF-8", **variables},
        capture_output=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, (text, done.stderr)
    words = iter(os.fsdecode(done.stdout).split("\0")[:-1])
    for count in words:
        yield [next(words) for _ in range(int(count))]


def run_command(words: Sequence[str], folder: Path, *, code: int = 0) -> Done:
    """Run `clocs …` or `python -m MODULE …`; anything else is refused."""
    if words[0] == "clocs":
        return clocs(*words[1:], cwd=folder, code=code)
    assert words[:2] == ["python", "-m"], words
    printed = io.StringIO()
    with chdir(folder), redirect_stdout(printed):
        found = import_module(f"{words[2]}.__main__").main(list(words[3:]))
    assert found == code, printed.getvalue()
    return Done(printed.getvalue(), "")


@contextmanager
def python_page(name: str) -> Iterator[Callable[[str, Path], None]]:
    """Runs blocks of Python one after the other, in one module of their own.

    What they change in scikit-learn's settings is forgotten afterwards.
    """
    module = types.ModuleType(name)

    def execute(text: str, folder: Path) -> None:
        with chdir(folder), redirect_stdout(io.StringIO()):
            exec(compile(text, name, "exec"), vars(module))

    sys.modules[name] = module  # where dataclasses look for it
    try:
        with sklearn.config_context():
            yield execute
    finally:
        del sys.modules[name]


def wide_tables(text: str) -> list[str]:
    """Lines of tables that do not fit into the terminal."""
    return [
        line for line in text.splitlines() if re.match("[│┃┌└├┏┡]", line) and len(line) > COLUMNS
    ]


@contextmanager
def one_process() -> Iterator[None]:
    """A terminal of 80 columns, in which files are read without starting processes for them."""

    def unsendable(*given: Any, **options: Any) -> None:
        raise UnsendableError("read here")

    def stopped(session: Session, port: Listening) -> None:
        """A server that is stopped before anybody has asked."""
        port.socket.close()

    def loaded(server: Server, listening: socket.socket, load: Callable[[], None]) -> None:
        """A service that is stopped when its models are loaded."""
        listening.close()
        try:
            load()
        finally:
            server._service.batcher.close()

    with ExitStack() as stack:
        stack.enter_context(patch("clocs.explorer.run._serve", stopped))
        stack.enter_context(patch("clocs.service.server.Server.answer", loaded))
        stack.enter_context(patch("webbrowser.open"))
        for place in ("clocs.store.readers", "clocs.formats.read"):
            stack.enter_context(patch(f"{place}.LimitedWorkers", unsendable))
        for stream in (console.out, console.err):
            stack.enter_context(patch.object(stream, "_width", COLUMNS))
        yield

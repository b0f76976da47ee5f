"""New Python processes that need not import torch: forks of one that has imported everything.

What a process does on import is done already, in the environment of the tests: where that is the
claim, a test starts a process with `subprocess`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

IMPORTED = (
    "torch", "sympy", "polars", "scipy.signal", "rich.console", "rich.live", "fastapi", "uvicorn",
    "clocs.cli.main", "clocs.models.finetune", "clocs.models.predict",
    "clocs.pretraining.pretrain", "clocs.experiments.reproduce", "clocs.explorer.run",
    "clocs.service.server",
)  # fmt: skip
REQUEST = 1 << 16  # bytes at a time
STATUS = 4  # bytes


class Process:
    """A new process with what `subprocess.Popen` has; its output is text.

    Attributes:
        pid: Its number.
        stdout: What it prints, where that is a pipe; so `stderr`.
        returncode: None until it is known to have ended.
    """

    def __init__(
        self,
        *words: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        start_new_session: bool = False,
    ) -> None:
        """Start `python WORDS`: `-c CODE …`, `-m MODULE …` or `SCRIPT …`."""
        self.returncode: int | None = None
        self._ended, ending = socket.socketpair()
        theirs: list[int] = []
        self.stdout, self.stderr = (
            self._stream(*given, theirs) for given in ((1, stdout), (2, stderr))
        )
        request = {
            "words": list(map(str, words)),
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "session": start_new_session,
        }
        socket.send_fds(
            _server(), [json.dumps(request).encode() + b"\n"], [*theirs, ending.fileno()]
        )
        ending.close()
        for number in theirs:
            os.close(number)
        self.pid = int.from_bytes(self._ended.recv(STATUS), "little")

    @staticmethod
    def _stream(own: int, wanted: int | None, theirs: list[int]) -> IO[str] | None:
        if wanted != subprocess.PIPE:
            theirs.append(os.dup(own))
            return None
        reading, writing = os.pipe()
        theirs.append(writing)
        return os.fdopen(reading, encoding="utf-8")

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative where a signal ended it."""
        if self.returncode is None:
            self._ended.settimeout(timeout)
            status = self._ended.recv(STATUS)
            assert status, "the process that forks has ended"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, "little"))
            self._ended.close()
        return self.returncode

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        try:
            return self.wait(0)
        except BlockingIOError:
            return None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it still prints until it ends."""
        with ThreadPoolExecutor(2) as readers:
            both = readers.map(lambda stream: stream.read() if stream else "", self._streams())
            printed, said = both
        self.wait(timeout)
        return printed, said

    def _streams(self) -> tuple[IO[str] | None, IO[str] | None]:
        return self.stdout, self.stderr

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams():
            if stream:
                stream.close()
        self.wait()


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """What a process has printed when it has ended."""
    process = Process(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    with process:
        printed, said = process.communicate()
    return subprocess.CompletedProcess(list(map(str, words)), process.wait(), printed, said)


@cache
def _server() -> socket.socket:
    """A connection to the process that forks, which ends with this one."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        made = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def end() -> None:
        ours.close()
        made.wait()

    atexit.register(end)
    return ours


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for every request; returns in the new process alone, with what is asked of it."""
    while True:
        message, files, _, _ = socket.recv_fds(connection, REQUEST, 3)
        while message and not message.endswith(b"\n"):
            message += connection.recv(REQUEST)
        with suppress(ChildProcessError):  # until there is none
            while os.waitpid(-1, os.WNOHANG if message else 0)[0]:
                pass
        if not message:
            os._exit(0)
        if not os.fork():
            break
        for number in files:
            os.close(number)
    connection.close()
    child = os.fork()
    if child:  # this process waits for it, and tells
        os.write(files[2], child.to_bytes(STATUS, "little"))
        os.write(files[2], os.waitpid(child, 0)[1].to_bytes(STATUS, "little"))
        os._exit(0)
    for own, given in ((1, files[0]), (2, files[1])):
        os.dup2(given, own)
    for number in files:
        os.close(number)
    request: dict[str, Any] = json.loads(message)
    return request


def _become(request: dict[str, Any]) -> None:
    """Do what `python WORDS` does."""
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    # What is known of the former streams, such as whether they can be sought, is not so of these.
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    tempfile.tempdir = None  # which was found in the former environment
    how, *rest = request["words"]
    if how == "-c":
        code, *rest = rest
        sys.path[0], sys.argv = "", ["-c", *rest]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(main))
    elif how == "-m":
        name, *rest = rest
        sys.path[0], sys.argv = request["cwd"], [name, *rest]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = str(Path(how).parent), [how, *rest]
        runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent)
    for each in IMPORTED:
        import_module(each)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as given:
        wanted = _serve(given)
    _become(wanted)

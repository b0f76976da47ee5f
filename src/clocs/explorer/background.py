"""Work in the background: a process, and a thread that reads what the process reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from clocs.workers import start_python


class BackgroundWork:
    """What a module does in a process, `python -m MODULE …`, which prints a line of JSON per step.

    Every failure must end in a state that the page shows, so that it never waits in vain.
    """

    _process: subprocess.Popen[bytes] | None = None
    _thread: threading.Thread | None = None
    _stopped = False

    def start(self) -> None:
        """Begin, unless it is done."""
        if self._thread is None and self._is_left():
            self._thread = threading.Thread(target=self._compute, daemon=True)
            self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Until it has ended."""
        if self._thread is not None:
            self._thread.join(seconds)

    def stop(self) -> None:
        """End it if it is running or about to start, and let it clean up."""
        self._stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
        self.wait(5)

    def _is_left(self) -> bool:
        raise NotImplementedError

    def _compute(self) -> None:
        raise NotImplementedError

    def _messages(self, *arguments: str) -> Iterator[dict[str, Any]]:
        """What the process reports until it ends; what its libraries print is left out."""
        module = type(self).__module__
        self._process = start_python(module, *arguments, stdin=subprocess.DEVNULL)
        if self._stopped:
            self._process.terminate()
        for line in self._process.stdout or ():
            with suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message
        self._process.wait()


def report(**message: Any) -> None:
    """Tell the thread of the server that follows this process."""
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the server has ended: nobody waits
        os._exit(1)

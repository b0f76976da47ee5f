"""Reading bodies of requests: in few processes that stay, each with limits on memory and time.

The event loop only moves bytes: parsing of any kind, of JSON too, would keep it from answering
others.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException

from clocs.errors import SourceError
from clocs.limits import default_processes
from clocs.recording import Recording
from clocs.web.shield import TooMuchError
from clocs.web.upload_worker import ANSWER, REQUEST, Posted, read_one, unpack_posted

if TYPE_CHECKING:
    from starlette.requests import Request

SECONDS = 20.0
AT_ONCE = 8  # uploads being received, waiting or being read; more are told to come back
LARGE = 4 << 20  # bytes of a body; such bodies are read one at a time, and others meanwhile
_PIPE_BYTES = 1 << 20
_MAX_ANSWER = 1 << 30  # bytes

T = TypeVar("T")
Read = Callable[[dict[str, Any], bytes], Posted]


class BodyReader:
    """Processes that read bodies; each is started when it is first needed, and stays.

    Args:
        read: What they do: facts and a body -> recordings. They import it by its name.
        at_once: Bodies being received, waiting or being read; more are refused.
        seconds: That reading a body may take, and that it may wait to be read.
    """

    def __init__(self, read: Read, *, at_once: int, seconds: float = SECONDS) -> None:
        self._command = f"{read.__module__}:{read.__qualname__}"
        self._at_once, self._seconds = at_once, seconds
        self._admitted = 0  # only the event loop's thread changes it
        # A process ends with the thread that started it, so these threads are their own.
        self._count = max(2, default_processes())
        self._threads = ThreadPoolExecutor(self._count, "clocs-bodies")
        self._own = threading.local()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self.close = weakref.finalize(self, _end, self._threads, self._processes)

    @cached_property
    def _large(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(1)

    def start(self) -> None:
        """Start the processes now, so that the first body is read as fast as the others."""
        for _ in range(self._count):
            self._threads.submit(self._process)

    async def receive(self, request: Request, facts: Mapping[str, Any]) -> Posted:
        """Receive the body of a request and read it."""
        with self._place():
            body = [chunk async for chunk in request.stream()]
            try:
                async with asyncio.timeout(2 * self._seconds), AsyncExitStack() as stack:
                    if sum(map(len, body)) > LARGE:
                        await stack.enter_async_context(self._large)
                    loop = asyncio.get_running_loop()
                    return await loop.run_in_executor(self._threads, self.read, facts, body)
            except TimeoutError:
                raise TooMuchError(
                    503, "too many bodies wait to be read; try again in a moment", _LATER
                ) from None

    @contextmanager
    def _place(self) -> Iterator[None]:
        """A place for one body, from before it is received until it has been read."""
        if self._admitted >= self._at_once:
            raise TooMuchError(503, "too many files are being read; try again in a moment", _LATER)
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    def read(self, facts: Mapping[str, Any], body: Sequence[bytes]) -> Posted:
        """Have the process of this thread read a body, which is in parts.

        Raises:
            ClocsError: It cannot be read.
        """
        process = self._process()
        timer = threading.Timer(self._seconds, process.kill)
        began = time.monotonic()
        timer.start()
        goes_on = False
        try:
            goes_on, answer = _ask(process, facts, body)
            return unpack_posted(answer)
        except (OSError, ValueError, KeyError, TypeError):
            goes_on = False
            if time.monotonic() - began >= self._seconds:
                raise SourceError(
                    f"reading the files took more than {self._seconds:g} s; upload a shorter "
                    "recording"
                ) from None
            raise SourceError(
                "the files could not be read within the memory and time limits; "
                "upload a shorter recording"
            ) from None
        finally:
            timer.cancel()
            if not goes_on:
                process.kill()
                process.wait()

    def _process(self) -> subprocess.Popen[bytes]:
        """That of this thread; another one where it has ended."""
        found: subprocess.Popen[bytes] | None = getattr(self._own, "process", None)
        if found is not None and found.poll() is None:
            return found
        self._own.process = process = subprocess.Popen(
            # -P: import nothing from the current folder
            [sys.executable, "-P", "-m", "clocs.web.upload_worker", self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pipesize=_PIPE_BYTES,
            env={
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **{k: os.environ[k] for k in ("PATH", "SYSTEMROOT", "TMPDIR") if k in os.environ},
            },
        )
        for ended in [one for one in self._processes if one.poll() is not None]:
            _close(ended)
            self._processes.discard(ended)
        self._processes.add(process)
        return process


_LATER = {"retry-after": "5"}


def _ask(
    process: subprocess.Popen[bytes], facts: Mapping[str, Any], body: Sequence[bytes]
) -> tuple[bool, bytes]:
    """Whether the process goes on, and its answer."""
    assert process.stdin and process.stdout
    text = json.dumps(facts).encode()
    process.stdin.write(REQUEST.pack(len(text), sum(map(len, body))) + text)
    for part in body:  # written apart: joining them would hold up other threads
        process.stdin.write(part)
    process.stdin.flush()
    head = process.stdout.read(ANSWER.size)
    size, goes_on = ANSWER.unpack(head) if len(head) == ANSWER.size else (0, False)
    answer = process.stdout.read(size) if size <= _MAX_ANSWER else b""
    if not size or len(answer) < size:
        raise ValueError("the process ended")
    return goes_on, answer


def _end(threads: ThreadPoolExecutor, processes: set[subprocess.Popen[bytes]]) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()
        process.wait()
        _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()


class UploadReader:
    """Reads the uploads of a server, one recording each."""

    def __init__(self) -> None:
        self._bodies = BodyReader(read_one, at_once=AT_ONCE)

    @cached_property
    def _users(self) -> CapacityLimiter:
        return CapacityLimiter(2)  # so that uploads do not keep other requests waiting

    async def read(self, request: Request, use: Callable[[Recording], T]) -> T:
        """Receive the files of one recording, read it, and return what `use` makes of it."""
        kind = request.headers.get("content-type", "")
        if not kind.lower().startswith("multipart/form-data"):
            raise HTTPException(422, "send the files as multipart/form-data, each as `files`")
        posted = await self._bodies.receive(request, {"type": kind})
        (recording,) = posted.recordings
        assert isinstance(recording, Recording)  # a single one is read or refused
        return await to_thread.run_sync(use, recording, limiter=self._users)

"""Reading bodies of requests: in few processes that stay, each with limits on memory and time.

The event loop only moves bytes: parsing of any kind, of JSON too, would keep it from answering
others.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from clocs.errors import ClocsError, SourceError
from clocs.files import ReadingLimits, default_processes
from clocs.web.shield import RefusedError
from clocs.web.uploads import Posted
from clocs.workers import EndedError, LimitedWorkers, UnsendableError

if TYPE_CHECKING:
    from starlette.requests import Request

SECONDS = 20.0  # of processor time, and that may pass, for one body
MAX_MEMORY = 2 << 30  # bytes
AT_ONCE = 8  # bodies being received, waiting or being read; more are told to come back
LARGE = 4 << 20  # bytes of a body; such bodies are read one at a time, and others meanwhile

_ANSWERS = ("clocs.errors", "clocs.recording", "clocs.web.uploads")  # define what a reader returns
_Item = tuple[Mapping[str, Any], Sequence[pickle.PickleBuffer]]
_Workers = LimitedWorkers[_Item, Posted | ClocsError]


class BodyReader:
    """Processes that read bodies; each is started when it is first needed, and stays.

    Args:
        read: What they do: facts and a body -> recordings.
        at_once: Bodies being received, waiting or being read; more are refused.
        seconds: That reading a body may take, and that it may wait to be read.
    """

    def __init__(
        self,
        read: Callable[[Mapping[str, Any], bytes], Posted],
        *,
        at_once: int = AT_ONCE,
        seconds: float = SECONDS,
    ) -> None:
        self._read, self._at_once, self._seconds = partial(_answer, read), at_once, seconds
        self._large = asyncio.Semaphore(1)
        self.admitted = 0  # only the event loop's thread changes it
        # A process ends with the thread that started it, so these threads are their own.
        self._count = max(2, default_processes())
        self._threads = ThreadPoolExecutor(self._count, "clocs-bodies")
        self._own = threading.local()
        self._started: list[_Workers] = []
        self.close = weakref.finalize(self, _end, self._threads, self._started)

    def start(self) -> None:
        """Start the processes now, so that the first body is read as fast as the others."""
        for _ in range(self._count):
            self._threads.submit(self._workers)

    async def receive(self, request: Request, facts: Mapping[str, Any]) -> Posted:
        """Receive the body of a request and read it."""
        if self.admitted >= self._at_once:
            raise _busy("too many files are being read")
        self.admitted += 1
        try:
            body = [chunk async for chunk in request.stream()]
            async with asyncio.timeout(2 * self._seconds), AsyncExitStack() as stack:
                if sum(map(len, body)) > LARGE:
                    await stack.enter_async_context(self._large)
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, self.read, facts, body)
        except TimeoutError:
            raise _busy("too many bodies wait to be read") from None
        finally:
            self.admitted -= 1

    def read(self, facts: Mapping[str, Any], body: Sequence[bytes]) -> Posted:
        """Have the process of this thread read a body, which is in parts.

        Raises:
            ClocsError: It cannot be read.
        """
        try:
            workers = self._workers()
            # sent apart: joining the parts would hold up other threads
            workers.submit([(facts, [pickle.PickleBuffer(part) for part in body])])
            (answer,) = workers.take()
        except (EndedError, UnsendableError):
            self._own.workers = None
            raise SourceError("the process that reads the files was ended; try again") from None
        if isinstance(answer, ClocsError):
            raise answer
        return answer

    def _workers(self) -> _Workers:
        """The process of this thread."""
        found: _Workers | None = getattr(self._own, "workers", None)
        if found is None:
            limits = ReadingLimits(MAX_MEMORY, SECONDS, wall_seconds=self._seconds)
            found = LimitedWorkers(self._read, _refused, 1, limits, strangers=_ANSWERS)
            self._own.workers = found
            self._started.append(found)
        return found


def _answer(read: Callable[[Mapping[str, Any], bytes], Posted], item: _Item) -> Posted | ClocsError:
    """What a process does with a body."""
    try:
        return read(item[0], b"".join(item[1]))
    except ClocsError as error:
        return error
    except MemoryError:
        raise
    except Exception as error:  # whatever a stranger's file causes is the file's fault
        return SourceError(f"the files cannot be read ({type(error).__name__})")


def _refused(_: _Item, why: str) -> ClocsError:
    return SourceError(f"the upload {why}; upload a shorter recording")


def _busy(why: str) -> RefusedError:
    return RefusedError(503, f"{why}; try again in a moment", {"retry-after": "5"})


def _end(threads: ThreadPoolExecutor, started: Sequence[_Workers]) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for workers in started:
        workers.close()

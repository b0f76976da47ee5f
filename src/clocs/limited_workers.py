"""Processes that work through batches of items in order, with limits on memory and time.

An item that exceeds a limit is refused with the reason. Its process is replaced, and whatever else
that process held is done again. Processes end with the one that started them.

Batches go round: number n to process n % processes. Arrays in results come through memory that a
process shares with this one; where there is none or it is full, through the pipe.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, BinaryIO, Generic, NoReturn, TypeVar

from clocs import worker_messages
from clocs.errors import ClocsError
from clocs.limits import ReadingLimits, end_after, keep_memory, limit_process
from clocs.worker_messages import SLOT_BYTES, SLOTS, UnsendableError, receive, send, shared_slots

T = TypeVar("T")
R = TypeVar("R")

_NO_MEMORY = 3  # exit status
# More threads would only take address space: each has its own pool of memory.
_ONE_THREAD = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CRASHES = {getattr(signal, name, 0) for name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL")}


class EndedError(Exception):
    """A process ended from outside, twice with the same item, or cannot be replaced."""


class LimitedWorkers(Generic[T, R]):
    """Processes that apply `act` to items.

    Attributes:
        most: Batches that may be submitted before one is taken.
    """

    def __init__(
        self,
        act: Callable[[T], R],
        refuse: Callable[[T, str], R],
        processes: int,
        limits: ReadingLimits,
        *,
        fork: bool = False,
    ) -> None:
        """Start the processes.

        Args:
            act: Applied to each item, in a process. Unless forked, it is pickled.
            refuse: The result of an item that exceeds a limit; gets it and the reason, such as
                'took more than 8 GiB of memory to read'.
            processes: How many.
            limits: Of each process.
            fork: Fork this process, which is faster and safe only where it has no threads.

        Raises:
            UnsendableError: Processes started afresh do not know `act`.
        """
        self.most = processes * SLOTS
        # They may be killed at any moment: this process removes their temporary files.
        self._scratch = tempfile.TemporaryDirectory(prefix="clocs-", ignore_cleanup_errors=True)
        limits = replace(limits, scratch=self._scratch.name)
        self._act, self._refuse, self._limits = act, refuse, limits
        self._submitted = self._taken = 0
        self._processes: list[_Process] = []
        self._flying: list[deque[_Batch]] = [deque() for _ in range(processes)]
        start = b"" if fork else self._pickled()
        if fork:
            keep_memory()
        for _ in range(processes):
            made = _Forked(act, limits, self._processes) if fork else _Spawned(start)
            self._processes.append(made)
        try:
            for process in self._processes:
                process.wait_until_ready()
        except UnsendableError:
            self.close()
            raise

    def submit(self, items: Sequence[T], seconds: float | None = None) -> None:
        """Have a batch done; each item within `seconds`, if given, instead of the usual limit."""
        turn, number = divmod(self._submitted, len(self._processes))
        batch = (turn % SLOTS, seconds or self._limits.seconds, items)
        self._flying[number].append(batch)
        self._processes[number].send(batch)
        self._submitted += 1

    def take(self) -> list[R]:
        """The results of the oldest batch; arrays from forked processes hold until `submit`.

        Raises:
            EndedError: A process was ended from outside.
        """
        number = self._taken % len(self._processes)
        answer: list[R] | BaseException
        try:
            answer = self._processes[number].receive(self._flying[number][0][0])
        except _PIPE_ERRORS:
            answer = self._again(number)
        self._flying[number].popleft()
        self._taken += 1
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.end(kill=True)
        self._processes.clear()
        self._scratch.cleanup()

    def _again(self, number: int) -> list[R] | BaseException:
        """Replace a process that ended; its oldest batch is done item by item, the others whole."""
        (_, seconds, items), *others = self._flying[number]
        why = self._replace(number, seconds)
        results: list[R] = []
        if why and len(items) == 1:
            results.append(self._refuse(items[0], why))
        else:
            for item in items:
                try:
                    self._processes[number].send((0, seconds, [item]))
                    answer = self._processes[number].receive(0)
                except _PIPE_ERRORS:
                    why = self._replace(number, seconds)
                    if not why:
                        raise EndedError from None
                    answer = [self._refuse(item, why)]
                if isinstance(answer, BaseException):
                    return answer
                results += answer
        for batch in others:
            self._processes[number].send(batch)
        return results

    def _replace(self, number: int, seconds: float) -> str:
        """Start another process; says why this one ended, '' where it was ended from outside."""
        status = self._processes[number].end(kill=False)
        try:
            self._processes[number] = _Spawned(self._pickled())
            self._processes[number].wait_until_ready()
        except UnsendableError:
            raise EndedError from None
        memory = f"{self._limits.memory / 2**30:.3g} GiB of memory"
        if status == _NO_MEMORY:
            return f"took more than {memory} to read"
        if status == -getattr(signal, "SIGPROF", 0):
            return f"took more than {seconds:g} s of processor time to read"
        if -status in _CRASHES:
            name = signal.Signals(-status).name
            return f"made its reader crash ({name}), perhaps for want of more than {memory}"
        return ""

    def _pickled(self) -> bytes:
        try:
            return pickle.dumps((self._act, self._limits), protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UnsendableError from error


_Batch = tuple[int, float, Sequence[Any]]  # slot, seconds for each item, items
_PIPE_ERRORS = (EOFError, OSError, pickle.UnpicklingError)


class _Process:
    """One process as seen from the one that started it."""

    requests: BinaryIO
    answers: BinaryIO
    slots: Sequence[memoryview] = ()

    def wait_until_ready(self) -> None:
        """Return once it knows what to do."""

    def send(self, batch: _Batch) -> None:
        with contextlib.suppress(OSError):  # if it ended, `receive` says so
            send(self.requests, batch, None)

    def receive(self, slot: int) -> Any:
        return receive(self.answers, self.slots[slot] if self.slots else None)

    def end(self, *, kill: bool) -> int:
        """Close the pipes and wait for the end, or bring it about; the status as of Popen."""
        with contextlib.suppress(OSError):
            self.requests.close()
        self.answers.close()
        return self._wait(kill)

    def _wait(self, kill: bool) -> int:
        raise NotImplementedError


class _Forked(_Process):
    def __init__(
        self, act: Callable[[Any], Any], limits: ReadingLimits, earlier: Sequence[_Process]
    ) -> None:
        self.slots = shared_slots(-1)
        (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            try:
                # A pipe ends once nobody holds its other end.
                for file in (f for one in earlier for f in (one.requests, one.answers)):
                    os.close(file.fileno())
                os.close(our_out)
                os.close(our_in)
                os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
                reading, writing = open(their_in, "rb"), open(their_out, "wb")  # noqa: PTH123, SIM115
                _work(act, limits, reading, writing, self.slots, parent)
            finally:
                os._exit(1)  # never return into the parent's code
        os.close(their_in)
        os.close(their_out)
        self.requests, self.answers = open(our_out, "wb"), open(our_in, "rb")  # noqa: PTH123, SIM115

    def _wait(self, kill: bool) -> int:
        if kill:
            os.kill(self._pid, signal.SIGKILL)  # it only reads: nothing is lost
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


class _Spawned(_Process):
    def __init__(self, start: bytes) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        shared: tuple[int, ...] = ()
        if sys.platform == "linux":
            shared = (os.memfd_create("clocs"),)
            os.ftruncate(shared[0], SLOTS * SLOT_BYTES)
            self.slots = shared_slots(shared[0])
        own = [str(number) for number in (os.getpid(), *shared)]
        self._child = subprocess.Popen(
            # -P: import nothing from the current folder
            [sys.executable, "-P", "-m", "clocs.limited_workers", *own],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": paths},
            pass_fds=shared,
        )
        for handle in shared:
            os.close(handle)
        assert self._child.stdin and self._child.stdout
        self.requests, self.answers = self._child.stdin, self._child.stdout  # type: ignore[assignment]
        with contextlib.suppress(OSError):
            self.requests.write(start)
            self.requests.flush()

    def wait_until_ready(self) -> None:
        try:
            receive(self.answers, None)
        except _PIPE_ERRORS:
            raise UnsendableError from None

    def receive(self, slot: int) -> Any:
        return receive(self.answers, self.slots[slot] if self.slots else None, keep=True)

    def _wait(self, kill: bool) -> int:
        if kill:
            self._child.kill()
        return self._child.wait()


def _work(
    act: Callable[[Any], Any],
    limits: ReadingLimits,
    requests: BinaryIO,
    answers: BinaryIO,
    slots: Sequence[memoryview],
    parent: int,
) -> NoReturn:
    """Do what is asked for until the parent or the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and ends this process
    limit_process(limits.memory, parent)
    tempfile.tempdir = limits.scratch
    waiting: SimpleQueue[_Batch] = SimpleQueue()

    def listen() -> None:
        """Take requests even while an answer waits to be read, or both sides might wait."""
        try:
            while True:
                waiting.put(receive(requests, None))
        finally:
            os._exit(0)  # the parent is gone, perhaps while a file is being read

    threading.Thread(target=listen, daemon=True).start()
    try:
        while True:
            slot, seconds, items = waiting.get()
            send(answers, _results(act, items, seconds), slots[slot] if slots else None)
    except MemoryError:
        os._exit(_NO_MEMORY)
    except OSError:
        os._exit(0)
    finally:
        os._exit(1)


def _results(
    act: Callable[[Any], Any], items: Sequence[Any], seconds: float
) -> list[Any] | BaseException:
    results: list[Any] = []
    try:
        for item in items:
            end_after(seconds)
            results.append(act(item))
    except MemoryError:
        raise
    except BaseException as error:  # the parent raises it
        if not isinstance(error, ClocsError):  # the traceback does not travel itself
            error.add_note("".join(traceback.format_exception(error)))
        return worker_messages.sendable(error)
    finally:
        end_after(0)
    return results


def main() -> None:
    """A process started afresh: what to do, then batches on stdin; answers on stdout."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    keep_memory()
    parent, *shared = map(int, sys.argv[1:])
    slots = shared_slots(shared[0]) if shared else ()
    try:
        act, limits = pickle.load(requests)  # noqa: S301 (from the process that started this one)
    except (AttributeError, ImportError):  # known to that process alone
        sys.exit(1)
    send(answers, None, None)  # ready
    _work(act, limits, requests, answers, slots, parent)


if __name__ == "__main__":
    main()

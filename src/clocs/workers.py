"""Processes that work through batches of items in order, with limits on memory and time.

An item that exceeds a limit is refused with the reason. Its process is replaced, and whatever else
that process held is done again. Processes end with the one that started them.

Batches go round: number n to process n % processes. Arrays in results come through memory that a
process shares with this one; where there is none or it is full, through the pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, BinaryIO, Generic, NoReturn, TypeVar

from clocs.errors import ClocsError
from clocs.files import ReadingLimits

T = TypeVar("T")
R = TypeVar("R")

SLOTS = 3  # batches per process: one being done, one done, one being used
SLOT_BYTES = 4 << 20
_NO_MEMORY = 3  # exit status
# More threads would only take address space: each has its own pool of memory.
_ONE_THREAD = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_BARE = ("PATH", "SYSTEMROOT", "TMPDIR")
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt's options, of malloc.h
_CRASHES = {getattr(signal, name, 0) for name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL")}


class UnsendableError(Exception):
    """A process started afresh cannot do this: the code is known to the parent process alone."""


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
        strangers: Collection[str] = (),
    ) -> None:
        """Start the processes.

        Args:
            act: Applied to each item, in a process. Unless forked, it is pickled.
            refuse: The result of an item that exceeds a limit; gets it and the reason, such as
                'took more than 8 GiB of memory to read'.
            processes: How many.
            limits: Of each process.
            fork: Fork this process, which is faster and safe only where it has no threads.
            strangers: Where the items are strangers' files: modules whose classes an answer may
                hold. From answers, only these, plain values and arrays are then made. The processes
                get no environment, which may hold secrets.

        Raises:
            UnsendableError: Processes started afresh do not know `act`.
        """
        self.most = processes * SLOTS
        # They may be killed at any moment: this process removes their temporary files.
        self._scratch = tempfile.TemporaryDirectory(prefix="clocs-", ignore_cleanup_errors=True)
        limits = replace(limits, scratch=self._scratch.name)
        self._act, self._refuse, self._limits = act, refuse, limits
        self._submitted = self._taken = 0
        self._closed, self._strangers = False, strangers
        self._processes: list[_Process] = []
        self._flying: list[deque[_Batch]] = [deque() for _ in range(processes)]
        if fork:
            keep_memory()
        start = b"" if fork else self._pickled()
        for _ in range(processes):
            made = _fork(act, limits, self._processes) if fork else _spawn(start, strangers)
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
            answer = self._receive(number, self._flying[number][0][0])
        except _PIPE_ERRORS:
            answer = self._again(number)
        self._flying[number].popleft()
        self._taken += 1
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """End the processes, also from another thread than that which waits for a result."""
        self._closed = True
        for process in self._processes:
            process.end(kill=True)
        self._processes.clear()
        self._scratch.cleanup()

    def _receive(self, number: int, slot: int) -> Any:
        process, wall = self._processes[number], self._limits.wall_seconds
        if wall is None:
            return process.receive(slot)
        timer = threading.Timer(wall, process.kill_late)
        timer.start()
        try:
            return process.receive(slot)
        finally:
            timer.cancel()

    def _again(self, number: int) -> list[R] | BaseException:
        """Replace a process that ended; its oldest batch is done item by item, the others whole."""
        if self._closed:
            raise EndedError
        (_, seconds, items), *others = self._flying[number]
        why = self._replace(number, seconds)
        results: list[R] = []
        if why and len(items) == 1:
            results.append(self._refuse(items[0], why))
        else:
            for item in items:
                try:
                    self._processes[number].send((0, seconds, [item]))
                    answer = self._receive(number, 0)
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
        process = self._processes[number]
        status = process.end(kill=False)
        try:
            self._processes[number] = _spawn(self._pickled(), self._strangers)
            self._processes[number].wait_until_ready()
        except UnsendableError:
            raise EndedError from None
        memory = f"{self._limits.memory / 2**30:.3g} GiB of memory"
        if process.late:
            return f"took more than {self._limits.wall_seconds:g} s to read"
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


@dataclass
class _Process:
    """One process as seen from the one that started it.

    Attributes:
        requests: The pipe to it.
        answers: The pipe from it.
        kill: Ends it.
        wait: Waits for its end; the status as of Popen.
        slots: Memory that it shares with this process.
        how: Unpickles its answers.
        keep: Whether arrays are copied out of the shared memory.
        late: Whether it was killed because no result came in time.
    """

    requests: BinaryIO
    answers: BinaryIO
    kill: Callable[[], None]
    wait: Callable[[], int]
    slots: Sequence[memoryview] = ()
    how: Callable[..., pickle.Unpickler] = pickle.Unpickler
    keep: bool = False
    late: bool = False

    def wait_until_ready(self) -> None:
        """Return once it knows what to do; UnsendableError where it cannot."""
        try:
            receive(self.answers, None, self.how)
        except _PIPE_ERRORS:
            raise UnsendableError from None

    def send(self, batch: _Batch) -> None:
        with contextlib.suppress(OSError):  # if it ended, `receive` says so
            send(self.requests, batch, None)

    def receive(self, slot: int) -> Any:
        shared = self.slots[slot] if self.slots else None
        return receive(self.answers, shared, self.how, keep=self.keep)

    def end(self, *, kill: bool) -> int:
        """Close the pipes and wait for the end, or bring it about; the status as of Popen."""
        if kill:
            self.kill()  # it only reads: nothing is lost
        with contextlib.suppress(OSError):
            self.requests.close()
        self.answers.close()
        return self.wait()

    def kill_late(self) -> None:
        self.late = True
        self.kill()


def _fork(
    act: Callable[[Any], Any], limits: ReadingLimits, earlier: Sequence[_Process]
) -> _Process:
    slots = shared_slots(-1)
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        try:
            # A pipe ends once nobody holds its other end.
            for file in (f for one in earlier for f in (one.requests, one.answers)):
                os.close(file.fileno())
            os.close(our_out)
            os.close(our_in)
            os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
            _work(act, limits, os.fdopen(their_in, "rb"), os.fdopen(their_out, "wb"), slots, parent)
        finally:
            os._exit(1)  # never return into the parent's code
    os.close(their_in)
    os.close(their_out)
    return _Process(
        os.fdopen(our_out, "wb"),
        os.fdopen(our_in, "rb"),
        kill=lambda: os.kill(pid, signal.SIGKILL),
        wait=lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
        slots=slots,
    )


def _spawn(start: bytes, strangers: Collection[str]) -> _Process:
    shared: tuple[int, ...] = ()
    slots: Sequence[memoryview] = ()
    if sys.platform == "linux":
        shared = (os.memfd_create("clocs"),)
        os.ftruncate(shared[0], SLOTS * SLOT_BYTES)
        slots = shared_slots(shared[0])
    child: Any = start_python(
        "clocs.workers",
        *(str(number) for number in (os.getpid(), *shared)),
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # warnings about strangers' files
        pass_fds=shared,
        bare=bool(strangers),
    )
    for handle in shared:
        os.close(handle)
    with contextlib.suppress(OSError):
        child.stdin.write(start)
        child.stdin.flush()
    how = partial(_Values, strangers) if strangers else pickle.Unpickler
    return _Process(child.stdin, child.stdout, child.kill, child.wait, slots, how, keep=True)


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
    send(answers, None, None)  # ready
    waiting: SimpleQueue[_Batch] = SimpleQueue()

    def listen() -> None:
        """Take requests even while an answer waits to be read, or both sides might wait."""
        try:
            while True:
                waiting.put(receive(requests, None, pickle.Unpickler))
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
    except ClocsError as error:  # the parent raises it
        return error
    except BaseException as error:  # neither the traceback nor every error can be sent
        other = RuntimeError(f"{type(error).__name__}: {error}")
        other.add_note("".join(traceback.format_exception(error)))
        return other
    finally:
        end_after(0)
    return results


# Messages: both ends are this program, but one of them may have read a stranger's file.


class _Values(pickle.Unpickler):
    """Unpickles plain values, arrays, and instances of classes that some modules define."""

    PLAIN = frozenset({"set", "frozenset", "bytearray", "complex", "RuntimeError"})
    ARRAYS = frozenset({"ndarray", "dtype", "_frombuffer", "_reconstruct", "scalar"})

    def __init__(self, modules: Collection[str], file: IO[bytes], **options: Any) -> None:
        super().__init__(file, **options)
        self._modules = modules

    def find_class(self, module: str, name: str) -> Any:
        """Refuse before anything is imported; a name with dots could lead out of its module."""
        array = module.partition(".")[0] == "numpy" and name in self.ARRAYS
        own = module in self._modules and "." not in name
        if array or own or (module == "builtins" and name in self.PLAIN):
            found = super().find_class(module, name)
            if not own or (isinstance(found, type) and found.__module__ == module):
                return found
        raise pickle.UnpicklingError(f"an answer may not hold {module}.{name}")


def shared_slots(handle: int) -> list[memoryview]:
    """Shared memory in as many pieces as there are slots; −1: shared with what is forked."""
    memory = memoryview(mmap.mmap(handle, SLOTS * SLOT_BYTES))
    return [memory[i * SLOT_BYTES : (i + 1) * SLOT_BYTES] for i in range(SLOTS)]


def send(file: BinaryIO, value: object, slot: memoryview | None) -> None:
    """Write a value for `receive`; its arrays into the slot, as far as they fit."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    places: list[tuple[int, int]] = []
    through_pipe: list[memoryview] = []
    free = 0
    for raw in (buffer.raw() for buffer in buffers):
        if slot is not None and free + raw.nbytes <= len(slot):
            slot[free : free + raw.nbytes] = raw
            places.append((free, raw.nbytes))
            free += -(-raw.nbytes // 8) * 8
        else:
            places.append((-1, raw.nbytes))
            through_pipe.append(raw)
    pickle.dump((data, places), file)
    for raw in through_pipe:
        file.write(raw)
    file.flush()


def receive(
    file: BinaryIO, slot: memoryview | None, how: Callable[..., pickle.Unpickler],
    *, keep: bool = False,
) -> Any:  # fmt: skip
    """What was sent; with `keep`, its arrays are copied out of the slot."""
    data, places = how(file).load()
    buffers: list[memoryview | bytearray] = []
    for start, size in places:
        if start >= 0 and slot is not None:
            shared = slot[start : start + size]
            buffers.append(bytearray(shared) if keep else shared)
            continue
        buffers.append(whole := bytearray(size))
        at = 0
        while at < size:
            got = file.readinto(memoryview(whole)[at:])  # type: ignore[attr-defined]
            if not got:
                raise EOFError
            at += got
    return how(io.BytesIO(data), buffers=buffers).load()


def start_python(
    module: str, *arguments: str, bare: bool = False, **options: Any
) -> subprocess.Popen[bytes]:
    """A process that runs a module, with one thread; it imports nothing from the current folder."""
    paths = os.pathsep.join(path for path in sys.path if path)
    given = {name: os.environ[name] for name in os.environ if not bare or name in _BARE}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdout=subprocess.PIPE,
        env={**given, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": paths},
        **options,
    )


def limit_process(memory: int, parent: int) -> None:
    """Limit what this process takes from now on, and end it with its parent.

    On Linux, fully; on other systems, as far as they can.

    Args:
        memory: Bytes of address space, on top of those it has.
        parent: Number of the process that started this one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os._exit(0)
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def end_after(seconds: float) -> None:
    """Have the system end this process after so much processor time; 0 for never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def keep_memory() -> None:
    """Let glibc keep freed memory.

    It hands buffers of a file's size back to the system each time, and the page faults of getting
    them again are half the time of reading a plain WFDB record.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library
        return
    for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        mallopt(option, 256 << 20)
    mallopt(_TOP_PAD, 16 << 20)


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
    _work(act, limits, requests, answers, slots, parent)


if __name__ == "__main__":
    main()

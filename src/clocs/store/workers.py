"""Workers that read the entries of a dataset, in order, with a bounded number in flight.

`ThreadWorkers` are threads of this process. `ForkWorkers` are processes: entries go to them through
pipes, samples come by shared memory. Batches go round: number n to worker n % workers, its samples
to the worker's slot n // workers % SLOTS, so that nobody has to say which slot is free.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clocs.datasets.base import Dataset, Entry, Quarantined
from clocs.errors import ClocsError, StoreError, UnusableError
from clocs.recording import Recording, check_plausible
from clocs.store.columns import row_of

_BATCH_BYTES = 2 << 20  # of samples, roughly, that one task reads
_BATCH_ENTRIES = 16
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt's options, of malloc.h
SLOTS = 3  # per worker: one being filled, one full, one being emptied
SLOT_SAMPLES = 2 << 20  # 4 MiB


@dataclass(slots=True)
class ReadRecording:
    """A recording on its way to the store: its table row, still without an offset, and samples."""

    row: dict[str, Any]
    flat: NDArray[np.int16]


ReadResult: TypeAlias = ReadRecording | Quarantined
# From a forked process: the row, and where the samples are in the slot, or themselves if too long.
_Sent: TypeAlias = tuple[dict[str, Any], slice | NDArray[np.int16]] | Quarantined


class Workers(Protocol):
    """Workers that read batches of entries, at most `most` at a time."""

    most: int

    def submit(self, entries: Sequence[Entry]) -> None: ...
    def take(self) -> list[ReadResult]:
        """The results of the oldest batch; their samples hold until the next `submit`."""
        ...

    def close(self) -> None: ...


def read_all(workers: Workers, entries: Sequence[Entry]) -> Iterator[list[ReadResult]]:
    """Results of all entries in order, in batches; samples hold until the next batch."""
    left = iter(entries)
    flying = 0
    size = 1  # grows once the size of recordings is known, so that memory stays bounded
    while True:
        while flying < workers.most and (batch := list(islice(left, size))):
            workers.submit(batch)
            flying += 1
        if not flying:
            return
        results = workers.take()
        flying -= 1
        largest = max(
            (one.flat.nbytes for one in results if isinstance(one, ReadRecording)), default=1
        )
        size = max(1, min(_BATCH_ENTRIES, 2 * size, _BATCH_BYTES // largest))
        yield results


def read_one(dataset: Dataset, entry: Entry) -> ReadResult:
    """Read an entry; what is wrong with the recording itself is a result, too.

    Any other error is not the recording's fault and stops preparing: a missing package with a
    sentence, a defect with its traceback.
    """
    try:
        recording = dataset.read(entry)
        if recording.digital.size == 0:
            raise UnusableError("too short", "it holds no samples")
        check_plausible(recording)
    except UnusableError as error:
        return Quarantined(entry.id, error.reason, error.detail)
    except ImportError as error:
        raise ClocsError(
            f"{entry.path} needs a package that cannot be imported ({error}); install it, then run "
            "the same `clocs prepare` again to resume"
        ) from error
    except Exception as error:
        error.add_note(f"while reading {entry.path}; run the same `clocs prepare` again to resume")
        raise
    _expect_sound(recording)
    digital = np.ascontiguousarray(recording.digital)
    return ReadRecording(row_of(recording), digital.reshape(-1))


def _expect_sound(recording: Recording) -> None:
    leads = len(recording.leads)
    if recording.digital.dtype != np.int16 or recording.digital.ndim != 2:
        raise TypeError("samples are not (leads, samples) of int16")
    if not recording.digital.shape[0] == recording.gain.size == recording.baseline.size == leads:
        raise ValueError(f"{leads} lead names, but other numbers of samples, gains or baselines")
    if len(set(recording.leads)) != leads:
        raise ValueError("a lead occurs twice")


class ThreadWorkers:
    """Threads of this process."""

    def __init__(self, dataset: Dataset, workers: int) -> None:
        self._dataset = dataset
        self.most = 2 * workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="prepare")
        self._flying: deque[Future[list[ReadResult]]] = deque()

    def submit(self, entries: Sequence[Entry]) -> None:
        self._flying.append(self._pool.submit(self._read, entries))

    def take(self) -> list[ReadResult]:
        return self._flying.popleft().result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _read(self, entries: Sequence[Entry]) -> list[ReadResult]:
        return [read_one(self._dataset, entry) for entry in entries]


class ForkWorkers:
    """Processes, each with slots of memory that it shares with this one."""

    def __init__(self, dataset: Dataset, workers: int) -> None:
        _keep_memory()
        self.most = workers * SLOTS
        self._submitted = self._taken = 0
        memory = mmap.mmap(-1, workers * SLOTS * SLOT_SAMPLES * 2)
        self._slots = np.frombuffer(memory, np.int16).reshape(workers, SLOTS, SLOT_SAMPLES)
        self._pipes: list[Connection[Any, Any]] = []
        self._pids: list[int] = []
        for number in range(workers):
            ours, theirs = Pipe()
            pid = os.fork()
            if not pid:
                # A pipe ends once nobody holds its other end, so workers end with the parent.
                for pipe in (*self._pipes, ours):
                    pipe.close()
                _work(dataset, theirs, self._slots[number])
            theirs.close()
            self._pipes.append(ours)
            self._pids.append(pid)

    def submit(self, entries: Sequence[Entry]) -> None:
        pipe = self._pipes[self._submitted % len(self._pipes)]
        try:
            pipe.send(entries)
        except OSError:
            raise _died() from None
        self._submitted += 1

    def take(self) -> list[ReadResult]:
        turn, worker = divmod(self._taken, len(self._pipes))
        try:
            answer = self._pipes[worker].recv()
        except (EOFError, OSError):
            raise _died() from None
        if isinstance(answer, BaseException):
            raise answer
        self._taken += 1
        slot = self._slots[worker, turn % SLOTS]
        return [
            one
            if isinstance(one, Quarantined)
            else ReadRecording(one[0], slot[one[1]] if isinstance(one[1], slice) else one[1])
            for one in answer
        ]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)  # it only reads: nothing is lost
            os.waitpid(pid, 0)
        self._pids.clear()


def _keep_memory() -> None:
    """Let glibc keep freed memory.

    It hands buffers of a file's size back to the system each time, and the page faults of getting
    them again are half the time of reading a plain WFDB record.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        mallopt(option, 256 << 20)
    mallopt(_TOP_PAD, 16 << 20)


def _died() -> StoreError:
    return StoreError(
        "a process that reads recordings was ended from outside, perhaps for lack of memory; "
        "run the same `clocs prepare` again to resume, with fewer `workers` if need be"
    )


def _work(dataset: Dataset, pipe: Connection[Any, Any], slots: NDArray[np.int16]) -> NoReturn:
    """Read what is asked for until the pipe ends; never return into the parent's code."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and closes the pipe
        turn = 0
        while True:
            entries = pipe.recv()
            pipe.send(_answer(dataset, entries, slots[turn % SLOTS]))
            turn += 1
    except (EOFError, OSError):
        os._exit(0)
    finally:
        os._exit(1)


def _answer(
    dataset: Dataset, entries: Sequence[Entry], slot: NDArray[np.int16]
) -> list[_Sent] | BaseException:
    sent: list[_Sent] = []
    end = 0
    try:
        for entry in entries:
            result = read_one(dataset, entry)
            if isinstance(result, Quarantined):
                sent.append(result)
            elif (stop := end + result.flat.size) > slot.size:
                sent.append((result.row, result.flat))
            else:
                slot[end:stop] = result.flat
                sent.append((result.row, slice(end, stop)))
                end = stop
    except BaseException as error:  # the parent raises it
        if not isinstance(error, ClocsError):  # the traceback does not travel itself
            error.add_note("".join(traceback.format_exception(error)))
        return error
    return sent

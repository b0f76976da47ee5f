"""Forked processes that read. Entries go to them through pipes, samples come by shared memory.

Batches go round: number n to worker n % workers, its samples to the worker's slot
n // workers % SLOTS, so that nobody has to say which slot is free.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
import traceback
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from clocs.datasets.base import Dataset, Entry, Quarantined
from clocs.errors import ClocsError, StoreError
from clocs.store.workers import ReadRecording, ReadResult, read_one

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt's options, of malloc.h
SLOTS = 3  # per worker: one being filled, one full, one being emptied
SLOT_SAMPLES = 2 << 20  # 4 MiB

# Where a recording's samples begin in its slot, or themselves where they do not fit.
_Sent = Quarantined | tuple[dict[str, Any], int, int] | tuple[dict[str, Any], NDArray[np.int16]]


class ForkWorkers:
    """Processes, each with slots of memory that it shares with this one."""

    def __init__(self, dataset: Dataset, workers: int) -> None:
        _keep_memory()
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

    @property
    def has_room(self) -> bool:
        return self._submitted - self._taken < len(self._pipes) * SLOTS

    @property
    def is_idle(self) -> bool:
        return self._submitted == self._taken

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
        return [_received(one, slot) for one in answer]

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


def _received(sent: _Sent, slot: NDArray[np.int16]) -> ReadResult:
    match sent:
        case Quarantined():
            return sent
        case (row, start, stop):
            return ReadRecording(row, slot[start:stop])
        case (row, flat):
            return ReadRecording(row, flat)


def _work(dataset: Dataset, pipe: Connection[Any, Any], slots: NDArray[np.int16]) -> NoReturn:
    """Read what is asked for until the pipe ends; never return into the parent's code."""
    try:
        gc.disable()  # what is read has no cycles, and looking for some takes a few percent
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
                continue
            start, stop = end, end + result.flat.size
            if stop > slot.size:
                sent.append((result.row, result.flat))
                continue
            slot[start:stop] = result.flat
            sent.append((result.row, start, stop))
            end = stop
    except BaseException as error:  # the parent raises it
        if isinstance(error, ClocsError):
            return error
        error.add_note("".join(traceback.format_exception(error)))  # which does not travel itself
        return error
    return sent

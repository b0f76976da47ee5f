"""Messages between processes: pickled through pipes, arrays through memory that both share.

Both ends are this program; nothing that comes from elsewhere is unpickled.
"""

from __future__ import annotations

import mmap
import pickle
from typing import Any, BinaryIO

SLOTS = 3  # batches per process: one being done, one done, one being used
SLOT_BYTES = 4 << 20


class UnsendableError(Exception):
    """A process started afresh cannot do this: the code is known to the parent process alone."""


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


def sendable(error: BaseException) -> BaseException:
    """The error, or one that says the same where it cannot be pickled and made again."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (its own)
    except Exception:
        other = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            other.add_note(note)
        return other
    return error


def receive(file: BinaryIO, slot: memoryview | None, *, keep: bool = False) -> Any:
    """What was sent; with `keep`, its arrays are copied out of the slot."""
    data, places = pickle.load(file)  # noqa: S301 (both ends are this program)
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
    return pickle.loads(data, buffers=buffers)  # noqa: S301

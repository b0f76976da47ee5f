"""A lock on a folder, so that only one process at a time writes to it.

The system keeps the lock and drops it with the process, however that ends, so that none is ever
stale; the file is only what the lock is on, and goes when it is released. Where there are no such
locks (Windows, some network disks), nothing is guarded.

The package filelock would not do: its locks leave their file behind and do not name the process
that holds them, and adding both takes the lines below.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from clocs.errors import BusyError

T = TypeVar("T")
LOCK = ".lock"
_ENDING = 300.0  # seconds in which a process that was lost must have ended
_AGAIN = 0.2  # seconds between two attempts


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder`, made for its owner alone where it does not exist, for this `with`.

    Take it after forking: a child that inherits the lock holds it, too.

    Raises:
        BusyError: Another process, or another thread of this one, holds it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # stores hold patient IDs
    path = folder / LOCK
    handle = _take(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # first: nobody may take a lock on a file without a name
        os.close(handle)


def once_free(act: Callable[[], T]) -> T:
    """`act()`, tried again while another process, perhaps of a lost worker, is in the way.

    Raises:
        BusyError: It still is after five minutes.
    """
    give_up = time.monotonic() + _ENDING
    while True:
        try:
            return act()
        except BusyError:
            if time.monotonic() > give_up:
                raise
        time.sleep(_AGAIN)


def _take(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            flock(handle)
            if is_file_of(path, handle):
                with suppress(OSError):  # a full disk: the lock holds without its holder's number
                    os.ftruncate(handle, 0)
                    os.write(handle, str(os.getpid()).encode())
                return handle
        except BlockingIOError:
            holder = os.read(handle, 20).decode(errors="replace")
            os.close(handle)
            who = f"another process ({holder})" if holder else "another process"
            raise BusyError(
                f"{path.parent} is being written by {who}; wait for it to end, or give another "
                "folder as `out`"
            ) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # released and removed between our opening it and locking it: once more


def flock(handle: int) -> bool:
    """Lock an open file; BlockingIOError where another holds it, False where there are no locks."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False  # a disk without locks
    return True


def is_file_of(path: Path, handle: int) -> bool:
    """Whether this path still is the open file."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(handle)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

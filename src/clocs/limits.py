"""Limits of reading that no real recording meets, on sizes and on the processes that read.

The longest real recordings, 24 hours of twelve leads at 1000 Hz, are 2 GB of int16.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from clocs.errors import SettingError, UnusableError

MAX_BYTES = 4 << 30  # of one file, unpacked, and of one recording's int16 samples
MAX_HEADER_BYTES = 1 << 20  # of a WFDB header
MAX_TABLE_BYTES = 64 << 20  # of a table of labels or a list of episodes
MAX_LINE = 1000  # characters of a line that is parsed
# Files that unpack to more than this must have been packed at most so many times smaller: ECGs are
# packed 2 to 10 times smaller, and only constants 100 times.
UNPACKED_FREELY = 64 << 20
MAX_TIMES_SMALLER = 100


def check_size(size: int, *, packed: int, name: str, most: int = MAX_BYTES) -> None:
    """Refuse what is too large to be a recording, or was packed as only constants can be.

    Args:
        size: Bytes, unpacked.
        packed: Bytes as they lie on disk.
        name: For the message.
        most: Bytes that are too many.

    Raises:
        UnusableError: exceeds limits.
    """
    if size > most:
        detail = f"{name} has {_readable(size)} of data; at most {_readable(most)} are read"
        raise UnusableError("exceeds limits", detail)
    if size > UNPACKED_FREELY and size > MAX_TIMES_SMALLER * packed:
        raise UnusableError(
            "exceeds limits",
            f"{name} claims {_readable(size)} of data in {packed:,} bytes, which no ECG does",
        )


def _readable(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:,.1f} MiB"


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """Of a process that reads files.

    Attributes:
        memory: Bytes that it may take to read one recording.
        seconds: Of processor time, for one recording.
        wall_seconds: That may pass until the result, if there is a limit.
        scratch: Folder for its temporary files; the system's where None.
    """

    memory: int
    seconds: float
    wall_seconds: float | None = None
    scratch: str | None = None


def default_processes() -> int:
    """One per core that this process may use, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, 16)


def reading_limits() -> ReadingLimits:
    """8 GiB and 120 s; `CLOCS_READ_GIB` and `CLOCS_READ_SECONDS` in the environment change them.

    Raises:
        SettingError: One of them is no number, or too small.
    """
    memory = from_environment("CLOCS_READ_GIB", 8.0)
    return ReadingLimits(int(memory * 2**30), from_environment("CLOCS_READ_SECONDS", 120.0))


def from_environment(name: str, default: float) -> float:
    """A number in the environment, or the default; SettingError where it is none or too small."""
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not 0.1 <= value < 1e6:
        raise SettingError(f"{name} is {text!r} in the environment; give a number from 0.1 on")
    return value

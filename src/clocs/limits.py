"""How much of a file is read: limits that no real recording meets, checked before memory is taken.

The longest real recordings, 24 hours of twelve leads at 1000 Hz, are 2 GB of int16.
"""

from __future__ import annotations

from clocs.errors import UnusableError

MOST_BYTES = 4 << 30  # of one file, unpacked, and of one recording's int16 samples
MOST_HEADER_BYTES = 1 << 20  # of a WFDB header
MOST_TABLE_BYTES = 64 << 20  # of a table of labels or a list of episodes
MOST_LINE = 1000  # characters of a line that is parsed
# Files that unpack to more than this must have been packed at most so many times smaller: ECGs are
# packed 2 to 10 times smaller, and only constants 100 times.
UNPACKED_FREELY = 64 << 20
MOST_TIMES_SMALLER = 100


def check_size(size: int, *, packed: int, name: str, most: int = MOST_BYTES) -> None:
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
    if size > UNPACKED_FREELY and size > MOST_TIMES_SMALLER * packed:
        raise UnusableError(
            "exceeds limits",
            f"{name} claims {_readable(size)} of data in {packed:,} bytes, which no ECG does",
        )


def _readable(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:,.1f} MiB"

"""Memory for signals, or where they are too large, a mapped file that is deleted with them."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clocs.files import writing
from clocs.limits import from_environment

_CONTAINER = ("memory.max", "memory/memory.limit_in_bytes")  # under /sys/fs/cgroup
_NO_LIMIT = 1e5  # GiB


def memory_for_signals() -> int:
    """Bytes of signals that may be in memory at once: half of what this process may take."""
    return min(physical_memory(), *memory_limits()) // 2


def physical_memory() -> int:
    """The machine's memory in bytes; without limit where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows
        return 1 << 62


def memory_limits() -> list[int]:
    """Bytes that this process may take: `CLOCS_MEMORY_GIB` in the environment, its container's."""
    limits = [int(from_environment("CLOCS_MEMORY_GIB", _NO_LIMIT) * 2**30)]
    for name in _CONTAINER:
        with suppress(OSError, ValueError):  # no container, or one without a limit
            limits.append(int((Path("/sys/fs/cgroup") / name).read_text()))
    return limits


def allocate_signals(
    samples: int, *, beside: Path | None = None, memory: int | None = None
) -> NDArray[np.int16]:
    """(samples,) to fill: in memory, or beyond `memory` bytes in a mapped file without a name.

    Args:
        samples: Their number.
        beside: The file's folder; the system's temporary folder where None or not writable.
        memory: The most bytes in memory; `memory_for_signals` where None.
    """
    if samples * 2 <= (memory_for_signals() if memory is None else memory):
        return np.empty(samples, np.int16)
    writable = beside is not None and os.access(beside, os.W_OK)
    folder = os.fspath(beside) if beside is not None and writable else tempfile.gettempdir()
    with writing(folder), tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(samples * 2)
        if hasattr(os, "posix_fallocate"):  # or a full disk would end the process without a word
            os.posix_fallocate(file.fileno(), 0, samples * 2)
        return np.memmap(file, np.int16, "r+", shape=(samples,))

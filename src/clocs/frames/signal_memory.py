"""Room for signals: memory, or where they are too many a file that vanishes with them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def memory_for_signals() -> int:
    """Bytes of signals that may lie in memory at once: half of the machine's."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def room_for(
    samples: int, *, beside: Path | None = None, memory: int | None = None
) -> NDArray[np.int16]:
    """(samples,) to fill: memory, or beyond `memory` bytes a mapped file that has no name any more.

    Args:
        samples: How many.
        beside: The file's folder; the system's for temporary ones where None or not writable.
        memory: The most bytes in memory; `memory_for_signals` where None.
    """
    if samples * 2 <= (memory_for_signals() if memory is None else memory):
        return np.empty(samples, np.int16)
    writable = beside is not None and os.access(beside, os.W_OK)
    with tempfile.TemporaryFile(dir=beside if writable else None) as file:
        file.truncate(samples * 2)
        return np.memmap(file, np.int16, "r+", shape=(samples,))

"""Trees of files as people have them, for tests: written as by the real libraries."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plain_wfdb import write_record


def walk(samples: int, leads: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(samples, leads) digital values that vary and stay small."""
    steps = np.random.default_rng(seed).integers(-9, 10, (samples, leads))
    return np.clip(np.cumsum(steps, axis=0), -2000, 2000)


def record(
    folder: Path,
    name: str,
    *,
    leads: Sequence[str] = ("I", "II", "V5"),
    seconds: float = 12.0,
    rate: int = 100,
    comments: Sequence[str] = (),
    seed: int | None = None,
) -> Path:
    """A WFDB record; its header's path."""
    folder.mkdir(parents=True, exist_ok=True)
    key = zlib.crc32(f"{folder.name}/{name}".encode()) if seed is None else seed
    digital = walk(round(seconds * rate), len(leads), key)
    gain = [1000.0] * len(leads)
    return write_record(folder, name, digital, leads, rate=rate, gain=gain, comments=comments)


def several(folder: Path, count: int, **fields: Any) -> None:
    """Records r0, r1 … in one folder."""
    for number in range(count):
        record(folder, f"r{number}", **fields)

"""WFDB records of 16 bits, with the bytes of wfdb.wrsamp, which takes 20 ms and more for each.

tests/formats/test_wfdb_layouts.py compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_record(
    folder: Path,
    name: str,
    digital: NDArray[np.integer[Any]],
    leads: Sequence[str],
    *,
    rate: float,
    gain: Sequence[float],
    comments: Sequence[str] = (),
) -> Path:
    """A record of (samples, leads) in mV, with a baseline of 0; its header's path."""
    values = digital.astype("<i2")
    assert (values == digital).all()
    (folder / f"{name}.dat").write_bytes(values.tobytes())
    lines = [f"{name} {len(leads)} {rate:g} {len(values)}"]
    for lead, steps, column in zip(leads, gain, values.T, strict=True):
        total = int(column.sum(dtype=np.int64)) % 2**16
        lines.append(f"{name}.dat 16 {steps}(0)/mV 16 0 {column[0]} {total} 0 {lead}")
    lines += [f"# {comment}" for comment in comments]
    header = folder / f"{name}.hea"
    header.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return header

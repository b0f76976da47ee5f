"""WFDB records for tests, written by wfdb itself, and what reading them must give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import wfdb

from clocs.formats import wfdb_signals
from clocs.formats.read import read

RNG = np.random.default_rng(0)


def bytes_of(form: str, samples: int) -> int:
    """Bytes that so many samples take in a format that is not packed."""
    sizes = wfdb_signals._BYTES[form]
    groups, rest = divmod(samples, len(sizes) - 1)
    return groups * sizes[-1] + sizes[rest]


def write(folder: Path, digital: np.ndarray[Any, Any], fmt: str = "16", **fields: Any) -> Path:
    """Write (samples, leads) with wfdb as record r; return the header's path."""
    leads = digital.shape[1]
    options: dict[str, Any] = {
        "units": ["mV"] * leads,
        "sig_name": ["I", "II", "AVR", "V1", "V2"][:leads],
        "adc_gain": [1000.0] * leads,
        "baseline": [0] * leads,
        **fields,
    }
    wfdb.wrsamp("r", fs=500, d_signal=digital, fmt=[fmt] * leads, write_dir=str(folder), **options)
    return folder / "r.hea"


def write_mat(folder: Path, digital: np.ndarray[Any, Any]) -> Path:
    """A MATLAB v4 file as the PhysioNet challenges publish them: 24 bytes, then the samples."""
    leads = digital.shape[1]
    head = np.array([30, leads, len(digital), 0, 4], "<i4").tobytes() + b"val\0"
    (folder / "r.mat").write_bytes(head + digital.astype("<i2").tobytes())
    lines = [f"r {leads} 500 {len(digital)} 12-May-2020 12:33:59"]
    lines += [f"r.mat 16+24 1000/mV 16 0 0 0 0 V{i + 1}" for i in range(leads)]
    (folder / "r.hea").write_text("\n".join(lines) + "\n#Age: 74\n#Sex: Male\n#Dx: 1,2\n")
    return folder / "r.hea"


def signals(samples: int = 700, leads: int = 3) -> np.ndarray[Any, np.dtype[np.int64]]:
    return RNG.integers(-3000, 3000, (samples, leads))


def assert_equals_wfdb(header: Path) -> None:
    ours = read(header)
    theirs = wfdb.rdrecord(str(header.with_suffix("")))
    assert ours.signal.tobytes() == np.ascontiguousarray(theirs.p_signal.T).tobytes()
    assert [lead.lower() for lead in ours.leads] == [name.lower() for name in theirs.sig_name]
    assert ours.rate == theirs.fs
    assert ours.digital.dtype == np.int16
    assert ours.digital.flags.c_contiguous


def write_segments(folder: Path, *, gain: float = 500.0) -> Path:
    """A variable layout: I and II, then nothing, then II and V1."""
    for name, leads, steps in (("s1", ["I", "II"], 500.0), ("s2", ["II", "V1"], gain)):
        wfdb.wrsamp(
            name, fs=500, d_signal=signals(300, 2) // 2, fmt=["212"] * 2, units=["mV"] * 2,
            sig_name=leads, adc_gain=[steps] * 2, baseline=[5] * 2, write_dir=str(folder),
        )  # fmt: skip
    layout = "".join(f"~ 0 500(5)/mV 12 0 0 0 0 {lead}\n" for lead in ("I", "II", "V1"))
    (folder / "t.hea").write_text(f"t 3 500 0\n{layout}")
    (folder / "r.hea").write_text("r/4 3 500 700\nt 0\ns1 300\n~ 100\ns2 300\n")
    return folder / "r.hea"

"""EDF files for tests, written by edfio itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import edfio
import numpy as np

RNG = np.random.default_rng(0)


def signal(label: str, rate: float = 250.0, unit: str = "uV", seconds: int = 20) -> Any:
    wave = 800 * np.sin(np.arange(int(rate * seconds)) / 30) + RNG.normal(
        0, 30, int(rate * seconds)
    )
    return edfio.EdfSignal(
        wave if unit == "uV" else wave / 1000,
        rate,
        label=label,
        physical_dimension=unit,
        physical_range=(-2000, 2000) if unit == "uV" else (-2, 2),
        prefiltering="HP:0.05Hz",
    )


def write(folder: Path, signals: list[Any], name: str = "r.edf", **fields: Any) -> Path:
    edfio.Edf(signals, **fields).write(folder / name)
    return folder / name


def discontinuous(folder: Path) -> Path:
    """Records of one second that start at 0, 1, 5 and 6.5 s."""
    path = write(folder, [signal("II", seconds=4)], annotations=[edfio.EdfAnnotation(0, None, "x")])
    data = path.read_bytes().replace(b"EDF+C", b"EDF+D", 1)
    size = int(data[184:192])
    records = [
        data[at : at + (len(data) - size) // 4]
        for at in range(size, len(data), (len(data) - size) // 4)
    ]
    for number, onset in ((2, b"+5\x14\x14"), (3, b"+6.5\x14\x14")):
        at = records[number].rindex(b"+%d\x14\x14" % number)
        records[number] = (records[number][:at] + onset).ljust(len(records[0]), b"\0")
    path.write_bytes(data[:size] + b"".join(records))
    return path

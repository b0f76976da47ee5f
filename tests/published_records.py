"""Records in the layouts of published datasets, written by wfdb."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import wfdb

from clocs.datasets.base import Dataset
from clocs.recording import STANDARD_LEADS, Recording

TWELVE = tuple(lead.upper() for lead in STANDARD_LEADS)


def write_record(
    folder: Path,
    name: str,
    *,
    leads: Sequence[str] = TWELVE,
    rate: float = 500,
    seconds: float = 10.0,
    form: str = "16",
    comments: Sequence[str] = (),
) -> None:
    """Noise of some hundred steps, 1000 (in format 212: 200) steps to the mV."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in _record(name, tuple(leads), rate, seconds, form, tuple(comments)).items():
        (folder / file).write_bytes(content)


@cache  # a record takes wfdb some time to write
def _record(
    name: str,
    leads: tuple[str, ...],
    rate: float,
    seconds: float,
    form: str,
    comments: tuple[str, ...],
) -> dict[str, bytes]:
    """The files of a record by their names."""
    count, rng = len(leads), np.random.default_rng(sum(map(ord, name)))
    with tempfile.TemporaryDirectory() as folder:
        wfdb.wrsamp(
            name, fs=rate, units=["mV"] * count, sig_name=list(leads), fmt=[form] * count,
            d_signal=rng.integers(-400, 400, (round(rate * seconds), count)),
            adc_gain=[200.0 if form == "212" else 1000.0] * count, baseline=[0] * count,
            comments=list(comments), write_dir=folder,
        )  # fmt: skip
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def zipped(folder: Path) -> Path:
    """The folder as a zip beside it, with the folder's name above all of its files."""
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"{folder.name}/{file.relative_to(folder)}")
    return path


def read_all(dataset: Dataset) -> dict[str, Recording]:
    """Every recording of a dataset by its ID."""
    return {entry.id: dataset.read(entry) for entry in dataset.list().entries}

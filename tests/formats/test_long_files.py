"""A day of three leads is read hour by hour in the memory of an hour."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from clocs.formats.base import ReadOptions
from clocs.formats.edf import EDF
from clocs.formats.source import Source, open_files, open_source
from clocs.formats.wfdb import WFDB
from edf_files import signal, write
from wfdb_files import bytes_of

HOURS, RATE, LEADS = 24, 250, 3
HOUR = 3600 * RATE  # samples of a lead
MARK = np.arange(1, 1 + LEADS) * 80  # of each lead, at the start of the twentieth hour
MAX = 8 * HOUR * LEADS * 2  # bytes; the day has three times as many


def write_wfdb(folder: Path, fmt: str) -> str:
    """A day of zeros but for one sample, which takes no room on disk."""
    lines = [f"r.dat {fmt} 200/mV 12 0 0 0 0 {lead}" for lead in ("I", "II", "V1")]
    (folder / "r.hea").write_text("\n".join([f"r {LEADS} {RATE} {HOURS * HOUR}", *lines]) + "\n")
    if fmt == "516":
        zeros = np.zeros((HOUR, LEADS), np.int16)
        with soundfile.SoundFile(
            folder / "r.dat", "w", RATE, LEADS, "PCM_16", format="FLAC"
        ) as file:
            for hour in range(HOURS):
                zeros[0] = MARK if hour == 20 else 0
                file.write(zeros)
        return "r.hea"
    one, two, three = MARK.tolist()
    mark = (
        MARK.astype("<i2").tobytes()
        if fmt == "16"
        else bytes([one, 0, two, three & 255, three >> 8])
    )
    with (folder / "r.dat").open("wb") as file:
        file.seek(bytes_of(fmt, 20 * HOUR * LEADS))
        file.write(mark)
        file.truncate(bytes_of(fmt, HOURS * HOUR * LEADS))
    return "r.hea"


def write_edf(folder: Path) -> str:
    path = write(folder, [signal(lead, seconds=1) for lead in ("I", "II", "V1")])
    data = bytearray(path.read_bytes())
    size = int(data[184:192])
    record = len(data) - size
    data[236:244] = b"%-8d" % (HOURS * 3600)
    with path.open("wb") as file:
        file.write(data[:size])
        for lead, mark in enumerate(MARK):
            file.seek(size + 20 * 3600 * record + 2 * lead * RATE)
            file.write(int(mark).to_bytes(2, "little"))
        file.truncate(size + HOURS * 3600 * record)
    return "r.edf"


def source_of(folder: Path, kind: str) -> Source:
    if kind == "folder":
        return open_files(folder)
    method = zipfile.ZIP_STORED if kind == "stored zip" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(folder / "all.zip", "w", method, compresslevel=1) as archive:
        for path in [*folder.glob("r.*")]:
            archive.write(path, path.name)
    return open_source(folder / "all.zip")


@pytest.mark.parametrize("kind", ["folder", "stored zip", "zip"])
@pytest.mark.parametrize("fmt", ["16", "212", "516", "edf"])
def test_an_hour_of_a_day_takes_the_memory_of_an_hour(tmp_path: Path, fmt: str, kind: str) -> None:
    own, name = (EDF, write_edf(tmp_path)) if fmt == "edf" else (WFDB, write_wfdb(tmp_path, fmt))
    source = source_of(tmp_path, kind)
    assert own.reads_stretches
    own.read(source, name, ReadOptions(start=0.0, stop=10.0))  # imports and caches are no matter
    tracemalloc.start()
    try:
        (part,) = own.parts(source, name, ReadOptions())
        assert part.seconds == HOURS * 3600
        for hour in (0, 20, 23):
            options = ReadOptions(start=hour * 3600.0, stop=(hour + 1) * 3600.0)
            found = own.read(source, name, options).digital
            assert found.shape == (LEADS, HOUR)
            assert np.array_equal(found[:, 0], MARK if hour == 20 else MARK * 0)
            assert not found[:, 1:].any()
        assert tracemalloc.get_traced_memory()[1] < MAX
    finally:
        tracemalloc.stop()

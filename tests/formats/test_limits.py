"""Files that claim more than any recording holds are refused before memory or time is spent."""

from __future__ import annotations

import bz2
import io
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bombs import GIB, HEADER, zip_of
from clinical_files import ishne
from clocs import read
from clocs.errors import UnusableError
from clocs.formats.base import ReadOptions
from clocs.formats.source import open_source
from clocs.formats.text_table import read_table
from clocs.formats.wfdb import read_wfdb
from clocs.formats.wfdb_header import parse_header

SIGNAL = "r.dat 16 200/mV 16 0 0 0 0 II\n"


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < GIB / 4


@pytest.mark.parametrize("stated", [6 * GIB, 3 * GIB, 10 << 20, 5000])
def test_a_small_member_that_unpacks_to_gigabytes_is_refused(tmp_path: Path, stated: int) -> None:
    bomb = zip_of({"r.hea": HEADER}, {"r.dat": (6 * GIB, stated)})
    assert len(bomb) < 7 << 20
    (tmp_path / "x.zip").write_bytes(bomb)
    with pytest.raises(UnusableError) as error:
        read_wfdb(open_source(tmp_path / "x.zip"), "r.hea")
    assert error.value.reason == ("exceeds limits" if stated >= GIB else "unreadable")


def test_a_bzip2_member_longer_than_it_states_is_refused(tmp_path: Path) -> None:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("r.hea", HEADER)
        archive.writestr("r.dat", bz2.compress(bytes(64 << 20)) * 20)
        info = archive.filelist[-1]
        info.compress_type, info.file_size = zipfile.ZIP_BZIP2, 10_000
    (tmp_path / "x.zip").write_bytes(held.getvalue())
    with pytest.raises(UnusableError, match=r"r\.dat"):
        read_wfdb(open_source(tmp_path / "x.zip"), "r.hea")


def test_a_sparse_file_of_gigabytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.hea").write_bytes(HEADER)
    for name in ("r.dat", "r.ecg", "r.csv"):
        with (tmp_path / name).open("wb") as file:
            if name == "r.ecg":
                file.write(ishne(np.ones((1, 9), np.int16), ("II",), nanovolts=2500))
            file.truncate(6 * GIB)
    for name in ("r.hea", "r.ecg", "r.csv"):
        with pytest.raises(UnusableError, match=r"6\.0 GiB") as error:
            read(tmp_path / name, rate=500.0)
        assert error.value.reason == "exceeds limits"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("r/2 1 500 1000005000\n~ 1000000000\np 5000\n", "exceeds limits"),
        ("r/1 1 500 1000000000\np 1000000000\n", "exceeds limits"),
        ("r/1 1 500 1000000000\np 5000\n", "truncated"),
        ("r/20000 1 500\n" + "p 5000\n" * 20_000, "exceeds limits"),
        ("r/1 1 500 5000\np " + "9" * 5000, "unreadable"),
        ("r 1 500 1000000000\nr.dat 212 200/mV 12 0 0 0 0 II\n", "truncated"),
        ("r 1 500 1000000000\nr.dat 524 200/mV 12 0 0 0 0 II\n", "unreadable"),
        ("r 1 500 5000\nr.dat 16x1000000 200/mV 12 0 0 0 0 II\n", "implausible"),
        ("r 1 500 5000\nr.dat 16:1000000000 200/mV 12 0 0 0 0 II\n", "unreadable"),
        ("r 1 500 1000000000\n~ 16 200/mV 12 0 0 0 0 II\n", "nan"),
        ("r 1 500 1000000000\n" + SIGNAL, "truncated"),
        ("r 1 500 5000\n" + SIGNAL + "#" * (2 << 20), "exceeds limits"),
    ],
)
def test_a_header_that_claims_what_its_files_cannot_hold(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "r.hea").write_text(text)
    (tmp_path / "p.hea").write_text("p 1 500 5000\np.dat 16 200/mV 16 0 0 0 0 II\n")
    samples = np.arange(5000, dtype="<i2") % 700
    for name in ("r.dat", "p.dat"):
        (tmp_path / name).write_bytes(samples.tobytes())
    with pytest.raises(UnusableError) as error:
        read(tmp_path / "r.hea")
    assert error.value.reason == reason


def test_a_flac_stream_that_claims_a_billion_samples_is_refused(tmp_path: Path) -> None:
    packed = 500 << 44 | 0 << 41 | 15 << 36 | 1_000_000_000
    info = bytes([0x80, 0, 0, 34, 16, 0, 16, 0, *bytes(6)]) + packed.to_bytes(8, "big")
    (tmp_path / "r.dat").write_bytes(b"fLaC" + info + bytes(16))
    (tmp_path / "r.hea").write_text("r 1 500 1000000000\nr.dat 516 200/mV 16 0 0 0 0 II\n")
    with pytest.raises(UnusableError) as error:
        read(tmp_path / "r.hea")
    assert error.value.reason == "exceeds limits"


@pytest.mark.parametrize(
    "line",
    ["1" * 300_000, "a" * 300_000 + "!", "r/" + "1" * 300_000, "r 1 " + "1" * 300_000 + "e"],
)
def test_a_long_line_of_a_header_is_refused_at_once(line: str) -> None:
    for text in (line, f"r 1 500 5000\nr.dat {line}", f"r/1 1 500\n{line} {line}"):
        with pytest.raises(UnusableError, match=r"r\.hea"):
            parse_header(text.encode(), name="r.hea")


@pytest.mark.parametrize(
    "data",
    [
        b"II\n" + b"0," * (32 << 20),  # one endless line
        b",".join(b"L%d" % i for i in range(8000)) + b"\n" + b"\n" * (8 << 20),
        b",".join(b"L%d" % i for i in range(8000))
        + b"\n"
        + b"1," * 7999
        + b"1"
        + b"\n" * 99_999
        + b"1",
        b"II\n" + b"1\n" * 100 + b"0," * (8 << 20),
    ],
)
def test_a_table_of_endless_lines_or_empty_rows_is_refused(data: bytes) -> None:
    with pytest.raises(UnusableError):
        read_table(data, name="r", options=ReadOptions(rate=500.0, unit="mV"))

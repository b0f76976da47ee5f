"""Every layout of WFDB, whole and in stretches, equals wfdb bit for bit."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.errors import UnusableError
from clocs.formats.base import ReadOptions
from clocs.formats.read import read
from clocs.formats.source import open_files, open_source
from clocs.formats.wfdb import WFDB, read_wfdb
from clocs.formats.wfdb_signals import decode, samples_in
from clocs.recording import STANDARD_LEADS, Gap
from own_files import walk
from plain_wfdb import write_record
from wfdb_files import RNG, bytes_of, signals, write, write_segments

UNPACKED = ["8", "16", "24", "32", "61", "80", "160", "212", "310", "311"]
PACKED = ["508", "516", "524"]


def write_bytes(folder: Path, fmt: str, signals: int, samples: int) -> Path:
    """A record of random bytes, which wfdb does not write in every format."""
    data = RNG.integers(0, 256, bytes_of(fmt, signals * samples), np.uint8)
    if fmt == "311":
        data[3::4] &= 0x3F  # two bits that are not used
    if fmt == "32":
        data[3::4] = np.where(data[2::4] > 127, 255, 0)  # no more than 24 bits are plausible
    gain = 1_000_000 if fmt in ("24", "32") else 1000
    (folder / "r.dat").write_bytes(data.tobytes())
    lines = [f"r {signals} 500 {samples}"]
    lines += [f"r.dat {fmt} {gain}/mV 16 0 {7 * i} 0 0 V{i + 1}" for i in range(signals)]
    (folder / "r.hea").write_text("\n".join(lines) + "\n")
    return folder / "r.hea"


def theirs(header: Path, **options: Any) -> np.ndarray[Any, Any]:
    """(signals, samples) as wfdb gives them, without averaging the samples of a frame."""
    record = wfdb.rdrecord(str(header.with_suffix("")), smooth_frames=False, **options)
    return np.stack(record.e_p_signal)


@pytest.mark.parametrize("fmt", UNPACKED)
@pytest.mark.parametrize(("count", "samples"), [(1, 700), (2, 701), (3, 334)])
def test_random_bytes_of_every_format_equal_wfdb(
    tmp_path: Path, fmt: str, count: int, samples: int
) -> None:
    header = write_bytes(tmp_path, fmt, count, samples)
    expected, ours = theirs(header), read(header)
    wide = fmt in ("24", "32")
    assert ours.leads == tuple(f"V{i + 1}" for i in range(count))
    np.testing.assert_allclose(ours.signal, expected, atol=5.1e-4 if wide else 0, rtol=0)
    assert ours.digital.flags.c_contiguous


@pytest.mark.parametrize("fmt", [*UNPACKED, *PACKED])
def test_a_stretch_equals_that_of_the_whole(tmp_path: Path, fmt: str) -> None:
    if fmt in PACKED:
        header = write(tmp_path, signals() // 32, fmt)
    else:
        header = write_bytes(tmp_path, fmt, 3, 700)
    whole, wide = read(header), fmt in ("24", "32")
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "r.hea", "r.hea")
        archive.write(tmp_path / "r.dat", "r.dat")
    for source in (open_files(tmp_path), open_source(tmp_path / "all.zip")):
        for start, stop in [(0.0, 0.5), (0.002, 0.71), (0.334, None), (1.3, 9.0)]:
            part = read_wfdb(source, "r.hea", ReadOptions(start=start, stop=stop))
            first, last = round(start * 500), round(min(stop or 1.4, 1.4) * 500)
            wanted = whole.signal[:, first:last]
            np.testing.assert_allclose(part.signal, wanted, atol=1e-3 if wide else 0, rtol=0)
        with pytest.raises(UnusableError, match="none after 2 s"):
            read_wfdb(source, "r.hea", ReadOptions(start=2.0))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(UNPACKED),
    st.binary(min_size=60, max_size=200),
    st.integers(0, 30),
    st.integers(1, 30),
)
def test_samples_do_not_depend_on_where_reading_starts(
    fmt: str, data: bytes, start: int, count: int
) -> None:
    held = samples_in(fmt, len(data))
    assert bytes_of(fmt, held) <= len(data)
    start = min(start, held - 1)
    count = min(count, held - start)
    whole = decode(fmt, lambda at, size: data[at : at + size], 0, held)
    part = decode(fmt, lambda at, size: data[at : at + size], start, count)
    assert np.array_equal(part, whole[start : start + count])


@pytest.mark.parametrize(
    ("leads", "rate", "gain", "comments"),
    [
        (("I", "II", "V5"), 100, 1000.0, ()),
        (STANDARD_LEADS, 500.0, 204.8, ("Age: 74", "Dx: 426783006,164889003")),
        (("MLII",), 257.5, 200.0, ("Höhn",)),
    ],
)
def test_records_of_other_tests_are_as_wfdb_writes_them(
    tmp_path: Path, leads: tuple[str, ...], rate: float, gain: float, comments: tuple[str, ...]
) -> None:
    n = len(leads)
    digital = walk(1200, n, 0)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    wfdb.wrsamp(
        "r", fs=rate, units=["mV"] * n, sig_name=list(leads), fmt=["16"] * n, d_signal=digital,
        adc_gain=[gain] * n, baseline=[0] * n, comments=list(comments), write_dir=str(theirs),
    )  # fmt: skip
    write_record(ours, "r", digital, leads, rate=rate, gain=[gain] * n, comments=comments)
    for name in ("r.hea", "r.dat"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()


def test_a_half_hour_as_mit_bih_publishes_it_equals_wfdb(tmp_path: Path) -> None:
    wave = np.sin(np.arange(650_000) / 40)[:, None] * [900, 400] + [1024, 1000]
    wfdb.wrsamp(
        "100", fs=360, d_signal=wave.astype(np.int64), fmt=["212"] * 2, units=["mV"] * 2,
        sig_name=["MLII", "V5"], adc_gain=[200.0] * 2, baseline=[1024] * 2, write_dir=str(tmp_path),
        comments=["69 M 1085 1629 x1", "Aldomet, Inderal"],
    )  # fmt: skip
    ours = read(tmp_path / "100.hea")
    assert np.array_equal(ours.signal, wfdb.rdrecord(str(tmp_path / "100")).p_signal.T)
    assert ours.leads == ("II", "V5")
    assert ours.extra["leads"] == "II is MLII"
    assert (ours.age, ours.sex) == (69.0, "male")


def test_signals_keep_their_own_rate_and_slower_ones_are_named(tmp_path: Path) -> None:
    frames = RNG.integers(-3000, 3000, (400, 9))
    (tmp_path / "r.dat").write_bytes(frames.astype("<i2").tobytes())
    header = tmp_path / "r.hea"
    header.write_text(
        "r 3 125 400\nr.dat 16x4 200/mV 16 0 0 0 0 II\nr.dat 16x4 200/mV 16 0 0 0 0 V1\n"
        "r.dat 16x1 200/mV 16 0 0 0 0 slow\n"
    )
    ours = read(header)
    assert ours.rate == 500.0
    assert ours.leads == ("II", "V1")
    assert ours.extra["notice"] == "Signals of another kind or rate are left out: slow."
    record = wfdb.rdrecord(str(tmp_path / "r"), smooth_frames=False)
    assert np.array_equal(ours.signal, np.stack(record.e_p_signal[:2]))
    slow = read(header, leads=["slow"])
    assert slow.rate == 125.0
    assert np.array_equal(slow.signal[0], record.e_p_signal[2])


@pytest.mark.parametrize("gain", [500.0, 250.0])
def test_gaps_and_leads_that_some_segments_lack_are_gaps(tmp_path: Path, gain: float) -> None:
    header = write_segments(tmp_path, gain=gain)
    ours, expected = read(header), wfdb.rdrecord(str(tmp_path / "r"), m2s=True)
    assert ours.leads == ("I", "II", "V1")
    assert ours.gaps == (Gap(300, 700, "I"), Gap(300, 400, "II"), Gap(0, 400, "V1"))
    np.testing.assert_allclose(
        ours.signal, expected.p_signal.T, atol=0 if gain == 500.0 else 1e-3, rtol=0
    )
    (part,) = WFDB.parts(open_files(tmp_path), "r.hea", ReadOptions())
    assert part.seconds == 1.4


def test_a_stretch_of_segments_reads_only_those_that_it_touches(tmp_path: Path) -> None:
    header = write_segments(tmp_path)
    whole = read(header).signal
    (tmp_path / "s1.dat").unlink()
    part = read_wfdb(open_files(tmp_path), "r.hea", ReadOptions(start=0.7, stop=1.0))
    assert part.leads == ("II", "V1")
    assert part.extra["leads without values"] == "I"
    assert np.array_equal(part.signal, whole[1:, 350:500], equal_nan=True)
    with pytest.raises(UnusableError, match="nan: "):
        read_wfdb(open_files(tmp_path), "r.hea", ReadOptions(start=0.65, stop=0.7))


def test_segments_that_are_longer_than_their_files_are_truncated(tmp_path: Path) -> None:
    header = write_segments(tmp_path)
    header.write_text("r/2 2 500 700\ns1 400\ns2 300\n")
    with pytest.raises(UnusableError, match=r"truncated: s1\.hea has 300 of 400 samples"):
        read(header)


def test_a_file_that_edf_programs_wrote_is_read_behind_its_header(tmp_path: Path) -> None:
    frames = RNG.integers(-3000, 3000, (20, 2, 256))
    (tmp_path / "r.edf").write_bytes(b"0" * 768 + frames.astype("<i2").tobytes())
    line = "r.edf 16x256+768 200/uV 16 0 0 0 0 "
    (tmp_path / "r.hea").write_text(f"r 2 1 20\n{line}ECG I\n{line}ECG II\n")
    ours = read(tmp_path / "r.hea")
    assert (ours.rate, ours.leads) == (256.0, ("I", "II"))
    np.testing.assert_allclose(ours.signal, frames.transpose(1, 0, 2).reshape(2, -1) / 200_000)


def test_leads_are_renamed_as_the_user_says(tmp_path: Path) -> None:
    header = write(tmp_path, signals(), sig_name=["EKG1", "MLII", "x"])
    assert read(header).leads == ("EKG1", "II", "x")
    assert read(header).extra["leads"] == "II is MLII"
    assert read(header, lead_names={"EKG1": "V1", "X": "V2"}).leads == ("V1", "II", "V2")


@pytest.mark.parametrize("segmented", [False, True])
def test_two_signals_of_one_unknown_name_stay_two(tmp_path: Path, segmented: bool) -> None:
    digital = signals(300, 2) // 2
    digital[0] = digital[-1] = 5
    write(tmp_path, digital, "212", sig_name=["ECG", "other"])
    text = (tmp_path / "r.hea").read_text().splitlines()
    (tmp_path / "r.hea").write_text("\n".join([text[0], text[1], text[1]]) + "\n")
    name = "r.hea"
    if segmented:
        name = "all.hea"
        (tmp_path / name).write_text("all/2 2 500 400\nr 300\n~ 100\n")
    ours = read(tmp_path / name)
    assert ours.leads == ("ECG", "ECG 2")
    assert np.array_equal(ours.digital[:, :300], digital.T)

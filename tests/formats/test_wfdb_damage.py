"""Damaged WFDB records get a reason, and never let a raw error out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.errors import ClocsError, UnusableError
from clocs.formats.read import read
from clocs.formats.source import open_files
from clocs.formats.wfdb import read_wfdb, refuse_missing
from clocs.formats.wfdb_signals import MISSING
from clocs.recording import Gap
from wfdb_files import assert_equals_wfdb, signals, write


def test_skewed_signals_lose_their_end(tmp_path: Path) -> None:
    header = write(tmp_path, signals())
    header.write_text(header.read_text().replace(" 16 ", " 16:2 ", 1))
    assert read(header).gaps == (Gap(698, 700, "I"),)
    theirs = wfdb.rdrecord(str(tmp_path / "r")).p_signal.T
    np.testing.assert_array_equal(read(header).signal, theirs)


def test_a_signal_that_is_no_voltage_is_left_out_with_a_notice_unless_chosen(
    tmp_path: Path,
) -> None:
    header = write(tmp_path, signals(), units=["mV", "mmHg", "mV"], sig_name=["I", "ABP", "V1"])
    recording = read(header)
    assert recording.leads == ("I", "V1")
    assert recording.extra["notice"] == "Signals of another kind or rate are left out: ABP."
    assert read(header, leads=["ABP"]).unit == "mixed"
    header.write_text(header.read_text().replace("/mV", "/mmHg"))
    with pytest.raises(UnusableError, match=r"r\.hea: none of its signals is an ECG"):
        read(header)


@pytest.mark.parametrize("fmt", ["16", "516", "212", "80", "24"])
def test_missing_samples_are_gaps(tmp_path: Path, fmt: str) -> None:
    digital = signals() // 30
    digital[5:7, 1] = digital[9, 0] = MISSING[fmt]
    digital[:, 2] = MISSING[fmt]
    header = write(tmp_path, digital, fmt)
    recording = read(header)
    assert recording.gaps == (Gap(9, 10, "I"), Gap(5, 7, "II"))
    assert recording.leads == ("I", "II")
    assert recording.extra["leads without values"] == "aVR"
    theirs = wfdb.rdrecord(str(tmp_path / "r")).p_signal.T
    np.testing.assert_array_equal(recording.signal, theirs[:2])
    with pytest.raises(UnusableError, match="nan: r has samples marked as missing"):
        refuse_missing(recording)


def test_a_record_of_missing_samples_alone_is_refused(tmp_path: Path) -> None:
    header = write(tmp_path, np.full((700, 2), -32768))
    with pytest.raises(UnusableError, match=r"nan: r\.hea has no value in any lead"):
        read(header)


@pytest.mark.parametrize("fmt", ["16", "516", "212"])
def test_less_than_the_header_says_is_truncated(tmp_path: Path, fmt: str) -> None:
    header = write(tmp_path, signals() // 2, fmt)
    header.write_text(header.read_text().replace(" 700", " 701"))
    with pytest.raises(UnusableError) as caught:
        read(header)
    assert caught.value.reason == "truncated"


def test_more_than_the_header_says_is_cut_and_no_length_is_taken_from_the_file(
    tmp_path: Path,
) -> None:
    header = write(tmp_path, signals())
    text = header.read_text()
    header.write_text(text.replace(" 700", " 600"))
    assert_equals_wfdb(header)
    header.write_text(text.replace(" 700", ""))
    assert_equals_wfdb(header)
    assert read(header).samples == 700


@pytest.mark.parametrize("fmt", ["16", "212", "516"])
@pytest.mark.parametrize("count", ["", " 0"])
def test_a_header_may_leave_the_length_to_the_file(tmp_path: Path, fmt: str, count: str) -> None:
    digital = signals() // 2
    header = write(tmp_path, digital, fmt)
    header.write_text(header.read_text().replace(" 700", count))
    assert np.array_equal(read(header).digital, digital.T)


def test_a_header_without_its_signal_file_is_unreadable_by_name(tmp_path: Path) -> None:
    header = write(tmp_path, signals())
    (tmp_path / "r.dat").unlink()
    with pytest.raises(UnusableError, match=r"r\.hea names r\.dat, which is not beside it"):
        read(header)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["16", "516", "212"]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6),
    st.integers(0, 40),
)
def test_no_mutation_of_a_record_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory,
    fmt: str,
    in_header: list[tuple[int, int]],
    in_signal: list[tuple[int, int]],
    cut: int,
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    write(folder, np.arange(600).reshape(300, 2) % 997, fmt)
    for name, changes in (("r.hea", in_header), ("r.dat", in_signal)):
        data = bytearray((folder / name).read_bytes())
        for place, value in changes:
            data[place % len(data)] = value
        (folder / name).write_bytes(bytes(data[: len(data) - cut]))
    try:
        recording = read_wfdb(open_files(folder), "r.hea")
    except ClocsError as error:
        assert "\n" not in str(error)
    else:
        assert recording.samples
        assert recording.gaps or np.isfinite(recording.signal).all()

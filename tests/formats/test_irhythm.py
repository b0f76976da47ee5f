"""The iRhythm reader: raw samples, episodes, and what is wrong with bad files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocs.errors import SourceError, UnknownRateError, UnusableError
from clocs.formats.clinical import read_ecg, read_episodes
from clocs.formats.read import find_recordings, read, read_several
from clocs.recording import Episode


@given(st.lists(st.integers(-32768, 32767), min_size=1, max_size=50))
def test_samples_survive_the_round_trip_and_are_never_called_millivolts(samples: list[int]) -> None:
    recording = read_ecg(np.array(samples, "<i2").tobytes(), name="x")
    assert recording.digital.tolist() == [samples]
    assert recording.signal.tolist() == [samples]
    assert (recording.unit, recording.rate, recording.leads) == ("adu", 200.0, ("ECG",))


@pytest.mark.parametrize("data", [b"", b"123"])
def test_half_a_sample_is_truncated(data: bytes) -> None:
    with pytest.raises(UnusableError, match="truncated: x has"):
        read_ecg(data, name="x")


def test_onset_is_one_based_and_offset_inclusive() -> None:
    rows = [
        {"onset": 101, "offset": 200, "rhythm_name": "AFL"},
        {"onset": 1, "offset": 100, "rhythm_name": "NSR"},
    ]
    episodes = read_episodes(json.dumps({"episodes": rows}).encode(), name="x")
    assert episodes == (Episode(0, 100, "NSR"), Episode(100, 200, "AFL"))


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"\xff", b'{"episodes": 3}', b'{"episodes": [{"onset": 1}]}',
     b'{"episodes": [{"onset": 0, "offset": 5, "rhythm_name": "NSR"}]}',
     b'{"episodes": [{"onset": 9, "offset": 5, "rhythm_name": "NSR"}]}',
     b'{"episodes": [{"onset": 1e999, "offset": 5, "rhythm_name": "NSR"}]}'],
)  # fmt: skip
def test_what_is_no_list_of_episodes_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnusableError, match="unreadable: x"):
        read_episodes(data, name="x")


def contec(samples: int = 2000) -> bytes:
    """As an ECG90A writes it: a header of 43 bytes, then eight leads, interleaved, 12 bits."""
    head = b"0000037\0\0\x002020-11-15 12:59:50\0\0\0Jane\0\0\0\0\1\x36\x49"
    return head + np.full((samples, 8), 2048, "<i2").tobytes()


@pytest.mark.parametrize(
    "data", [contec(), b"hello\n", b"", np.arange(6000, dtype="<i2").tobytes()]
)
def test_an_ecg_file_without_a_signature_is_no_recording(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.ecg").write_bytes(data)
    with pytest.raises(UnusableError, match=r"x is no ISHNE file.* dataset cardiology"):
        read(tmp_path / "x.ecg")
    ((name, error),) = read_several(find_recordings([tmp_path]))  # type: ignore[misc]
    assert name.endswith("x.ecg") and "no ISHNE file" in str(error)


def test_a_list_of_numbers_is_no_ecg_by_its_length(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("\n".join(map(str, range(5000))))
    with pytest.raises(UnknownRateError, match="does not say its sampling rate"):
        read(tmp_path / "x.txt")


def test_unknown_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"")
    with pytest.raises(SourceError, match=r"x\.txt is of no known format; known are .*\.csv"):
        read(tmp_path / "x.txt")
    with pytest.raises(SourceError, match=r"y\.csv does not exist"):
        read(tmp_path / "y.csv")
    (tmp_path / "z.dat").write_bytes(b"")
    with pytest.raises(SourceError, match=r"z\.dat has no header z\.hea beside it"):
        read(tmp_path / "z.dat")

"""The iRhythm reader: raw samples, episodes, and what is wrong with bad files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocs.errors import SourceError, UnusableError
from clocs.formats.irhythm import read_ecg, read_episodes
from clocs.formats.read import read
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


def test_read_takes_ecg_files_by_suffix_and_refuses_unknown_ones(tmp_path: Path) -> None:
    (tmp_path / "p_1.ecg").write_bytes(b"\1\0\2\0")
    assert read(tmp_path / "p_1.ecg").digital.tolist() == [[1, 2]]
    (tmp_path / "x.txt").write_bytes(b"")
    with pytest.raises(SourceError, match=r"x\.txt is of no known format; known are .*\.csv"):
        read(tmp_path / "x.txt")
    with pytest.raises(SourceError, match=r"y\.csv does not exist"):
        read(tmp_path / "y.csv")
    (tmp_path / "z.dat").write_bytes(b"")
    with pytest.raises(SourceError, match=r"z\.dat has no header z\.hea beside it"):
        read(tmp_path / "z.dat")


def test_its_lead_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "x.ecg").write_bytes(np.arange(600, dtype="<i2").tobytes())
    assert read(tmp_path / "x.ecg", lead_names={"ecg": "Lead II"}).leads == ("II",)

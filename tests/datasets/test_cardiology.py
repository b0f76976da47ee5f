"""Cardiology: committee episodes become labels in time, and only whole recordings are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from clocs.datasets.base import open_dataset
from clocs.errors import SourceError, UnusableError
from clocs.recording import Episode

RNG = np.random.default_rng(0)


def record(
    folder: Path, name: str, *episodes: tuple[int, int, str], samples: int = 6000, group: int = 0
) -> None:
    signal = RNG.integers(-500, 500, samples).astype("<i2")
    (folder / f"{name}.ecg").write_bytes(signal.tobytes())
    rows = [{"onset": a, "offset": b, "rhythm_name": rhythm} for a, b, rhythm in episodes]
    other = json.dumps({"episodes": [{"onset": 1, "offset": 6000, "rhythm_name": "VT"}]})
    (folder / f"{name}_rev0.episodes.json").write_text(other)
    if rows:
        file = folder / f"{name}_grp{group}.episodes.json"
        file.write_text(json.dumps({"episodes": rows}))


def reason(folder: Path) -> str:
    dataset = open_dataset("cardiology", folder)
    (entry,) = dataset.list().entries
    with pytest.raises(UnusableError) as caught:
        dataset.read(entry)
    return str(caught.value)


def test_committee_episodes_are_merged_and_the_patient_is_before_the_underscore(
    tmp_path: Path,
) -> None:
    record(tmp_path, "abc_0001", (1, 2760, "AFL"), (2761, 6000, "AVB_TYPE2"), group=2)
    dataset = open_dataset("cardiology", tmp_path)
    (entry,) = dataset.list().entries
    recording = dataset.read(entry)
    assert (recording.id, recording.patient, recording.unit) == ("abc_0001", "abc", "adu")
    assert recording.labels == ()
    assert recording.episodes == (Episode(0, 2760, "AFIB"), Episode(2760, 6000, "AVB"))


def test_sudden_bradycardia_stays_as_an_episode_but_not_as_a_label(tmp_path: Path) -> None:
    record(tmp_path, "abc_0001", (1, 5000, "SUDDEN_BRADY"), (5001, 6000, "NSR"))
    dataset = open_dataset("cardiology", tmp_path)
    recording = dataset.read(dataset.list().entries[0])
    assert recording.episodes[0].label == "SUDDEN_BRADY"
    assert "SUDDEN_BRADY" not in dataset.labels


def test_a_recording_whose_frames_are_all_sudden_bradycardia_is_refused(tmp_path: Path) -> None:
    # The last whole frame starts at sample 5632 (0-based): what begins later labels none.
    record(tmp_path, "abc_0001", (1, 5633, "SUDDEN_BRADY"), (5634, 6000, "NSR"))
    assert reason(tmp_path) == "unknown label: the frames of abc_0001 are all SUDDEN_BRADY"


def test_a_recording_without_a_committee_has_no_label(tmp_path: Path) -> None:
    record(tmp_path, "abc_0001")
    assert reason(tmp_path).startswith("no label: abc_0001 has no committee file")


def test_episodes_beyond_the_signal_mean_a_truncated_file(tmp_path: Path) -> None:
    record(tmp_path, "abc_0001", (1, 6000, "NSR"), samples=5000)
    assert reason(tmp_path).startswith("truncated: abc_0001 has 5000 samples, its episodes end")


def test_less_than_one_frame_is_too_short(tmp_path: Path) -> None:
    record(tmp_path, "abc_0001", (1, 255, "NSR"), samples=255)
    assert reason(tmp_path).startswith("too short: abc_0001 has 255 samples (1.27 s), a frame")


def test_two_committees_are_one_too_many(tmp_path: Path) -> None:
    record(tmp_path, "abc_0001", (1, 6000, "NSR"), group=0)
    record(tmp_path, "abc_0001", (1, 6000, "VT"), group=1)
    assert reason(tmp_path).startswith("unknown label: abc_0001 has several committee files")


def test_committee_files_without_a_recording_are_listed(tmp_path: Path) -> None:
    record(tmp_path, "abc_0001", (1, 6000, "NSR"))
    record(tmp_path, "def_0002", (1, 6000, "NSR"))
    (tmp_path / "def_0002.ecg").unlink()
    listing = open_dataset("cardiology", tmp_path).list()
    assert [entry.id for entry in listing.entries] == ["abc_0001"]
    assert listing.rows_without_recording == ("def_0002",)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "MUSE_1.csv").write_text("1\n")
    with pytest.raises(SourceError, match=r"looks like chapman, not cardiology \(\*\.ecg with"):
        open_dataset("cardiology", tmp_path).list()


def test_the_published_zip_gives_313_patients_and_7079_labeled_frames(real_data: Path) -> None:
    dataset = open_dataset("cardiology", real_data / "cardiology" / "CARDIOL_MAY_2017.zip")
    entries = dataset.list().entries
    assert len(entries) == 328
    frames, left_out, patients = 0, 0, set()
    for entry in entries:
        try:
            recording = dataset.read(entry)
        except UnusableError as error:
            assert error.reason == "unknown label"
            continue
        patients.add(recording.patient)
        for start in range(0, recording.samples - 255, 256):
            (label,) = (e.label for e in recording.episodes if e.start <= start < e.stop)
            frames += label in dataset.labels
            left_out += label == "SUDDEN_BRADY"
    assert (len(patients), frames) == (313, 7079)
    assert left_out == 465 - 15 * 23

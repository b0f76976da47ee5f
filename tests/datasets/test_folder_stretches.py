"""Long recordings are cut into hours, and caps keep minutes that are spread over a patient."""

from __future__ import annotations

import numpy as np
import pytest

from clocs.datasets.base import Entry
from clocs.datasets.folder_stretches import Stretch, capped, entry_of, hours_of, stretch_of
from clocs.recording import Episode, Gap, Recording


def hours(seconds: float, name: str = "x", patient: str = "p") -> list[Stretch]:
    return list(hours_of(Entry(name, "", f"{name}.edf"), seconds, patient, cut=True))


def total(stretches: list[Stretch]) -> float:
    return sum(one.seconds for one in stretches)


def test_a_long_recording_is_cut_into_hours_that_keep_its_patient() -> None:
    cut = [entry_of(one, 9000.0) for one in hours(9000.0)]
    assert [one.id for one in cut] == ["x@00:00:00", "x@01:00:00", "x@02:00:00"]
    assert {one.patient for one in cut} == {"p"}
    assert cut[2].info == {"start": "7200.0", "stop": "9000.0", "of": "x"}


def test_an_hour_is_not_cut_nor_is_what_cannot_be() -> None:
    assert [entry_of(one, 3600.0).id for one in hours(3600.0)] == ["x"]
    whole = list(hours_of(Entry("x", "", "x"), 9000.0, "p", cut=False))
    assert [entry_of(one, 9000.0) for one in whole] == [Entry("x", "p", "x")]


def test_a_cap_takes_of_every_hour_alike() -> None:
    kept = capped(hours(24 * 3600.0), cap_minutes=60, most_hours=None)
    assert [one.start for one in kept] == [3600.0 * hour for hour in range(24)]
    assert total(kept) == pytest.approx(3600)
    short = capped(hours(24 * 3600.0), cap_minutes=5, most_hours=None)
    assert [one.start / 3600 for one in short] == [0, 6, 12, 17, 23]
    assert total(short) == pytest.approx(300)


def test_a_patient_below_the_cap_keeps_everything() -> None:
    many = [*hours(1800.0, "a", "p"), *hours(7200.0, "b", "q")]
    kept = capped(many, cap_minutes=40, most_hours=None)
    assert [(one.entry.id, one.seconds) for one in kept] == [("a", 1800), ("b", 1200), ("b", 1200)]


def test_of_a_recording_of_unknown_length_the_first_minutes_are_kept() -> None:
    unknown = Stretch(Entry("x", "", "x"), 0.0, None, "p")
    assert capped([unknown], cap_minutes=2, most_hours=None)[0].stop == 120
    assert capped([unknown], cap_minutes=None, most_hours=5)[0].stop is None


def test_hours_in_all_are_shared_by_the_patients() -> None:
    many = [*hours(600.0, "a", "p"), *hours(7200.0, "b", "q"), *hours(7200.0, "c", "r")]
    kept = capped(many, cap_minutes=None, most_hours=1.0)
    assert total(kept) == pytest.approx(3600)
    assert total([one for one in kept if one.patient == "p"]) == 600


def test_what_lies_in_a_stretch_is_counted_from_its_start() -> None:
    recording = Recording(
        id="x", patient="p", leads=("I", "II"), rate=100.0,
        digital=np.arange(2000, dtype=np.int16).reshape(2, 1000),
        gain=np.ones(2), baseline=np.zeros(2, np.int32),
        episodes=(Episode(0, 300, "SR"), Episode(300, 900, "AF"), Episode(900, 1000, "SR")),
        gaps=(Gap(100, 250, "I"), Gap(700, 720, "II")),
    )  # fmt: skip
    cut = stretch_of(recording, 2.0, 6.0)
    assert cut.digital.tolist() == recording.digital[:, 200:600].tolist()
    assert cut.episodes == (Episode(0, 100, "SR"), Episode(100, 400, "AF"))
    assert cut.gaps == (Gap(0, 50, "I"),)
    assert stretch_of(recording, 0.0, 10.0) is recording

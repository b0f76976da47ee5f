"""Files are embedded like the recordings of a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clocs
from clocs import Checkpoint, Recording, Store
from clocs.errors import ClocsWarning
from clocs.patients.embed import embed_levels, embed_recordings
from clocs.recording import Gap
from own_files import record


def test_recordings_without_any_of_the_leads_or_too_short_are_named(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    whole = [small_store.recording(i) for i in range(3)]
    short = replace(whole[1], digital=whole[1].digital[:, :100])
    bare = whole[2].select(["I", "III"])
    made = embed_recordings(checkpoint, [whole[0], short, bare])
    assert made.rows["recording"].to_list() == [whole[0].id]
    (first, why), (second, because) = made.problems
    assert (first, second) == (short.id, bare.id)
    assert "too short" in why
    assert "has none of the leads II, V2, aVL, aVR; choose from I, III with `leads`" in because
    chosen = embed_recordings(checkpoint, [bare], leads=["I"])
    assert len(chosen) == 1 and not chosen.problems


def test_a_file_with_fewer_leads_is_embedded_from_those_it_has_with_a_notice(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    one, two = (small_store.recording(i) for i in range(2))
    with pytest.warns(ClocsWarning, match=r"1 of 2 recordings, such as .*, lack some of the leads"):
        made = embed_recordings(checkpoint, [one.select(["V2", "I"]), two], level="frame")
    whole = embed_recordings(checkpoint, [one, two], level="frame")
    own = (whole.rows["recording"] != one.id) | (whole.rows["lead"] == "V2")
    about = ["digest", "leads_used", "leads_missing"]
    assert made.rows.drop(about).equals(whole.rows.filter(own).drop(about))
    assert made.rows["leads_used"][0].to_list() == ["V2"]
    assert made.rows["leads_missing"][0].to_list() == ["II", "aVL", "aVR"]
    np.testing.assert_array_equal(made.vectors, whole.vectors[own.to_numpy()])


def test_a_gap_costs_a_file_the_frames_that_it_touches(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    one = small_store.recording(0)
    middle, seconds = one.samples // 2, checkpoint.card.frame.seconds
    holed = replace(one, gaps=(Gap(middle, middle + 3, "V2"),))
    made = embed_recordings(checkpoint, [holed], level="frame")
    whole = embed_recordings(checkpoint, [one], level="frame")
    hit = (whole.rows["lead"] == "V2") & (whole.rows["segment"] == int(middle / one.rate / seconds))
    assert hit.sum() == 1
    assert made.rows.drop("digest").equals(whole.rows.filter(~hit).drop("digest"))
    lost = replace(one, gaps=tuple(Gap(0, one.samples, lead) for lead in one.leads))
    (_, why) = embed_recordings(checkpoint, [lost]).problems[0]
    assert "has no frame" in why


def test_rows_of_files_equal_those_of_the_store(checkpoint: Checkpoint, small_store: Store) -> None:
    stored = embed_levels(checkpoint, small_store, levels=["frame"])["frame"]
    own = stored.rows["recording"].is_in(small_store.table["id"][:3].implode()).to_numpy()
    made = embed_recordings(checkpoint, [small_store.recording(i) for i in range(3)], level="frame")
    np.testing.assert_array_equal(made.vectors, stored.vectors[own])
    same = ["patient", "recording", "segment", "lead", "age", "sex", "digest", "views"]
    assert made.rows.select(same).equals(stored.where(own).rows.select(same))
    assert embed_recordings(checkpoint, []).rows.height == 0


def test_a_recording_gets_the_vector_it_has_in_its_store(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    stored = embed_levels(checkpoint, small_store, levels=["recording"])["recording"]
    made = embed_recordings(checkpoint, [small_store.recording(i) for i in range(5)])
    assert checkpoint.card.frame == small_store.manifest.frame
    np.testing.assert_array_equal(made.vectors, stored.vectors[:5])


def test_a_file_at_another_rate_comes_close_to_the_original(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    import scipy.signal

    one = small_store.recording(0)
    half = scipy.signal.resample(one.signal, one.samples // 2, axis=1)
    slow = Recording(
        id="slow",
        patient="slow",
        leads=one.leads,
        rate=one.rate / 2,
        digital=np.rint(half * 1000).astype(np.int16),
        gain=np.full(len(one.leads), 1000.0),
        baseline=np.zeros(len(one.leads), np.int32),
    )
    made = embed_recordings(checkpoint, [one, slow])
    assert float(made.vectors[0] @ made.vectors[1]) > 0.99


@pytest.fixture
def ward(small_store: Store, tmp_path: Path) -> Path:
    """Three recordings as CSV files: a, b and c."""
    folder = tmp_path / "ward"
    folder.mkdir()
    for i, name in enumerate("abc"):
        one = small_store.recording(i)
        head = f"# rate: {one.rate:g}\n{','.join(one.leads)}"
        microvolts = np.rint(one.signal.T * 1000)
        np.savetxt(
            folder / f"{name}.csv", microvolts, fmt="%d", delimiter=",", header=head, comments=""
        )
    return folder


def test_each_file_is_a_patient_and_a_warning_says_so(checkpoint: Checkpoint, ward: Path) -> None:
    with pytest.warns(ClocsWarning, match="each file counts as one patient.*`clocs prepare"):
        made = clocs.embed(checkpoint, ward)
    assert made.rows["patient"].to_list() == ["a", "b", "c"]


def test_leads_of_files_are_known_by_the_names_that_are_given(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    plain = record(tmp_path / "plain", "r", leads=("II", "V2", "aVL", "aVR"), seconds=20, seed=1)
    odd = record(tmp_path / "odd", "r", leads=("ch1", "ch2", "aVL", "aVR"), seconds=20, seed=1)
    made = clocs.embed(checkpoint, plain, level="recording")
    names = {"ch1": "II", "CH2": "V2"}
    same = clocs.embed(checkpoint, odd, level="recording", lead_names=names)
    np.testing.assert_array_equal(made.vectors, same.vectors)
    with pytest.warns(ClocsWarning, match="lack some of the leads"):
        other = clocs.embed(checkpoint, odd, level="recording")
    assert not np.array_equal(made.vectors, other.vectors)

"""Embedding with an encoder of many leads: one vector per frame, of whichever leads there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clocs
from clocs import Checkpoint, Store
from clocs.errors import ClocsWarning, SettingError
from clocs.explorer.embed_stores import embed_stores
from clocs.explorer.uploads import embed_upload
from clocs.frames.make import make_frames
from clocs.frames.views import Views, instances
from clocs.patients.distances import frame_distances
from clocs.patients.embed import embed_recordings
from clocs.recording import UNNAMED_LEAD, FrameSpec
from clocs.training.embed import embed_instances
from tiny_leads import many_lead_checkpoints, tiny_leads

FRAME = FrameSpec(2.5, 250)
LEADS = ("V2", "I", "V6", "II")


@pytest.fixture(scope="module", autouse=True)
def encoder() -> Iterator[str]:
    with tiny_leads() as name:
        yield name


@pytest.fixture(scope="module")
def many(small_store: Store, encoder: str) -> Checkpoint:
    return many_lead_checkpoints(make_frames(small_store, spec=FRAME, leads=LEADS), (0,))[0]


def test_a_store_gives_one_vector_per_frame_as_training_would(
    many: Checkpoint, small_store: Store
) -> None:
    made = clocs.embed(many, small_store, level="frame", split="test")
    frames = make_frames(small_store, spec=FRAME, leads=LEADS)
    rows = instances(frames, of="lead", views=Views(), split=2, leads_at_once=True)
    expected = embed_instances([many], frames, rows)[0].numpy()
    assert np.allclose(made.vectors, expected, atol=1e-5)
    assert set(made.rows["lead"]) == {"all"} and made.leads == LEADS and made.frame == 2.5
    assert made.rows["segment"].to_list() == frames.segment[rows.frame].tolist()


def test_a_files_leads_are_found_by_name_in_any_order_and_missing_ones_are_absent(
    many: Checkpoint, small_store: Store
) -> None:
    whole = small_store.recording(0)
    few = whole.select(["II", "V2"])
    turned = whole.select(["V2", "II"])
    with pytest.warns(ClocsWarning, match="lack some of the leads"):
        one, other = (
            embed_recordings(many, [given], level="frame").vectors for given in (few, turned)
        )
    assert np.array_equal(one, other)
    assert not np.allclose(one, embed_recordings(many, [whole], level="frame").vectors)
    frames = make_frames(small_store, spec=FRAME, leads=("II", "V2")).for_leads(LEADS)
    rows = instances(frames, of="lead", views=Views(), leads_at_once=True)
    expected = embed_instances([many], frames, rows)[0].numpy()[frames.recording == 0]
    assert np.allclose(one, expected, atol=1e-4)


def test_a_recording_without_any_of_the_leads_is_a_problem_with_a_reason(
    many: Checkpoint, small_store: Store
) -> None:
    lost = small_store.recording(0).select(["aVF"])
    made = embed_recordings(many, [lost])
    assert len(made) == 0 and "has none of the leads V2, I, V6, II" in made.problems[0][1]
    with pytest.raises(SettingError, match="knows no aVF"):
        embed_recordings(many, [lost], leads=["aVF"])
    with pytest.raises(SettingError, match="has none of the leads V2, I, V6, II"):
        embed_upload(many, lost)
    _, vector, notes = embed_upload(many, small_store.recording(0).select(["II"]))
    assert vector is not None and vector.shape == (12,) and "Embedded with II only" in notes[0]


def test_frames_of_other_seconds_keep_the_rate(many: Checkpoint, small_store: Store) -> None:
    made = clocs.embed(many, small_store, level="frame", split="test", frame=5)
    assert made.frame == 5 and len(made) == 2 * made.rows["recording"].n_unique()
    assert made.encoder == many.fingerprint


def test_index_similar_retrieval_and_distances_take_many_leads(
    many: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    clocs.index(many, small_store, out=tmp_path / "index")
    patient = small_store.table["patient"][0]
    assert clocs.similar(tmp_path / "index", patient=patient, k=3).height == 3
    found = clocs.retrieval([many], small_store)[0]
    assert found.halves is not None and found.halves["frame"] == 2.5
    report = clocs.patient_distances(many, small_store)
    assert report.about["frame"] == 2.5
    frames = make_frames(small_store, spec=FRAME, leads=LEADS)
    assert frame_distances(many, frames).separability == pytest.approx(
        report.separability, abs=1e-3
    )


def test_the_explorer_embeds_stores_with_many_leads(
    many: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    many.save(tmp_path / "seed-0.safetensors")
    stores = [small_store]
    patients, distances = embed_stores(tmp_path / "seed-0.safetensors", stores)
    assert len(patients) == small_store.table["patient"].n_unique() and patients.frame == 2.5
    assert len(distances.inter)


def test_the_transformer_takes_the_leads_that_x_has(many: Checkpoint, small_store: Store) -> None:
    pytest.importorskip("sklearn")
    from clocs.models.clocs_encoder import ClocsEncoder

    signal = np.stack([small_store.recording(i).select(["II", "I"]).signal for i in range(3)])
    made = ClocsEncoder(checkpoint=many, rate=500, leads=("II", "I")).fit(signal)
    vectors = made.transform(signal)
    assert vectors.shape == (3, 12) and np.isfinite(vectors).all()
    named = ClocsEncoder(checkpoint=many, rate=500, leads=("a", "b")).fit(signal)
    with pytest.raises(ValueError, match="none of them"):
        named.transform(signal)


def test_a_torch_dataset_can_be_standardized(small_store: Store) -> None:
    item = clocs.torch_dataset(small_store, normalize="standardized")[0]["signal"]
    assert np.allclose(item.mean(dim=-1), 0, atol=1e-4)
    assert np.allclose(item.std(dim=-1, correction=0), 1, atol=1e-3)
    with pytest.raises(SettingError, match="`normalize` is 'mean'"):
        clocs.torch_dataset(small_store, normalize="mean")  # type: ignore[arg-type]


def test_the_figure_of_similarities_is_for_encoders_of_one_lead(
    many: Checkpoint, small_store: Store
) -> None:
    from clocs.figures.draw import show_similarity

    frames = make_frames(small_store, spec=FRAME, leads=LEADS)
    with pytest.raises(SettingError, match="sees V2, I, V6, II at once"):
        show_similarity(many, frames)


def test_a_single_lead_without_a_name_is_embedded_as_lead_ii(
    many: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    known = small_store.recording(0).select(["II"])
    unnamed = replace(known, leads=(UNNAMED_LEAD,))
    with pytest.warns(ClocsWarning, match="lack some of the leads"):
        expected, found = (
            embed_recordings(many, [one], level="frame").vectors for one in (known, unnamed)
        )
    assert np.array_equal(found, expected)
    signal = known.signal.astype(np.float32)[None]
    store = clocs.from_arrays(signal, patients=["a"], rate=known.rate, leads=[UNNAMED_LEAD],
                              out=tmp_path / "store")  # fmt: skip
    with pytest.warns(ClocsWarning, match="read from ECG alone"):
        vectors = clocs.embed(many, store, level="frame").vectors
    assert np.allclose(vectors, expected, atol=1e-2)  # the samples are rounded once more

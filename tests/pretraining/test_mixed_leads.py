"""Recordings with other leads and with gaps are learned from, evaluated and embedded alike."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clocs
from clocs import Store
from clocs.errors import ClocsWarning
from clocs.frames.make import make_frames
from clocs.frames.views import Views, instances
from clocs.recording import FrameSpec, Gap, Recording
from clocs.store.prepare import prepare
from clocs.training import Settings
from fake_dataset import FakeDataset

FRAME = FrameSpec(2.5, 512)
ONE_EPOCH = Settings(epochs=1, patience=1, batch_size=16)


def changed(number: int, recording: Recording) -> Recording:
    recording = replace(recording, episodes=())
    if number % 4 == 0:
        return recording.select(["aVR", "II"])
    if number % 4 == 1:
        return replace(recording, gaps=(Gap(100, 1400, "V2"),))
    return recording


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = FakeDataset(count=60, change=changed, frame=FRAME, segment_frame=FRAME)
    return prepare(made, out=tmp_path_factory.mktemp("mixed") / "store")


@pytest.mark.parametrize("method", ["cmsc", "simclr", "cmlc", "cmsmlc"])
def test_every_kind_of_method_learns_from_recordings_with_fewer_leads(
    mixed: Store, method: str, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ClocsWarning)
        made = clocs.pretrain(
            mixed, method=method, out=tmp_path, settings=ONE_EPOCH, device="cpu", embedding_dim=8
        )
    assert made[0].card.metrics["validation_loss"] is not None  # it is finite
    said = [str(one.message) for one in caught if "frames lack one of" in str(one.message)]
    frames = make_frames(mixed)
    lacking = int((~frames.present.all(axis=1)).sum())
    expected = f"{lacking:,} of {len(frames):,} frames lack one of II, V2, aVL, aVR"
    assert [expected in one for one in said] == ([True] if method in ("cmlc", "cmsmlc") else [])


def test_signals_streamed_to_the_device_give_the_same_weights(mixed: Store, tmp_path: Path) -> None:
    from clocs.pretraining.plan import Plan
    from clocs.pretraining.pretrain import pretrain_frames

    frames, plan = make_frames(mixed), Plan("cmsc", embedding_dim=8, settings=ONE_EPOCH)
    whole, streamed = (
        pretrain_frames(frames, plan, tmp_path / str(stream), stream=stream)[0]
        for stream in (False, True)
    )
    for name, weights in whole.weights.items():
        np.testing.assert_array_equal(weights.numpy(), streamed.weights[name].numpy())


def test_a_mixed_store_is_evaluated_and_embedded_from_the_leads_it_has(
    mixed: Store, tmp_path: Path
) -> None:
    made = clocs.pretrain(mixed, out=tmp_path, settings=ONE_EPOCH, device="cpu", embedding_dim=8)
    found = clocs.evaluate(made, mixed, settings=ONE_EPOCH, resamples=0, device="cpu")
    frames = make_frames(mixed)
    assert found.test_frames == int(frames.present[frames.split == 2].sum())
    assert np.isfinite(found.auc_mean)
    embedded = clocs.embed(made[0], mixed, level="frame", device="cpu")
    assert len(embedded) == int(frames.present.sum())
    own = dict(zip(mixed.table["id"], mixed.table["leads"].to_list(), strict=True))
    pairs = zip(embedded.rows["recording"], embedded.rows["lead"], strict=True)
    assert all(lead in own[name] for name, lead in pairs)
    assert any("lack some of the leads" in words for _, words in embedded.problems)
    distances = clocs.patient_distances(made[0], mixed, split="all", device="cpu")
    assert np.isfinite(distances.intra).all()


def test_counts_of_info_are_those_of_the_instances(mixed: Store) -> None:
    from clocs.models.describe import store_facts

    frames, facts = make_frames(mixed), store_facts(mixed)
    assert facts["frames"] == int(frames.present.sum())
    pairs = instances(frames, of="lead", views=Views(segments=2))
    together = instances(frames, of="frame", views=Views(segments=2, all_leads=True))
    assert facts["instances"]["cmsc"]["total"] == len(pairs)
    assert facts["instances"]["cmsmlc"]["total"] == len(together)
    assert facts["recordings_with_gaps"] == int((mixed.table["gaps"].list.len() > 0).sum())

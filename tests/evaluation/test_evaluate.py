"""`clocs.evaluate`: which leads, which checkpoints, and what becomes of its predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import clocs
from clocs.errors import CheckpointError, ClocsWarning, SettingError, TrainingError
from clocs.frames.make import make_frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.store.store import Store
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def one_lead(small_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    frames = make_frames(small_store, leads=["II"])
    return pretrain_frames(frames, Plan("random-bn", (0,)), tmp_path_factory.mktemp("one"))[0]


def trained_on(checkpoint: Checkpoint, *leads: str) -> Checkpoint:
    return replace(checkpoint, card=replace(checkpoint.card, leads=leads, weights_sha256=""))


def test_an_encoder_is_evaluated_on_the_leads_it_was_trained_on(
    one_lead: Checkpoint, small_store: Store
) -> None:
    found = clocs.evaluate(one_lead, small_store, protocol="knn", resamples=0)
    assert found.leads == found.encoder_leads == ["II"]
    found = clocs.evaluate(one_lead, small_store, protocol="knn", leads=["V2"], resamples=0)
    assert (found.leads, found.encoder_leads) == (["V2"], ["II"])


def test_encoders_of_different_leads_are_compared_only_on_given_leads(
    one_lead: Checkpoint, checkpoint: Checkpoint, small_store: Store
) -> None:
    with pytest.raises(SettingError, match=r"different leads .*: II; .*: II, V2, aVL, aVR"):
        clocs.evaluate_many([one_lead, checkpoint], small_store, protocol="knn")
    found = clocs.evaluate_many(
        [one_lead, checkpoint], small_store, protocol="knn", leads=["II"], resamples=0
    )
    assert {tuple(one.evaluation.leads) for one in found} == {("II",)}


def test_a_store_without_the_leads_of_the_encoder_is_evaluated_on_its_own(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    elsewhere = trained_on(checkpoint, "ECG")
    with pytest.warns(ClocsWarning, match=r"\(ECG\): it is evaluated on II, V2, aVL, aVR"):
        found = clocs.evaluate(elsewhere, small_store, protocol="knn", resamples=0)
    assert found.leads == ["II", "V2", "aVL", "aVR"]
    assert found.auc == clocs.evaluate(checkpoint, small_store, protocol="knn", resamples=0).auc


def test_epochs_and_learning_rate_are_keywords(checkpoint: Checkpoint, small_store: Store) -> None:
    found = clocs.evaluate(checkpoint, small_store, epochs=1, lr=1e-2, resamples=0)
    assert (found.settings["epochs"], found.settings["lr"]) == (1, 1e-2)
    assert found.settings["batch_size"] == small_store.manifest.batch_size
    with pytest.raises(SettingError, match="give `settings` or `epochs`, not both"):
        clocs.evaluate(checkpoint, small_store, epochs=1, settings=Settings())


def test_the_same_checkpoint_twice_is_refused(checkpoint: Checkpoint, small_store: Store) -> None:
    for given in ([checkpoint, checkpoint], [[checkpoint, checkpoint]]):
        with pytest.raises(SettingError, match="the same checkpoint is given twice"):
            clocs.evaluate_many(given, small_store)


def test_predictions_joined_with_the_table_of_the_store_give_the_labels(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    found = clocs.evaluate_many([checkpoint], small_store, protocol="knn", resamples=0)[0]
    rows = found.predictions
    frame = pl.DataFrame(rows.columns())
    assert frame.select("recording", "frame", "lead").is_unique().all()
    joined = frame.join(small_store.table, left_on="recording", right_on="id", how="left")
    assert joined["patient"].to_list() == joined["patient_right"].to_list()
    targets = [[label in labels for label in rows.labels] for labels in joined["labels"]]
    assert np.array_equal(np.array(targets), rows.targets)
    assert set(frame["lead"]) == {"II", "V2", "aVL", "aVR"}
    assert set(frame["frame"]) == {0, 1}


@pytest.mark.parametrize("protocol", ["linear", "finetune"])
def test_a_classifier_that_diverged_is_an_error_not_a_score(
    checkpoint: Checkpoint, small_store: Store, protocol: str
) -> None:
    epochs: list[int] = []
    with pytest.raises(TrainingError, match=r"random-bn, seed 0.* diverged.*try a lower `lr`"):
        clocs.evaluate(
            checkpoint,
            small_store,
            protocol=protocol,
            epochs=5,
            lr=float("inf"),
            on_epoch=lambda epoch: epochs.append(epoch.number),
        )
    assert epochs == [1]


@pytest.mark.parametrize("protocol", ["linear", "linear-converged", "finetune", "knn"])
def test_an_encoder_whose_embeddings_overflow_gets_no_score(
    checkpoint: Checkpoint, small_store: Store, protocol: str
) -> None:
    weights = {name: tensor * 1e38 for name, tensor in checkpoint.weights.items()}
    huge = replace(checkpoint, weights=weights)
    with pytest.raises((CheckpointError, TrainingError), match="finite"):
        clocs.evaluate(huge, small_store, protocol=protocol, epochs=2)

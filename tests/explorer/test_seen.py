"""Predictions for patients that a classifier was trained on say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from accessibility import violations
from clocs import Store
from clocs.explorer.predictions import SavedClassifiers, ShownRecording, seen_notice
from clocs.explorer.session import Session
from clocs.frames.make import make_frames
from clocs.training.checkpoint import Checkpoint, hashed_recordings, load_checkpoint
from explorer.conftest import serving
from some_classifier import some_classifier


@pytest.fixture(scope="module")
def trained(small_store: Store, encoder: Path) -> Checkpoint:
    """An encoder whose card says that it was trained on this store."""
    from clocs.training.card import TrainedOn

    loaded, frames = load_checkpoint(encoder), make_frames(small_store)
    on = (TrainedOn(frames.dataset, frames.split_seed, frames.content),)
    card = replace(loaded.card, trained_on=on, salt="00")
    return replace(loaded, card=card, recordings=hashed_recordings(frames, "00", [0, 1]))


def test_training_and_validation_patients_are_known_and_test_patients_are_not(
    session: Session, trained: Checkpoint
) -> None:
    rows = session.embeddings.rows
    for row, code in enumerate(session.codes):
        notice = seen_notice([trained], session.source(code, 0)) or ""
        upload = ShownRecording(session.recording(code, 0))  # known by its samples alone
        copied = seen_notice([trained], upload) or ""
        was_seen = rows["split"][row] != "test"
        assert ("trained or tuned on this patient" in notice) == was_seen == bool(notice)
        assert ("with the same samples" in copied) == was_seen == bool(copied)
    assert set(rows["split"]) == {"train", "validation", "test"}
    other = session.recording(session.codes[0], 0)
    flipped = replace(other, digital=np.ascontiguousarray(other.digital[:, ::-1]))
    assert seen_notice([trained], ShownRecording(flipped, "another", "P00001")) is None


def test_the_notice_is_shown_with_the_prediction(
    new_page: Callable[..., Page], session: Session, trained: Checkpoint
) -> None:
    models = SavedClassifiers([some_classifier(trained)])
    splits = session.embeddings.rows["split"].to_list()
    with serving(replace(session, models=models)) as served:
        page = new_page(viewport={"width": 390, "height": 844})
        for part in ("train", "validation", "test"):
            page.goto(f"{served.url}/?patient={session.codes[splits.index(part)]}")
            expect(page.locator("#predictions .bars")).to_be_visible()
            notice = page.locator("#predictions .seen")
            expect(notice).to_have_count(0 if part == "test" else 1)
            if part == "validation":
                expect(notice).to_contain_text("trained or tuned on this patient")
                page.wait_for_selector("html[data-ready=all]")
                assert violations(page) == []

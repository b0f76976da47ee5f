"""Eight leads, as GE MUSE stores them, are twelve wherever an encoder chooses its leads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clinical_files as files
import clocs
from clocs import Checkpoint
from clocs.frames.make import make_frames
from clocs.patients.embed import embed_recordings
from clocs.recording import LIMB_LEADS, STANDARD_LEADS, Gap, Recording

EIGHT = tuple(lead for lead in STANDARD_LEADS if lead not in LIMB_LEADS)


@pytest.fixture
def muse(tmp_path: Path) -> Path:
    steps = np.random.default_rng(4).integers(-9, 10, (8, 5000)).cumsum(axis=1).clip(-3000, 3000)
    path = tmp_path / "data" / "muse.xml"
    path.parent.mkdir()
    path.write_text(files.muse(steps.astype(np.int16), EIGHT, microvolts=4.88))
    return path


def twelve(eight: Recording) -> Recording:
    """The same with all leads, by the formulas, in half steps."""
    one, two = eight.digital[:2].astype(int)
    limbs = (2 * (two - one), -one - two, 2 * one - two, 2 * two - one)
    digital = np.concatenate([2 * eight.digital[:2], np.stack(limbs), 2 * eight.digital[2:]])
    gain = np.full(12, 2 * eight.gain[0])
    zero = np.zeros(12, np.int32)
    return replace(
        eight, leads=STANDARD_LEADS, digital=digital.astype(np.int16), gain=gain, baseline=zero
    )


def test_leads_chosen_of_a_recording_are_derived_exactly(muse: Path) -> None:
    eight = clocs.read(muse)
    assert eight.leads == EIGHT  # what was recorded
    whole = clocs.read(muse, leads=STANDARD_LEADS)
    np.testing.assert_allclose(whole.signal, twelve(eight).signal, atol=1e-12)
    off = replace(eight, gaps=(Gap(100, 200, "II"),)).select(["V1", "aVF"])
    assert off.gaps == (Gap(100, 200, "aVF"),) and np.isnan(off.signal[1, 100:200]).all()
    flat = replace(eight, digital=np.where(np.arange(8)[:, None] == 0, 7, eight.digital))
    assert flat.with_limb_leads() is flat  # the electrode of I was off


def test_an_encoder_sees_the_same_of_eight_leads_as_of_twelve(
    muse: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    eight = clocs.read(muse)
    wanted = embed_recordings(checkpoint, [twelve(eight)]).vectors
    np.testing.assert_allclose(embed_recordings(checkpoint, [eight]).vectors, wanted, atol=1e-5)
    store = clocs.prepare("folder", muse.parent, out=tmp_path / "store")
    assert store.leads == EIGHT and store.choose_leads() == EIGHT
    made = clocs.embed(checkpoint, store, level="recording", frame=checkpoint.card.frame.seconds)
    assert made.problems == () and made.leads == checkpoint.card.leads
    np.testing.assert_allclose(made.vectors, wanted, atol=1e-4)
    frames = make_frames(store, leads=("aVL", "V2"))
    assert frames.present.all() and list(store.rows_with(["aVR", "V1"])) == [0]

"""Small batches of recordings get the vectors that `embed_recordings` gives them."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from clocs import Checkpoint, Recording, Store
from clocs.errors import ClocsError, ClocsWarning
from clocs.frames.frames import Frames
from clocs.patients.embed import embed_each, embed_recordings
from clocs.patients.encode import InputSpec, cut_each
from clocs.recording import Gap
from tiny_leads import many_lead_checkpoints, tiny_leads


def vectors_of(checkpoint: Checkpoint, recordings: list[Recording]) -> list[object]:
    spec = InputSpec.from_checkpoint(checkpoint)
    return [*embed_each(cut_each(recordings, spec), spec)]


@pytest.fixture(scope="module")
def mixture(small_store: Store) -> list[Recording]:
    """Whole ones, single leads, another rate, a gap; one too short, one without a lead."""
    whole = [small_store.recording(i) for i in range(8)]
    return [
        *whole[:3],
        whole[3].select(["II"]),
        replace(whole[4], rate=whole[4].rate / 2, id="slow"),
        replace(whole[5], gaps=(Gap(10, 20, "V2"),)),
        replace(whole[6], digital=whole[6].digital[:, :100]),
        whole[7].select(["I", "III"]),
    ]


def test_each_vector_is_that_of_embed_recordings_bit_for_bit(
    checkpoint: Checkpoint, mixture: list[Recording]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClocsWarning)
        expected = embed_recordings(checkpoint, mixture)
    made = vectors_of(checkpoint, mixture)
    vectors = [one for one in made if not isinstance(one, ClocsError)]
    np.testing.assert_array_equal(vectors, expected.vectors)
    problems = [str(one) for one in made if isinstance(one, ClocsError)]
    assert problems == [why for _, why in expected.problems]
    assert [isinstance(one, ClocsError) for one in made] == [False] * 6 + [True] * 2


def test_a_vector_does_not_depend_on_the_others_in_its_batch(
    checkpoint: Checkpoint, mixture: list[Recording]
) -> None:
    together = vectors_of(checkpoint, mixture[:6] * 9)
    for place, recording in enumerate(mixture[:6]):
        (alone,) = vectors_of(checkpoint, [recording])
        np.testing.assert_array_equal(together[place + 18], alone)


def test_encoders_of_many_leads_see_them_at_once(usual_frames: Frames, small_store: Store) -> None:
    with tiny_leads() as name:
        checkpoint = many_lead_checkpoints(usual_frames, (0,), name)[0]
        recordings = [small_store.recording(i).select(["V2", "II"]) for i in range(3)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ClocsWarning)
            expected = embed_recordings(checkpoint, recordings).vectors
        np.testing.assert_array_equal(vectors_of(checkpoint, recordings), expected)

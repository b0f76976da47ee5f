"""What noise costs, and vectors of frames."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from clocs.errors import SettingError
from clocs.evaluation.groups import score_groups
from clocs.frames.frames import Frames
from clocs.training.checkpoint import Checkpoint
from research.analyses.frame_vectors import FrameVectors, embed_frames, without_copies
from research.analyses.noise_scores import noise_robustness


def test_faint_noise_costs_nothing_and_loud_noise_changes_the_score(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    found = noise_robustness(
        groups[0], small_frames, kinds=["muscle"], snr_db=[200, -20], resamples=50
    )
    faint, loud = found["noisy"]
    assert faint["lost"] == pytest.approx(0, abs=0.01)
    assert abs(loud["lost"]) > 0.01  # of eight patients: up or down
    assert loud["lost"] == pytest.approx(found["clean"]["auc"] - loud["auc"])
    assert loud["lost_ci95"][0] <= loud["lost"] <= loud["lost_ci95"][1]
    assert found["clean"]["ci95"][0] <= found["clean"]["auc"] <= found["clean"]["ci95"][1]
    json.dumps(found, allow_nan=False)


def test_the_noise_of_an_analysis_is_the_same_again(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    asked = {"kinds": ["muscle"], "snr_db": [0.0], "resamples": 20}
    once, again = (noise_robustness(groups[1][:1], small_frames, **asked) for _ in range(2))  # type: ignore[arg-type]
    assert once == again
    other = noise_robustness(groups[1][:1], small_frames, seed=1, **asked)  # type: ignore[arg-type]
    assert other["clean"] == once["clean"] and other["noisy"] != once["noisy"]


def test_unknown_noise_is_refused_before_any_work(small_frames: Frames) -> None:
    with pytest.raises(SettingError, match="choose from"):
        noise_robustness([], small_frames, kinds=["hum"])


def test_vectors_of_single_leads_are_side_by_side(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    checkpoint = groups[0][0]
    wide = embed_frames(checkpoint, small_frames, split="test")
    leads = len(small_frames.leads)
    assert wide.vectors.shape[1] == 16 * leads
    second = embed_frames(checkpoint, small_frames.with_leads(small_frames.leads[1:2]))
    own = second.part("test").vectors
    assert np.allclose(wide.vectors.reshape(-1, leads, 16)[:, 1], own, atol=1e-5)


def test_halves_have_the_frames_before_and_after_the_middle() -> None:
    recording = np.array([0, 1, 1, 1, 1, 1, 2, 2])
    segment = np.array([0, 4, 3, 2, 1, 0, 0, 1])
    n = len(recording)
    vectors = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    found = FrameVectors(
        vectors, recording, recording, segment, np.zeros(n, int), np.ones((n, 1), np.uint8),
        "made", ("x",), False, ("a", "b", "c"),
    )  # fmt: skip
    first, second = found.halves()
    assert first.recording.tolist() == second.recording.tolist() == [1, 2]
    assert np.allclose(first.vectors, [vectors[[4, 5]].mean(axis=0), vectors[6]])
    assert np.allclose(second.vectors, [vectors[[1, 2]].mean(axis=0), vectors[7]])
    means = found.by_recording()
    assert np.allclose(means.vectors[1], vectors[1:6].mean(axis=0)) and len(means) == 3


def test_the_readout_scores_as_the_protocol_does(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    one_lead = small_frames.with_leads(("II",))
    found = noise_robustness(groups[0], one_lead, kinds=[], resamples=20)
    (result,) = score_groups([groups[0]], one_lead, protocol="linear-converged", resamples=20)
    # there frames are classified and their chances averaged, here their vectors
    near = np.mean(result.evaluation.auc_recording)
    assert found["clean"]["auc"] == pytest.approx(near, abs=0.1)


def test_copies_of_a_recording_are_left_out(usual_frames: Frames, checkpoint: Checkpoint) -> None:
    found = embed_frames(checkpoint, usual_frames, split="test")
    assert len(without_copies(found, usual_frames)) == len(found)
    digests = usual_frames.digests.copy()
    recordings = np.unique(found.recording)
    digests[recordings[1]] = digests[recordings[0]]
    fewer = without_copies(found, replace(usual_frames, digests=digests))
    assert np.array_equal(np.unique(fewer.recording), np.delete(recordings, 1))

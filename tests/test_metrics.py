from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import macro_auc_draws, weighted_auc


@given(st.integers(0, 10_000), st.integers(5, 200), st.integers(1, 4), st.booleans())
@settings(max_examples=40, deadline=None)
def test_auc_equals_scikit_learns(seed: int, n: int, classes: int, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.normal(size=(n, classes))
    scores = np.round(scores) if ties else scores
    targets = (draw.random((n, classes)) < 0.4).astype(np.uint8)
    found = metrics.auc_per_class(scores, targets)
    for c in range(classes):
        if 0 < targets[:, c].sum() < n:
            assert found[c] == pytest.approx(roc_auc_score(targets[:, c], scores[:, c]))
        else:
            assert np.isnan(found[c])


def test_a_class_without_positives_is_left_out_of_the_macro() -> None:
    targets = np.array([[1, 0], [0, 0], [1, 0]], np.uint8)
    scores = np.array([[0.9, 0.1], [0.1, 0.2], [0.8, 0.3]])
    values = metrics.auc_per_class(scores, targets)
    assert np.isnan(values[1])
    assert metrics.macro(values) == 1.0
    assert np.isnan(metrics.macro(np.array([np.nan])))


def test_recordings_average_their_frames_and_half_is_enough_for_a_label() -> None:
    scores = np.array([[0.2], [0.4], [1.0], [0.0], [0.0]])
    targets = np.array([[1], [0], [1], [0], [0]], np.uint8)
    recording = np.array([3, 3, 8, 8, 8])
    mean, label = metrics.by_recording(scores, targets, recording)
    assert np.allclose(mean[:, 0], [0.3, 1 / 3])
    assert label[:, 0].tolist() == [1, 0]


@given(st.integers(0, 1000), st.booleans())
@settings(max_examples=20, deadline=None)
def test_weighted_auc_equals_repeating_rows(seed: int, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    n = 60
    score = draw.normal(size=n)
    score = np.round(score) if ties else score
    target = draw.random(n) < 0.5
    weights = draw.integers(0, 4, size=(5, n)).astype(np.float32)
    found = weighted_auc(*(torch.from_numpy(a) for a in (score, target, weights)))
    for r in range(5):
        times = weights[r].astype(int)
        repeated = np.repeat(target, times)
        if 0 < repeated.sum() < len(repeated):
            expected = roc_auc_score(repeated, np.repeat(score, times))
            assert float(found[r]) == pytest.approx(expected)


def test_the_bootstrap_draws_patients_not_rows() -> None:
    """With each patient's rows repeated, rows look many; the interval must not shrink."""
    draw = np.random.default_rng(0)
    target = (draw.random((40, 1)) < 0.5).astype(np.uint8)
    scores = target + draw.normal(size=(40, 1)) * 1.5
    alone = macro_auc_draws(scores[None], target, np.arange(40), resamples=800)
    many = macro_auc_draws(
        np.repeat(scores, 25, axis=0)[None],
        np.repeat(target, 25, axis=0),
        np.repeat(np.arange(40), 25),
        resamples=800,
    )
    assert np.nanstd(many) == pytest.approx(np.nanstd(alone), rel=0.05)
    assert np.nanstd(alone) > 0.03

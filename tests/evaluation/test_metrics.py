from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score

from clocs.evaluation import metrics


@given(st.integers(0, 10_000), st.integers(5, 200), st.integers(1, 4), st.booleans())
@settings(max_examples=40, deadline=None)
def test_auc_agrees_with_scikit_learn(seed: int, n: int, classes: int, ties: bool) -> None:
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


@given(st.integers(0, 10_000), st.integers(5, 200), st.booleans())
@settings(max_examples=30, deadline=None)
def test_average_precision_and_f1_agree_with_scikit_learn(seed: int, n: int, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.normal(size=(n, 3))
    scores = np.round(scores) if ties else scores
    targets = (draw.random((n, 3)) < 0.3).astype(np.uint8)
    thresholds = draw.normal(size=3)
    precision = metrics.average_precision(scores, targets)
    f1 = metrics.f1_per_class(scores, targets, thresholds)
    for c in range(3):
        if 0 < targets[:, c].sum() < n:
            expected = average_precision_score(targets[:, c], scores[:, c])
            assert precision[c] == pytest.approx(expected)
            expected = f1_score(targets[:, c], scores[:, c] >= thresholds[c], zero_division=0)
            assert f1[c] == pytest.approx(expected)
        else:
            assert np.isnan(precision[c])
            assert np.isnan(f1[c])


def test_the_chosen_threshold_has_the_highest_f1_of_all() -> None:
    draw = np.random.default_rng(0)
    targets = (draw.random((80, 2)) < 0.3).astype(np.uint8)
    scores = np.round(targets + draw.normal(size=(80, 2)), 1)
    chosen = metrics.best_thresholds(scores, targets)
    best = metrics.f1_per_class(scores, targets, chosen)
    for cut in np.unique(scores):
        assert (metrics.f1_per_class(scores, targets, np.full(2, cut)) <= best).all()


def test_a_class_that_validation_lacks_has_no_threshold_and_no_f1() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.7], [0.6, 0.3]])
    validation = np.array([[1, 0], [0, 0], [1, 0]], np.uint8)
    test = np.array([[1, 0], [0, 1], [1, 0]], np.uint8)
    thresholds = metrics.best_thresholds(scores, validation)
    assert np.isnan(thresholds[1])
    assert np.isnan(metrics.f1_per_class(scores, test, thresholds)[1])
    assert metrics.accuracy(scores, test, thresholds, multilabel=True) == 1.0


def test_accuracy_of_one_label_is_that_of_the_most_probable_class() -> None:
    draw = np.random.default_rng(0)
    scores, truth = draw.random((50, 4)), draw.integers(0, 4, 50)
    targets = np.eye(4, dtype=np.uint8)[truth]
    found = metrics.accuracy(scores, targets, np.full(4, np.nan), multilabel=False)
    assert found == pytest.approx(accuracy_score(truth, scores.argmax(axis=1)))

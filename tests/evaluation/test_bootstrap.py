from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.evaluation import bootstrap
from clocs.evaluation.bootstrap import macro_auc_draws


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


@given(st.integers(0, 1000), st.booleans(), st.integers(2, 300))
@settings(max_examples=25, deadline=None)
def test_the_quadratic_form_equals_computing_each_resample_from_its_rows(
    seed: int, ties: bool, rows: int
) -> None:
    draw = np.random.default_rng(seed)
    patient = draw.integers(0, 12, rows)
    targets = (draw.random((rows, 3)) < (0.5, 0.1, 0.0)).astype(np.uint8)
    scores = draw.normal(size=(2, rows, 3)) + targets
    scores = np.round(scores) if ties else scores
    fast = macro_auc_draws(scores, targets, patient, resamples=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "_LARGEST", 0)
        slow = macro_auc_draws(scores, targets, patient, resamples=20)
    assert np.allclose(fast, slow, equal_nan=True)


def test_computing_resamples_in_pieces_changes_nothing() -> None:
    draw = np.random.default_rng(0)
    targets = (draw.random((200, 2)) < 0.3).astype(np.uint8)
    scores, patient = draw.normal(size=(1, 200, 2)), np.arange(200) // 4
    whole = macro_auc_draws(scores, targets, patient, resamples=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "_AT_ONCE", 350)  # seven resamples of fifty patients
        assert np.allclose(macro_auc_draws(scores, targets, patient, resamples=50), whole)

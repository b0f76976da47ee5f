from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.evaluation import bootstrap, metrics
from clocs.evaluation.bootstrap import Resampling, macro_auc_draws


def plan(people: int, seeds: int = 1, *, resamples: int) -> Resampling:
    names = [f"p{number}" for number in range(people)]
    return Resampling.of("chapman", names, range(seeds), resamples=resamples)


def test_the_bootstrap_draws_patients_not_rows() -> None:
    """With each patient's rows repeated, rows look many; the interval must not shrink."""
    draw = np.random.default_rng(0)
    target = (draw.random((40, 1)) < 0.5).astype(np.uint8)
    scores = target + draw.normal(size=(40, 1)) * 1.5
    alone = macro_auc_draws(scores[None], target, np.arange(40), plan(40, resamples=800))[0]
    many = macro_auc_draws(
        np.repeat(scores, 25, axis=0)[None],
        np.repeat(target, 25, axis=0),
        np.repeat(np.arange(40), 25),
        plan(40, resamples=800),
    )[0]
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
    fast = macro_auc_draws(scores, targets, patient, plan(12, 2, resamples=20))[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "_LARGEST", 0)
        slow = macro_auc_draws(scores, targets, patient, plan(12, 2, resamples=20))[0]
        patch.setattr(bootstrap, "_AT_ONCE", 7 * rows)
        pieces = macro_auc_draws(scores, targets, patient, plan(12, 2, resamples=20))[0]
    assert np.allclose(fast, slow, equal_nan=True, rtol=1e-12)
    assert np.allclose(pieces, slow, equal_nan=True, rtol=1e-12)


@given(st.integers(0, 1000), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_draws_of_a_part_are_those_of_its_rows_alone(
    seed: int, ties: bool, large: bool
) -> None:
    """Also where a patient's rows are in several parts, as those of several ages are."""
    draw = np.random.default_rng(seed)
    patient = draw.integers(0, 12, 60)
    targets = (draw.random((60, 3)) < (0.5, 0.1, 0.0)).astype(np.uint8)
    scores = draw.normal(size=(2, 60, 3)) + targets
    scores = np.round(scores) if ties else scores
    parts = [draw.random(60) < 0.5, draw.random(60) < 0.2, patient < 6, patient < 0]
    own = plan(12, 2, resamples=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "_LARGEST", 0 if large else bootstrap._LARGEST)
        every, *found = macro_auc_draws(scores, targets, patient, own, parts)
        assert np.array_equal(every, macro_auc_draws(scores, targets, patient, own)[0])
        for rows, draws in zip(parts, found, strict=True):
            alone = macro_auc_draws(scores[:, rows], targets[rows], patient[rows], own)[0]
            assert np.allclose(draws, alone, equal_nan=True, rtol=1e-12)


def test_a_draw_is_the_weighted_mean_of_the_auc_of_repeated_rows() -> None:
    """The definition, in loops: each patient's rows so often, each seed's AUC so much."""
    draw = np.random.default_rng(5)
    patient = np.arange(90) // 3
    targets = np.eye(3, dtype=np.uint8)[draw.integers(0, 3, 90)]
    scores = np.round(draw.normal(size=(4, 90, 3)) + targets, 1)  # with ties
    own = plan(30, 4, resamples=25)
    found = macro_auc_draws(scores, targets, patient, own)[0]
    (weights,) = own.patients
    for r in range(25):
        times = weights[r].numpy().astype(int)[patient]
        rows = np.repeat(np.arange(90), times)
        by_seed = [metrics.macro(metrics.auc_per_class(s[rows], targets[rows])) for s in scores]
        assert found[r] == pytest.approx(float(own.seeds[:, r] @ by_seed), rel=1e-12)


def test_a_class_that_a_draw_lacks_is_left_out_of_its_mean() -> None:
    draw = np.random.default_rng(0)
    targets = np.zeros((12, 2), np.uint8)
    targets[:6, 0] = targets[0, 1] = 1  # one patient alone has the second class
    own = plan(12, resamples=40)
    found = macro_auc_draws(draw.normal(size=(1, 12, 2)), targets, np.arange(12), own)[0]
    assert (own.patients[0][:, 0] == 0).any()
    assert not np.isnan(found).any()


@pytest.mark.gpu
def test_a_gpu_draws_what_the_cpu_draws() -> None:
    draw = np.random.default_rng(1)
    patient = draw.integers(0, 40, 500)
    targets = (draw.random((500, 3)) < (0.5, 0.1, 0.01)).astype(np.uint8)
    scores = np.round(draw.normal(size=(3, 500, 3)) + targets, 1)
    names = [f"p{number}" for number in range(40)]
    found = [
        macro_auc_draws(
            scores,
            targets,
            patient,
            Resampling.of("chapman", names, range(3), resamples=1500, device=device),
        )
        for device in ("cpu", "cuda")
    ]
    assert np.allclose(found[0], found[1], rtol=1e-12, equal_nan=True)

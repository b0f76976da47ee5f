from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import Sampled, holm, mean_weights, more_draws, paired
from clocs.evaluation.result import Predictions
from evaluation_parts import compare, compare_all, predictions


def test_a_clearly_better_method_is_found_to_be_better() -> None:
    cmsc, simclr = predictions("cmsc", 2.0, seeds=5), predictions("simclr", 0.2, seeds=5, seed=1)
    found = compare(cmsc, simclr)
    assert found.better and found.verdict == "above"
    assert found.p < 0.01
    assert found.ci95[0] > 0
    assert (found.seeds_for_a, found.seeds) == (5, 5)
    back = compare(simclr, cmsc)
    assert not back.better and back.verdict == "below"
    assert (back.difference, back.p) == (-found.difference, found.p)


def test_the_observed_sample_counts_as_a_draw() -> None:
    a, b = (Sampled(name, {0: auc}, np.full(99, auc)) for name, auc in (("a", 0.9), ("b", 0.5)))
    assert paired(a, b).p == pytest.approx(2 / 100)


def test_patient_splits_are_integrated_as_if_drawn() -> None:
    """Student's t over the splits of each draw, against drawing it."""
    draw = np.random.default_rng(0)
    a = Sampled("a", {0: 0.82}, 0.82 + 0.02 * draw.normal(size=(5, 2000)), splits=5)
    b = Sampled("b", {0: 0.80}, 0.80 + 0.02 * draw.normal(size=(5, 2000)), splits=5)
    found = paired(a, b)
    differences = a.draws - b.draws
    around, error = differences.mean(axis=0), differences.std(axis=0, ddof=1) / np.sqrt(5)
    drawn = around + error * draw.standard_t(4, size=(500, 2000))
    assert found.ci95 == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=2e-4)
    below = (drawn <= 0).mean(axis=0)
    assert found.p == pytest.approx(2 * (below.mean() + 2 * below.std() / np.sqrt(2000)), rel=0.02)
    assert found.splits == 5 and paired(b, a).p == pytest.approx(found.p)


def test_more_draws_are_of_more_seeds_and_the_same_patients() -> None:
    """Their p is nearer to that of very many draws than the p of the first is."""
    auc, draw = {seed: 0.01 * seed + 0.05 for seed in range(5)}, np.random.default_rng(0)
    patients = 0.01 * draw.normal(size=2000)
    first = np.array([*auc.values()]) @ mean_weights(range(5), 2000) + patients
    more = more_draws(first, auc)
    assert len(more) == 50_000
    assert more[:2000] == pytest.approx(first, abs=1e-12)
    mean, error = 0.07, np.std([*auc.values()], ddof=1) / np.sqrt(5)
    whole = mean + error * draw.standard_t(4, size=10**6) + 0.01 * draw.normal(size=10**6)
    assert (more <= 0).mean() == pytest.approx((whole <= 0).mean(), rel=0.15)
    assert np.quantile(more, [0.025, 0.975]) == pytest.approx(
        np.quantile(whole, [0.025, 0.975]), rel=0.02
    )


def test_a_method_is_not_better_than_itself() -> None:
    same = compare(predictions(), predictions())
    assert (same.difference, same.p, same.better) == (0.0, 1.0, False)


def test_pairing_sees_what_unpaired_intervals_hide() -> None:
    """Two methods that fail on the same patients: the difference is sure, each score is not."""
    a = predictions("a", 1.0, seeds=5, people=40)
    shifted = a.probabilities + 0.05 * a.targets
    b = replace(a, method="b", probabilities=shifted)
    found = compare(b, a)
    assert found.better
    assert found.ci95[1] - found.ci95[0] < 0.05
    aucs = [metrics.macro(metrics.auc_per_class(s, a.targets)) for s in a.probabilities]
    assert found.auc_b == pytest.approx(np.mean(aucs))


def exchangeable(simulation: int, seeds: int) -> tuple[Predictions, Predictions]:
    """Two methods of equal quality: patients are hard for both, and seeds vary in each."""
    draw = np.random.default_rng(simulation)
    first = predictions(seeds=seeds, people=40)
    hard = draw.normal(size=(len(first) // 4, 3))[first.patient]
    found = []
    for name in ("a", "b"):
        quality = 1.5 + 0.4 * draw.normal(size=(seeds, 1, 1))
        noise = hard + draw.normal(size=first.probabilities.shape)
        found.append(replace(first, method=name, probabilities=quality * first.targets + noise))
    return found[0], found[1]


def test_equally_good_methods_are_rarely_found_to_differ() -> None:
    ps = [compare(*exchangeable(number, seeds=5), resamples=400).p for number in range(125)]
    assert sum(p < 0.05 for p in ps) <= 10  # 8 %
    assert np.mean(ps) > 0.4


def test_a_lucky_seed_is_no_evidence() -> None:
    """One of three seeds is much better: other patients would agree, other seeds would not."""
    a, b = (predictions(name, 1.0, seeds=3, seed=n, people=200) for n, name in enumerate("ab"))
    lucky = a.probabilities.copy()
    lucky[0] += 0.4 * a.targets
    found = compare(replace(a, probabilities=lucky), b)
    assert found.difference > 0.03
    assert found.verdict == "not distinguishable"


def test_methods_with_other_seeds_are_paired_over_patients_and_shared_seeds() -> None:
    a, b = predictions("a", 2.0, seeds=5), predictions("b", 0.2, seeds=5, seed=1)
    fewer = replace(b, seeds=b.seeds[:3], probabilities=b.probabilities[:3])
    found = compare(a, fewer)
    assert (found.seeds, found.verdict) == (3, "above")


def test_holm_equals_its_definition() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_many_pairs_still_can_be_significant() -> None:
    methods = [predictions(f"m{i}", 3.0 * (i == 0), seeds=5, seed=i) for i in range(11)]  # 55 pairs
    found = compare_all(methods, resamples=100)
    assert len(found) == 55
    assert all(one.better for one in found[:10])
    assert sum(one.p_holm < 0.05 for one in found[10:]) <= 1

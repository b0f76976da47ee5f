from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clocs.errors import SettingError
from clocs.evaluation import compare, compare_all, metrics
from clocs.evaluation.comparison import holm
from evaluation_parts import predictions


def test_a_clearly_better_method_is_found_to_be_better() -> None:
    found = compare(predictions("cmsc", 2.0), predictions("simclr", 0.2, seed=1))
    assert found.better
    assert found.p < 0.01
    assert found.ci95[0] > 0
    assert (found.seeds_for_a, found.seeds) == (2, 2)
    back = compare(predictions("simclr", 0.2, seed=1), predictions("cmsc", 2.0))
    assert not back.better
    assert back.difference == -found.difference


def test_a_method_is_not_better_than_itself() -> None:
    same = compare(predictions(), predictions())
    assert (same.difference, same.p, same.better) == (0.0, 1.0, False)


def test_pairing_sees_what_unpaired_intervals_hide() -> None:
    """Two methods that fail on the same patients: the difference is sure, each score is not."""
    a = predictions("a", 1.0, people=40)
    shifted = a.probabilities + 0.05 * a.targets
    b = replace(a, method="b", probabilities=shifted)
    found = compare(b, a)
    assert found.better
    assert found.ci95[1] - found.ci95[0] < 0.05
    aucs = [metrics.macro(metrics.auc_per_class(s, a.targets)) for s in a.probabilities]
    assert found.auc_b == pytest.approx(np.mean(aucs))


def test_equally_good_methods_are_rarely_found_to_differ() -> None:
    ps = [
        compare(predictions("a", 1.0, seed=s), predictions("b", 1.0, seed=100 + s), resamples=300).p
        for s in range(40)
    ]
    assert sum(p < 0.05 for p in ps) <= 6
    assert np.mean(ps) > 0.3


def test_holm_equals_its_definition() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_many_pairs_still_can_be_significant() -> None:
    methods = [predictions(f"m{i}", 3.0 * (i == 0), seed=i) for i in range(11)]  # 55 pairs
    found = compare_all(methods, resamples=100)
    assert len(found) == 55
    assert all(one.better for one in found[:10])
    assert sum(one.p_holm < 0.05 for one in found[10:]) <= 1


def test_other_test_rows_cannot_be_compared() -> None:
    with pytest.raises(SettingError, match="differ in downstream"):
        compare(predictions(), replace(predictions(), downstream="physionet2020"))

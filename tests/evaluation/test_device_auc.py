from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import weighted_auc
from clocs.evaluation.classifier_loss import MacroAUC


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_auc_on_the_device_is_that_of_the_scores(multilabel: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 90, 3, generator=draw).round().double()  # with ties
    targets = torch.nn.functional.one_hot(torch.arange(90) % 2, 3).to(torch.uint8)  # no class 2
    found = MacroAUC(targets, multilabel)(logits)
    scores = logits.sigmoid() if multilabel else logits.softmax(dim=-1)
    for member in range(2):
        expected = metrics.macro(metrics.auc_per_class(scores[member].numpy(), targets.numpy()))
        assert float(found[member]) == pytest.approx(expected)


def test_the_auc_on_the_device_counts_the_rows_of_each_member_alone() -> None:
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 60, 3, generator=draw).round().double()
    targets = torch.nn.functional.one_hot(torch.arange(60) % 3, 3).to(torch.uint8)
    present = torch.rand(3, 60, generator=draw) < 0.3
    present[1] &= targets[:, 2] == 0  # a class is missing for one member, all for another
    present[2] &= targets[:, 0] == 1
    found = MacroAUC(targets, multilabel=False)(logits, present)
    for member, own in enumerate(present):
        scores = logits[member, own].softmax(dim=-1).numpy()
        expected = metrics.macro(metrics.auc_per_class(scores, targets[own].numpy()))
        assert float(found[member]) == pytest.approx(expected, nan_ok=True)


@given(st.integers(0, 1000), st.booleans())
@settings(max_examples=20, deadline=None)
def test_weighted_auc_equals_repeating_rows(seed: int, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    n = 60
    score = draw.normal(size=n)
    score = np.round(score) if ties else score
    target = draw.random(n) < 0.5
    weights = draw.integers(0, 4, size=(5, n)).astype(np.float32)
    arrays = (score[target], score[~target], weights[:, target], weights[:, ~target])
    found = weighted_auc(*(torch.from_numpy(array) for array in arrays))
    for r in range(5):
        times = weights[r].astype(int)
        repeated = np.repeat(target, times)
        if 0 < repeated.sum() < len(repeated):
            expected = roc_auc_score(repeated, np.repeat(score, times))
            assert float(found[r]) == pytest.approx(expected)

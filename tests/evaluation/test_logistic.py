from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from clocs.evaluation.classifier_loss import class_weights
from clocs.evaluation.logistic import fit_logistic
from evaluation_parts import labeled


@pytest.mark.parametrize("weighted", [False, True])
def test_the_converged_solver_agrees_with_scikit_learn(weighted: bool) -> None:
    train, validation, test = (labeled(s, n, False) for s, n in ((0, 400), (1, 200), (2, 100)))
    fitted = fit_logistic(
        train.features[:1],
        train.targets[None],
        validation.features[:1],
        validation.targets,
        multilabel=False,
        class_weights=class_weights(train.targets, False)[None] if weighted else None,
    )
    own, new = (part.features[0].double().numpy() for part in (train, test))
    scaler = StandardScaler().fit(own)
    reference = LogisticRegression(
        C=1 / (fitted.l2[0] * 400),
        tol=1e-10,
        max_iter=5000,
        class_weight="balanced" if weighted else None,
    )
    reference.fit(scaler.transform(own), train.targets.argmax(1).numpy())
    expected = reference.predict_proba(scaler.transform(new))
    found = fitted.logits(test.features[:1])[0].softmax(1).numpy()
    assert np.allclose(found, expected, atol=2e-4)


@pytest.mark.parametrize("multilabel", [False, True])
def test_members_of_different_numbers_of_rows_are_solved_as_if_alone(multilabel: bool) -> None:
    train, validation = (labeled(s, n, multilabel) for s, n in ((0, 300), (1, 200)))
    x, sizes = train.features[[0, 0, 0]], (300, 120, 41)
    present = torch.arange(300) < torch.tensor(sizes)[:, None]
    held_out = (validation.features[[0, 0, 0]], validation.targets)
    together = fit_logistic(
        x, train.targets.expand(3, -1, -1), *held_out, multilabel=multilabel, present=present
    )
    for member, size in enumerate(sizes):
        alone = fit_logistic(
            train.features[:1, :size],
            train.targets[None, :size],
            validation.features[:1],
            validation.targets,
            multilabel=multilabel,
        )
        assert alone.l2[0] == together.l2[member]
        assert torch.allclose(alone.weights[0], together.weights[member], atol=2e-3)

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from clocs.evaluation.logistic import fit_logistic
from evaluation_parts import labelled


def test_the_converged_solver_agrees_with_scikit_learn() -> None:
    train, validation, test = (labelled(s, n, False) for s, n in ((0, 400), (1, 200), (2, 100)))
    fitted = fit_logistic(
        train.features[0],
        train.targets,
        validation.features[0],
        validation.targets,
        multilabel=False,
    )
    scaler = StandardScaler().fit(train.features[0].numpy())
    reference = LogisticRegression(C=1 / (fitted.l2 * 400), tol=1e-10, max_iter=5000)
    reference.fit(scaler.transform(train.features[0].numpy()), train.targets.argmax(1).numpy())
    expected = reference.predict_proba(scaler.transform(test.features[0].numpy()))
    found = fitted.logits(test.features[0]).softmax(1).numpy()
    assert np.allclose(found, expected, atol=2e-3)

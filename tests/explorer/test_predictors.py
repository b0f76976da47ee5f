from __future__ import annotations

import numpy as np
import pytest

from clocs.explorer.predictions import fit_predictor
from clocs.patients.embeddings import Embeddings


def test_a_predictor_learns_linear_classes_and_is_tested_on_other_patients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(0)
    code = generator.integers(0, 3, 600)
    vectors = np.eye(3, 8, dtype=np.float32)[code] + 0.3 * generator.normal(size=(600, 8))
    rows = Embeddings.make_rows(
        {
            "dataset": ["d"] * 600,
            "patient": [str(i) for i in range(600)],
            "labels": [["abc"[c]] for c in code],
            "split": ["train" if i % 2 else "test" for i in range(600)],
        },
        600,
    )
    embeddings = Embeddings(vectors.astype(np.float32), rows, "patient", "e")
    made = fit_predictor(embeddings, "d", ("a", "b", "c"), multilabel=False)
    assert made is not None and made.auc is not None
    assert made.auc > 0.97
    assert (made.trained_on, made.tested_on) == (300, 300)
    p = made.probabilities(embeddings.vectors)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert (p.argmax(axis=1) == code).mean() > 0.9
    assert fit_predictor(embeddings, "another", ("a",), multilabel=False) is None
    monkeypatch.setattr("clocs.explorer.predictions._MAX", 100)
    sample = fit_predictor(embeddings, "d", ("a", "b", "c"), multilabel=False)
    assert sample is not None and (sample.trained_on, sample.tested_on) == (100, 100)

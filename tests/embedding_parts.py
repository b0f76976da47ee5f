"""Embeddings for tests."""

from __future__ import annotations

import numpy as np

from clocs.patients.embeddings import Embeddings
from clocs.patients.rows import Level


def random_embeddings(n: int, *, dim: int = 16, seed: int = 0, start: int = 0) -> Embeddings:
    """Patients p0 … in loose clusters, with labels, ages and sexes; some ages are unknown."""
    draw = np.random.default_rng(seed)
    centers = draw.normal(size=(20, dim))
    vectors = centers[draw.integers(20, size=n)] + 0.7 * draw.normal(size=(n, dim))
    level: Level = "patient"
    rows = Embeddings.make_rows(
        {
            "dataset": ["made"] * n,
            "patient": [f"p{start + i}" for i in range(n)],
            "labels": [[["A"], ["B"], ["A", "C"], []][k] for k in draw.integers(4, size=n)],
            "age": [
                None if i % 7 == 0 else float(a) for i, a in enumerate(draw.integers(100, size=n))
            ],
            "sex": [["male", "female", None][k] for k in draw.integers(3, size=n)],
            "split": ["test"] * n,
        },
        n,
    )
    return Embeddings(vectors.astype(np.float32), rows, level, "e" * 64)

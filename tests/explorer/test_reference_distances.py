from __future__ import annotations

import numpy as np

from clocs.explorer.embed_stores import reference_distances
from clocs.patients.embeddings import Embeddings, patient_halves


def test_halves_of_one_patient_are_compared_with_each_other() -> None:
    # Two patients in two opposite directions, two recordings of two frames each.
    rows = Embeddings.make_rows(
        {
            "dataset": ["d"] * 8 + ["d"],
            "patient": ["p"] * 4 + ["q"] * 4 + ["single"],
            "recording": ["1", "1", "2", "2"] * 2 + ["1"],
            "segment": [0, 1] * 4 + [0],
            "lead": ["II"] * 9,
        },
        9,
    )
    vectors = np.array([[1, 0]] * 4 + [[0, 3]] * 4 + [[1, 1]], np.float32)
    halves = patient_halves(Embeddings(vectors, rows, "frame", "e"))
    assert halves.shape == (2, 2, 2)  # a patient with one frame has no halves
    found = reference_distances(halves)
    np.testing.assert_allclose(found.intra, 0, atol=1e-6)
    np.testing.assert_allclose(found.inter, np.sqrt(2), atol=1e-6)
    assert found.separability == 1.0

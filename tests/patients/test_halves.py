"""Halves of recordings share no frame, and are defined once."""

from __future__ import annotations

import numpy as np

from clocs.patients.embeddings import Embeddings, halves, patient_halves


def test_halves_share_no_frame_and_leave_out_the_middle() -> None:
    rows = Embeddings.make_rows(
        {
            "dataset": ["d"] * 9,
            "patient": ["a"] * 5 + ["b"] * 3 + ["c"],
            "recording": ["a"] * 5 + ["b"] * 3 + ["c"],
            "segment": [0, 1, 2, 4, 7, 0, 1, 2, 0],
            "lead": ["II"] * 9,
        },
        9,
    )
    first, second = halves(Embeddings(np.eye(9, dtype=np.float32), rows, "frame", "e"))
    assert first.rows["recording"].to_list() == second.rows["recording"].to_list() == ["a", "b"]
    assert np.flatnonzero(first.vectors[0]).tolist() == [0, 1]
    assert np.flatnonzero(second.vectors[0]).tolist() == [3, 4]
    assert np.flatnonzero(first.vectors[1]).tolist() == [5]
    assert np.flatnonzero(second.vectors[1]).tolist() == [7]


def test_halves_of_a_patient_are_means_over_the_halves_of_all_recordings() -> None:
    rows = Embeddings.make_rows(
        {
            "dataset": ["d"] * 7,
            "patient": ["p"] * 4 + ["q"] * 2 + ["single"],
            "recording": ["1", "1", "2", "2", "1", "1", "1"],  # IDs of recordings may repeat
            "segment": [0, 1, 0, 1, 0, 1, 0],
            "lead": ["II"] * 7,
        },
        7,
    )
    vectors = np.eye(7, dtype=np.float32)
    vectors[4] = 0  # q has no first half
    found = patient_halves(Embeddings(vectors, rows, "frame", "e"))
    assert found.shape == (1, 2, 7)
    np.testing.assert_allclose(found[0, 0], (vectors[0] + vectors[2]) / 2**0.5, atol=1e-7)
    np.testing.assert_allclose(found[0, 1], (vectors[1] + vectors[3]) / 2**0.5, atol=1e-7)

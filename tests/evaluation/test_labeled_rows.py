from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clocs.evaluation.labeled import (
    LabeledPart,
    LabeledShare,
    choose_labeled,
    choose_rows,
    rows_with_label,
)
from clocs.frames.frames import Frames


@pytest.mark.parametrize("by", ["frame", "patient", "recording"])
def test_smaller_labeled_shares_are_subsets_of_larger_ones(small_frames: Frames, by: Any) -> None:
    part = LabeledPart(small_frames, rows_with_label(small_frames, 0))
    few, many = (choose_rows(part, 0, LabeledShare(f, by)) for f in (0.2, 0.6))
    assert few.any()
    assert (many | ~few).all()
    assert not np.array_equal(few, choose_rows(part, 1, LabeledShare(0.2, by)))


def test_each_seed_draws_its_own_of_what_the_seeds_use_together(small_frames: Frames) -> None:
    part = LabeledPart(small_frames, rows_with_label(small_frames, 1))
    share = LabeledShare(0.2, "patient")
    used, known = choose_labeled(part, [0, 1, 0], share)
    assert known.shape == (3, len(used))
    assert np.array_equal(known[0], known[2])
    assert not np.array_equal(known[0], known[1])
    assert known.any(axis=0).all()  # nothing that no seed uses
    for seed, own in zip((0, 1), known, strict=False):
        alone = part.where(choose_rows(part, seed, share))
        assert np.array_equal(used.where(own).rows.frame, alone.rows.frame)

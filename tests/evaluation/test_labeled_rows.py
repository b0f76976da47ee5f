from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clocs.evaluation.labeled import LabeledShare, choose_rows, rows_with_label
from clocs.frames.frames import Frames


@pytest.mark.parametrize("by", ["frame", "patient", "recording"])
def test_smaller_labeled_shares_are_subsets_of_larger_ones(small_frames: Frames, by: Any) -> None:
    rows = rows_with_label(small_frames, 0)
    few, many = (choose_rows(small_frames, rows, 0, LabeledShare(f, by)) for f in (0.2, 0.6))
    assert few.any()
    assert (many | ~few).all()
    assert not np.array_equal(few, choose_rows(small_frames, rows, 1, LabeledShare(0.2, by)))

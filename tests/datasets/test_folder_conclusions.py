"""What is concluded from a folder's recordings: lists are cut, and say by how much."""

from __future__ import annotations

import json

import polars as pl

from clocs.datasets.folder_conclusions import conclude
from clocs.datasets.folder_options import FolderOptions


def test_notices_that_are_cut_say_how_much_is_left_out() -> None:
    rows = 20
    extra = [json.dumps({"notice": f"guess {number // 2}"}) for number in range(rows)]
    table = pl.DataFrame(
        {
            "labels": [["AF"]] * rows,
            "episodes": pl.Series([[]] * rows, dtype=pl.List(pl.Struct({"label": pl.String}))),
            "leads": [[f"X{number}"] for number in range(rows)],
            "extra": extra,
            "samples": [5000] * rows,
            "rate": [500.0] * rows,
            "patient": ["p"] * rows,
            "id": [f"r{number}" for number in range(rows)],
        }
    )
    classes = ("AF", *(f"C{number}" for number in range(9)))
    found = conclude(table, FolderOptions(classes=classes))
    unused, leads, *guesses = found.notices[1:]
    assert "C0, C1, C2, C3, C4, C5, C6, C7 and 1 more of `classes`" in unused
    assert "X7 (1) and 12 more; `lead_names`" in leads
    assert guesses[0] == "guess 0 (2 recordings)"
    assert guesses[-1] == "readers had to guess in 4 more recordings"
    assert len(guesses) == 9

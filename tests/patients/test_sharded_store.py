"""What is made of a store in shards is what a store in one piece gives, in another order."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

import clocs
from clocs import Checkpoint, Store
from clocs.patients.embed import embed_levels


def test_embeddings_and_neighbors_are_those_of_a_store_in_one_piece(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    sharded = clocs.prepare("synthetic", out=tmp_path / "store", patients=40, seed=3, shards=3)
    assert sharded.table["id"].to_list() != small_store.table["id"].to_list()
    levels: tuple[Literal["recording", "patient"], ...] = ("recording", "patient")
    for level in levels:
        ours, theirs = (
            embed_levels(checkpoint, store, levels=[level])[level]
            for store in (sharded, small_store)
        )
        order = [
            one.rows.with_row_index().sort(level)["index"].to_numpy() for one in (ours, theirs)
        ]
        assert ours.rows.sort(level).equals(theirs.rows.sort(level))
        np.testing.assert_array_equal(ours.vectors[order[0]], theirs.vectors[order[1]])
    hits = []
    for name, store in (("a", sharded), ("b", small_store)):
        clocs.index(checkpoint, store, out=tmp_path / name)
        found = clocs.similar(tmp_path / name, patient="P00007", k=5)
        hits.append(found["patient"].to_list())
    assert hits[0] == hits[1]

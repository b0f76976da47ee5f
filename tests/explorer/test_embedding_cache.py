from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from clocs import Store
from clocs.explorer.embedding_cache import embed_stores
from clocs.training.checkpoint import load_checkpoint
from damage import flipped


def test_a_cache_of_another_version_is_recomputed(
    small_store: Store, encoder: Path, tmp_path: Path
) -> None:
    weights = encoder / "seed-0.safetensors"
    first, apart = embed_stores(weights, [small_store], tmp_path)
    (file,) = tmp_path.glob("patients-*.parquet")
    whole = file.read_bytes()
    pl.DataFrame({"other": [1]}).write_parquet(file)
    second, again = embed_stores(weights, [small_store], tmp_path)
    np.testing.assert_array_equal(first.vectors, second.vectors)
    np.testing.assert_array_equal(apart.intra, again.intra)
    assert file.read_bytes() == whole


def test_no_flipped_bit_of_a_cached_file_changes_what_is_shown(
    small_store: Store, encoder: Path, tmp_path: Path
) -> None:
    weights = encoder / "seed-0.safetensors"
    first, apart = embed_stores(weights, [small_store], tmp_path)
    for file in sorted(tmp_path.iterdir()):
        whole = file.read_bytes()
        for damaged in flipped(whole, most=5):
            file.write_bytes(damaged)
            second, again = embed_stores(weights, [small_store], tmp_path)
            np.testing.assert_array_equal(first.vectors, second.vectors)
            np.testing.assert_array_equal(apart.intra, again.intra)
            assert file.read_bytes() == whole


def test_stores_use_the_encoders_leads_and_a_note_names_any_difference(
    small_store: Store, encoder: Path, tmp_path: Path
) -> None:
    weights = encoder / "seed-0.safetensors"
    patients, _ = embed_stores(weights, [small_store], tmp_path)
    assert patients.leads == ("II", "V2", "aVL", "aVR") and not patients.problems
    loaded = load_checkpoint(encoder)
    other = tmp_path / "other.safetensors"
    replace(loaded, card=replace(loaded.card, leads=("II", "Frank X"))).save(other)
    patients, _ = embed_stores(other, [small_store], tmp_path)
    assert patients.leads == ("II",)
    ((dataset, sentence),) = patients.problems
    assert dataset == small_store.manifest.dataset
    assert "embedded with II" in sentence and "(II, Frank X)" in sentence

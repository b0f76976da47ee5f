from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from clocs import Store
from clocs.explorer.embedding_cache import embed_stores


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

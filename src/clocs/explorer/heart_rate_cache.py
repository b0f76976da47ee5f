"""Patients' heart rates, measured once: the recordings' are kept in the cache folder."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import ClocsError, ClocsWarning
from clocs.files import private_cache
from clocs.patients.heart_rate import heart_rates
from clocs.sealed import ArrayFile
from clocs.store.store import Store

MOST = 20_000  # recordings of a store: measuring more would keep its map waiting for minutes
_RATES = ArrayFile("cached heart rates", key="clocs.rates", format=1, remedy="delete it")


def heart_rates_of(
    rows: pl.DataFrame,
    stores: Mapping[str, Store],
    cache: Path,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> NDArray[np.float32]:
    """(patients,) beats per minute: the median of a patient's recordings; NaN where unknown."""
    known = [
        store.table.select("patient").with_columns(
            dataset=pl.lit(name), rate=pl.Series(_cached(store, cache, progress))
        )
        for name, store in stores.items()
    ]
    if not known:
        return np.full(rows.height, np.nan, np.float32)
    table = pl.concat(known).with_columns(pl.col("rate").fill_nan(None))
    medians = table.group_by("dataset", "patient").agg(pl.col("rate").median())
    keys = ["dataset", "patient"]
    found = rows.select(keys).join(medians, on=keys, how="left", maintain_order="left")
    return found["rate"].cast(pl.Float32).fill_null(np.nan).to_numpy()


def _cached(
    store: Store, cache: Path, progress: Callable[[str, int, int], None]
) -> NDArray[np.float32]:
    key = hashlib.blake2b(store.manifest.content_hash.encode(), digest_size=12).hexdigest()
    file = cache / f"rates-{key}.safetensors"
    try:
        rates: NDArray[np.float32] = _RATES.read(file)[1]["rates"]
        if rates.shape == (len(store),):
            return rates
    except (ClocsError, KeyError):
        pass
    if len(store) > MOST:
        warnings.warn(
            f"heart rates of {store.manifest.dataset} are not measured, because it has more than "
            f"{MOST:,} recordings; its patients are shown without them",
            ClocsWarning,
            stacklevel=2,
        )
        return np.full(len(store), np.nan, np.float32)
    try:
        tick = partial(progress, f"Measuring heart rates of {store.manifest.dataset}")
        rates = heart_rates(store, tick)
    except ClocsError:  # it names the recording; patients are shown without their heart rates
        logging.getLogger("clocs.explorer").exception("heart rates cannot be measured")
        return np.full(len(store), np.nan, np.float32)
    private_cache(cache)
    _RATES.write(file, {}, {"rates": rates})
    return rates

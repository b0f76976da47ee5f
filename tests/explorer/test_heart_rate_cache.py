from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from clocs import Store
from clocs.errors import ClocsWarning, StoreError
from clocs.explorer import heart_rate_cache
from clocs.explorer.session import Session
from clocs.patients.heart_rate import heart_rate


def test_a_patient_has_the_median_heart_rate_of_the_recordings(
    session: Session, small_store: Store
) -> None:
    row = 7
    patient = session.embeddings.rows["patient"][row]
    ids = small_store.table.filter(pl.col("patient") == patient)["id"].to_list()
    expected = np.median([heart_rate(small_store.recording(name)) or np.nan for name in ids])
    summary = session.summary(row)
    assert summary["heart_rate"] == pytest.approx(expected, rel=1e-5)
    assert session.columns["heart_rate"][row] == round(summary["heart_rate"])


def test_heart_rates_are_measured_once_and_nothing_is_kept_of_a_damaged_store(
    session: Session, small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, stores = session.embeddings.rows, {small_store.manifest.dataset: small_store}

    def fail(*_: object) -> None:
        raise StoreError("the samples of a recording have changed")

    with monkeypatch.context() as patched:
        patched.setattr(heart_rate_cache, "heart_rates", fail)
        assert np.isnan(heart_rate_cache.heart_rates_of(rows, stores, tmp_path)).all()
    assert list(tmp_path.iterdir()) == []
    first = heart_rate_cache.heart_rates_of(rows, stores, tmp_path)
    monkeypatch.setattr(heart_rate_cache, "heart_rates", fail)
    second = heart_rate_cache.heart_rates_of(rows, stores, tmp_path)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, session.heart_rates)
    assert np.isnan(heart_rate_cache.heart_rates_of(rows, {}, tmp_path)).all()


def test_a_large_store_is_shown_without_heart_rates_and_says_so(
    session: Session, small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, stores = session.embeddings.rows, {small_store.manifest.dataset: small_store}
    monkeypatch.setattr(heart_rate_cache, "MOST", 3)
    with pytest.warns(ClocsWarning, match="more than 3 recordings; its patients are shown without"):
        assert np.isnan(heart_rate_cache.heart_rates_of(rows, stores, tmp_path)).all()

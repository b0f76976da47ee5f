from __future__ import annotations

import numpy as np
import polars as pl

from clocs import Store
from clocs.explorer.packing import unpack
from clocs.explorer.session import Session


def test_neighbours_are_the_nearest_other_patients(session: Session) -> None:
    x = session.embeddings.vectors
    for row in range(0, len(x), 7):
        near = session.neighbours(session.codes[row], 5)["neighbours"]
        apart = np.linalg.norm(x - x[row], axis=1)
        apart[row] = np.inf
        np.testing.assert_allclose([n["distance"] for n in near], np.sort(apart)[:5], atol=2e-3)
        assert row not in [n["row"] for n in near]


def test_signals_are_those_of_the_store(session: Session, small_store: Store) -> None:
    code = session.codes[3]
    patient = session.embeddings.rows["patient"][3]
    ids = small_store.table.filter(pl.col("patient") == patient)["id"].to_list()
    facts, arrays = unpack(session.signal(code, 1, start=1.0, seconds=2.0, lead="V2"))
    own = small_store.recording(ids[1]).select(["V2"])
    first = round(own.rate)
    np.testing.assert_array_equal(arrays["digital"], own.digital[:, first : 3 * first])
    assert (facts["unit"], facts["gain"]) == ("mV", own.gain.tolist())

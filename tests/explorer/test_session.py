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
    found = []
    for number in range(len(ids)):
        facts, arrays = unpack(session.signal(code, number, start=1.0, seconds=2.0, lead="V2"))
        found.append((facts["unit"], facts["gain"], arrays["digital"].tolist()))
    for name in ids:  # in an order that their IDs do not tell
        own = small_store.recording(name).select(["V2"])
        part = own.digital[:, round(own.rate) : 3 * round(own.rate)]
        assert ("mV", own.gain.tolist(), part.tolist()) in found

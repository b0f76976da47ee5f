from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from clocs import Store
from clocs.explorer.session import Session
from clocs.recording import Gap
from clocs.web.packing import NO_VALUE, packed_signal, unpack


def test_neighbors_are_the_nearest_other_patients(session: Session) -> None:
    x = session.embeddings.vectors
    for row in range(0, len(x), 7):
        near = session.neighbors(session.codes[row], 5)["neighbors"]
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
        facts, arrays = unpack(
            packed_signal(session.recording(code, number).select(["V2"]), 1.0, 2.0)
        )
        found.append((facts["unit"], facts["gain"], arrays["digital"].tolist()))
    for name in ids:  # in an order that their IDs do not tell
        own = small_store.recording(name).select(["V2"])
        part = own.digital[:, round(own.rate) : 3 * round(own.rate)]
        assert ("mV", own.gain.tolist(), part.tolist()) in found


def test_a_gap_is_drawn_as_nothing_and_not_as_zero(small_store: Store) -> None:
    recording = small_store.recording(0)
    first, second = recording.leads[:2]
    holed = replace(recording, gaps=(Gap(10, 20, first),))
    _, arrays = unpack(packed_signal(holed.with_limb_leads(), 0, 1))
    assert (arrays["digital"][0, 10:20] == NO_VALUE).all()
    assert (arrays["digital"][1] != NO_VALUE).all()
    _, arrays = unpack(packed_signal(holed.select([first]), 12 / recording.rate, 1))
    assert (arrays["digital"][0, :8] == NO_VALUE).all()
    assert (arrays["digital"][0, 8:] != NO_VALUE).all()
    _, arrays = unpack(packed_signal(holed.select([second]), 0, 1))
    assert (arrays["digital"] != NO_VALUE).all()

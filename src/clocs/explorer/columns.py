"""Further columns that patients are colored, filtered and listed by.

What was measured, as numbers; what the stores say of recordings; and what the first classifier
predicts for each patient, which is computed once and kept beside the store. Of a patient with
several recordings, the first one is predicted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.datasets.chapman import RHYTHMS
from clocs.explorer.measured import MEASURED, ShownMeasurement
from clocs.store.store import Store

if TYPE_CHECKING:
    from clocs.explorer.predictions import SavedClassifiers
    from clocs.explorer.session import Session

_UNKNOWN = "unknown"
_MOST = 30  # values of a column; the rare ones are one value
_MOST_PREDICTED = 20_000  # recordings: a quarter of an hour on two cores
_UNPREDICTED = (
    "The patients of {} are not predicted yet, because there are more than {:,} recordings: "
    "`clocs predict MODEL STORE` does it once; then start the explorer again"
)
_Value = str | float | None
_Found = dict[str, tuple[dict[str, Any], NDArray[Any]]]  # facts and values, by name
_NUMBERS = {
    "confidence": ShownMeasurement("Confidence", "%"),
    "seconds": ShownMeasurement("Length", "s"),
    "rate": ShownMeasurement("Sampling rate", "Hz"),
    "leads": ShownMeasurement("Number of leads", ""),
    "recordings": ShownMeasurement("Recordings", ""),
}
_WORDS = {  # titles
    "prediction": "Prediction",
    "outcome": "Right or wrong",
    "abstention": "Abstention",
    "rhythm": "Published rhythm",
    "unit": "Unit",
    "fold": "Fold",
    "taken": "Year",
}
_PREDICTED = ("prediction", "confidence", "outcome", "abstention")


class Columns:
    """Those of one session, in the order of its patients."""

    def __init__(self, session: Session) -> None:
        self._session, self._lock = session, threading.Lock()
        self._found: _Found = {}
        self.state: Literal["new", "working", "ready", "failed"] = "new"
        self.progress = 0.0

    def _begin(self) -> None:
        """Read the stores' columns, and predict all patients in a thread."""
        session = self._session
        rows = session.embeddings.rows.select("dataset", "patient")
        self._place = {pair: row for row, pair in enumerate(rows.iter_rows())}
        self._found = self._of_stores()
        self.state = "working" if session.models is not None and session.stores else "ready"
        if self.state == "working":
            threading.Thread(target=self._predict, daemon=True).start()

    def packed(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Facts and arrays of all columns.

        Of numbers: title, unit, smallest step, and one per patient, nan where unknown; of others:
        title, values, and the code of one per patient. The first call begins to predict.
        """
        with self._lock:
            if self.state == "new":
                self._begin()
        measured = self._session.measured.items()
        found: _Found = {name: (MEASURED[name]._asdict(), own) for name, own in measured}
        found |= self._found
        listed = [{"name": name} | facts for name, (facts, _) in found.items()]
        facts = {"columns": listed, "state": self.state, "progress": self.progress}
        return facts, {name: own for name, (_, own) in found.items()}

    def _of_stores(self) -> _Found:
        each: dict[str, dict[int, _Value]] = {}
        for dataset, store in self._session.stores.items():
            rhythm = pl.col("extra").str.json_path_match("$.rhythm").str.to_uppercase()
            columns = {
                "seconds": pl.col("samples") / pl.col("rate"), "rate": pl.col("rate"),
                "leads": pl.col("leads").list.len(), "recordings": pl.len().over("patient"),
                "rhythm": rhythm.replace_strict(RHYTHMS, default=None), "unit": pl.col("unit"),
            }  # fmt: skip
            if self._session.show_ids:  # both tell who it may be
                columns["fold"] = pl.col("fold")
                columns["taken"] = pl.col("taken").cast(pl.String).str.slice(0, 4)
            table = store.table.select("patient", **columns).unique("patient", keep="first")
            for patient, *values in table.iter_rows():
                row = self._place.get((dataset, patient))
                for name, value in zip(columns, values, strict=True):
                    if row is not None:
                        each.setdefault(name, {})[row] = value
        made = {name: self._column(name, values) for name, values in each.items()}
        return {name: one for name, one in made.items() if name in _NUMBERS or one[1].any()}

    def _column(
        self, name: str, values: Mapping[int, _Value]
    ) -> tuple[dict[str, Any], NDArray[Any]]:
        """Whole numbers, or codes of words, the rare ones as one."""
        known = {row: value for row, value in values.items() if value is not None}
        if name in _NUMBERS:
            numbers = np.full(len(self._session.codes), np.nan, np.float32)
            numbers[list(known)] = np.round(list(known.values()))
            return _NUMBERS[name]._asdict(), numbers
        counts = pl.Series(map(str, known.values()), dtype=pl.String).value_counts(sort=True)
        common = sorted(counts.to_series().head(_MOST))
        place = {name: code for code, name in enumerate([*common, "other", _UNKNOWN])}
        codes = np.full(len(self._session.codes), place[_UNKNOWN], np.uint8)
        for row, value in known.items():
            codes[row] = place.get(str(value), place["other"])
        used = np.unique(codes)
        facts = {"title": _WORDS[name], "values": [[*place][code] for code in used]}
        return facts, np.searchsorted(used, codes).astype(np.uint8)

    def _predict(self) -> None:
        try:
            made = self._predicted()
        except Exception:  # the page must not wait in vain
            logging.getLogger("clocs.explorer").exception("patients cannot be predicted")
            self.state = "failed"
            return
        self._found = made | self._found
        self.state = "ready"

    def _predicted(self) -> _Found:
        from clocs.models.classifier import probability_column
        from clocs.models.predict import kept_predictions, predict

        session, stores = self._session, list(self._session.stores.values())
        classifier = session.predictor().first
        card, total = classifier.card, sum(map(len, stores))
        each: dict[str, dict[int, _Value]] = {name: {} for name in _PREDICTED}
        done = 0
        truth = session.embeddings.rows["labels"].to_list()
        for store in stores:

            def tick(now: int, _: int, before: int = done) -> None:
                self.progress = (before + now) / total

            table = kept_predictions(store, classifier).read()
            if table is None and total > _MOST_PREDICTED:
                continue
            table = predict(classifier, store, progress=tick) if table is None else table
            done += len(store)
            for one in table.unique("patient", keep="first").iter_rows(named=True):
                row = self._place.get((one["dataset"], one["patient"]))
                if row is None:
                    continue
                found = one["predicted"]
                labels = [] if found is None else [found] if isinstance(found, str) else found
                labels = sorted(labels, key=lambda label: -one[probability_column(label)])
                why = one["problem"] or one["abstained"]
                top = max(one[probability_column(label)] or 0.0 for label in card.labels)
                each["prediction"][row] = labels[0] if labels else "none" if why is None else None
                each["confidence"][row] = None if one["problem"] else 100 * top
                each["abstention"][row] = "predicted" if why is None else why.partition(":")[0]
                own = set(truth[row]) & set(card.labels)
                if why is None and own and one["dataset"] == card.dataset:
                    partly = "partly right" if own & {*labels} else "wrong"
                    each["outcome"][row] = "right" if own == {*labels} else partly
        return {name: self._column(name, values) for name, values in each.items()}


def unpredicted(stores: Mapping[str, Store], models: SavedClassifiers | None) -> str:
    """A sentence where stores are too large to predict all patients when the explorer starts."""
    from clocs.models.predict import kept_predictions

    if models is None or sum(map(len, stores.values())) <= _MOST_PREDICTED:
        return ""
    kept = {name: kept_predictions(one, models.first).read() for name, one in stores.items()}
    left = " and ".join(name for name, table in kept.items() if table is None)
    return left and _UNPREDICTED.format(left, _MOST_PREDICTED)

"""Further columns that patients are colored, filtered and listed by.

What was measured, as numbers; what the stores say of recordings; and what the first classifier
predicts for each patient, which is computed once and kept beside the store. Of a patient with
several recordings, the first one is predicted.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs._version import __version__
from clocs.explorer.measured import MEASURED
from clocs.sealed import own_hash
from clocs.store.kept import KeptTable
from clocs.store.store import Store

if TYPE_CHECKING:
    from clocs.explorer.session import Session
    from clocs.models.classifier import Classifier

_UNKNOWN = "unknown"
_MOST = 30  # values of a column; the rare ones are one value
_MOST_PREDICTED = 20_000  # recordings: a quarter of an hour on two cores
_Value = str | float | None
_Found = dict[str, tuple[dict[str, Any], NDArray[np.uint8]]]  # facts and codes, by name
_OF_STORES = {  # titles of columns
    "seconds": "Length in s",
    "rate": "Sampling rate",
    "leads": "Number of leads",
    "unit": "Unit",
    "recordings": "Recordings",
    "fold": "Fold",
    "taken": "Year",
}
_PREDICTED = {
    "prediction": "Prediction",
    "confidence": "Confidence in %",
    "outcome": "Right or wrong",
    "abstention": "Abstention",
    "ecg_share": "Share that looks like an ECG",
}


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
        few = 0 < sum(map(len, session.stores.values())) <= _MOST_PREDICTED
        self.state = "working" if session.models is not None and few else "ready"
        if self.state == "working":
            threading.Thread(target=self._predict, daemon=True).start()

    def packed(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Facts and arrays of all columns.

        Of what was measured: title, unit, smallest step, and a number per patient, nan where
        unknown; of others: title, values, whether these are in order, and a code per patient.
        Patients are predicted from the first call on.
        """
        with self._lock:
            if self.state == "new":
                self._begin()
        arrays: dict[str, NDArray[Any]] = dict(self._session.measured)
        listed: list[dict[str, Any]] = [
            {"name": name} | MEASURED[name]._asdict() for name in arrays
        ]
        for name, (facts, codes) in dict(self._found).items():
            listed.append({"name": name} | facts)
            arrays[name] = codes
        return {"columns": listed, "state": self.state, "progress": self.progress}, arrays

    def _of_stores(self) -> _Found:
        each: dict[str, dict[int, _Value]] = {}
        for dataset, store in self._session.stores.items():
            one = pl.col("samples") / pl.col("rate")
            columns = {
                "seconds": one, "rate": pl.col("rate"), "leads": pl.col("leads").list.len(),
                "unit": pl.col("unit"), "recordings": pl.len().over("patient"),
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
        made = {name: self._coded(_OF_STORES[name], values) for name, values in each.items()}
        return {name: one for name, one in made.items() if len(one[0]["values"]) > 1}

    def _coded(
        self, title: str, values: Mapping[int, _Value]
    ) -> tuple[dict[str, Any], NDArray[np.uint8]]:
        """A column of few values: numbers in bands where they are many, rare words as one."""
        known = [value for value in values.values() if value is not None]
        numbers = bool(known) and not any(isinstance(value, str) for value in known)
        if numbers:
            order, word = _bands(np.array(known, np.float64))
        else:
            counts = pl.Series(map(str, known), dtype=pl.String).value_counts(sort=True)
            common = set(counts.to_series().head(_MOST))
            order, word = sorted(common), lambda one: str(one) if str(one) in common else "other"
        names = [*dict.fromkeys([*order, "other", _UNKNOWN])]
        place = {name: code for code, name in enumerate(names)}
        codes = np.full(len(self._session.codes), place[_UNKNOWN], np.uint8)
        for row, value in values.items():
            codes[row] = place[_UNKNOWN if value is None else word(value)]
        used = np.unique(codes)
        facts = {"title": title, "values": [names[code] for code in used], "ordered": numbers}
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
        from clocs.models.predict import predict

        session, stores = self._session, list(self._session.stores.values())
        classifier = session.predictor().first
        card, total = classifier.card, sum(map(len, stores))
        each: dict[str, dict[int, _Value]] = {name: {} for name in _PREDICTED}
        done = 0
        truth = session.embeddings.rows["labels"].to_list()
        for store in stores:

            def tick(now: int, _: int, before: int = done) -> None:
                self.progress = (before + now) / total

            kept = kept_predictions(store, classifier)
            if (table := kept.read()) is None:
                table = predict(classifier, store, progress=tick)
                kept.write(table)
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
                each["ecg_share"][row] = one["ecg_share"]
                own = set(truth[row]) & set(card.labels)
                if why is None and own and one["dataset"] == card.dataset:
                    each["outcome"][row] = _outcome(set(labels), own)
        return {name: self._coded(_PREDICTED[name], values) for name, values in each.items()}


def kept_predictions(store: Store, classifier: Classifier) -> KeptTable:
    """Where the table of `clocs.predict` of a whole store is kept."""
    weights = hashlib.sha256()
    for tensors in (classifier.head, classifier.reference):
        for name in sorted(tensors):
            weights.update(tensors[name].cpu().contiguous().numpy().data)
    about = own_hash(classifier.card.to_dict()), weights.hexdigest(), __version__
    encoders = (one.fingerprint for one in classifier.encoders)
    return KeptTable(store, "predictions", *about, *encoders)


def _outcome(predicted: set[str], true: set[str]) -> str:
    if predicted == true:
        return "right"
    return "partly right" if predicted & true else "wrong"


def _bands(numbers: NDArray[np.float64]) -> tuple[list[str], Callable[[Any], str]]:
    """Names of bands of numbers, at most ten, and the name of that of a number."""
    distinct = np.unique(numbers)
    if len(distinct) <= 10:
        return [f"{one:g}" for one in distinct], lambda value: f"{value:g}"
    low, high = np.percentile(numbers, [1, 99])
    step = _round_step((high - low) / 8)
    edges = np.arange(np.floor(low / step), np.floor(high / step) + 1) * step
    names = [f"{edge:g}–{edge + step:g}" for edge in edges]
    names[0], names[-1] = f"under {edges[0] + step:g}", f"{edges[-1]:g} and over"

    def named(value: Any) -> str:
        place = int((value - edges[0]) // step)
        return names[min(max(place, 0), len(names) - 1)]

    return names, named


def _round_step(step: float) -> float:
    """1, 2, 5 or 10 times a power of ten."""
    unit = 10.0 ** np.floor(np.log10(max(step, 1e-9)))
    return float(next(unit * n for n in (1, 2, 5, 10) if unit * n >= step * 0.999))

"""Recordings that are arrays in memory, as a dataset; `clocs.from_arrays` makes a store of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clocs.datasets.base import Dataset, Entry, Listing, parse_sex
from clocs.errors import SettingError
from clocs.recording import (
    UNITS_PER_MV,
    FrameSpec,
    Recording,
    canonical_lead,
    check_rate,
    quantize_with_gaps,
)

UNKNOWN_UNIT = "adu"
OnePerRecording: TypeAlias = Sequence[Any] | NDArray[Any]
_NUMBERS = "iuf"  # kinds of numpy types


class Arrays(Dataset):
    """Recordings in memory; SettingError says what does not fit.

    Args are those of `clocs.from_arrays`, with `ids`, `ages`, `sexes`, `recorded_at` and `folds` as
    `columns`; `fingerprint` says whether to compute one. Signals are asked for one at a time.
    """

    skip_flat = True
    labels: tuple[str, ...] = ()

    def __init__(
        self,
        signals: Any,
        patients: OnePerRecording,
        *,
        rate: float,
        leads: Sequence[str] | str,
        labels: Any = None,
        classes: Sequence[str] | None = None,
        unit: str = "mV",
        name: str = "arrays",
        frame: FrameSpec | float | None = None,
        fingerprint: bool = False,
        **columns: OnePerRecording | None,
    ) -> None:
        self.signals, self.rate, self.unit, self.name = signals, float(rate), unit, name
        self.leads = tuple(map(canonical_lead, [leads] if isinstance(leads, str) else leads))
        count = len(signals)
        if not count:
            raise SettingError("`X` is empty; give at least one recording")
        if not self.leads or len(set(self.leads)) != len(self.leads):
            named = ", ".join(self.leads) or "none"
            raise SettingError(f"`leads` must be distinct names, not {named}")
        if unit != UNKNOWN_UNIT and unit.lower() not in UNITS_PER_MV:
            known = ", ".join((*UNITS_PER_MV, UNKNOWN_UNIT))
            raise SettingError(f"`unit` is {unit!r}; choose one of {known} (unknown)")
        check_rate(self.rate, name="`rate`")
        several = range(1) if hasattr(signals, "shape") else range(count)  # an array has one shape
        longest = max(signal_of(signals[i], i, len(self.leads)).shape[1] for i in several)
        self.frame = _frame(frame, longest / self.rate)
        for what, values in {"patients": patients, "labels": labels, **columns}.items():
            if values is not None and len(values) != count:
                raise SettingError(f"`{what}` has {len(values)} entries for {count} recordings")
        by_recording, self.labels = _labels(labels, classes, count)
        self.multilabel = any(len(one) > 1 for one in by_recording)
        ids = columns.get("ids")
        self.ids = tuple(map(str, range(count) if ids is None else ids))
        if len(set(self.ids)) != count:
            raise SettingError("`ids` must be distinct; two recordings have the same one")
        if any(_is_missing(patient) for patient in patients):
            raise SettingError("`patients` must name the patient of every recording")
        self.patients = tuple(map(str, patients))
        self._facts: list[dict[str, Any]] = [{"labels": one} for one in by_recording]
        for fact, (column, parse) in _FACTS.items():
            given = columns.get(column)
            for i, value in enumerate([None] * count if given is None else given):
                self._facts[i][fact] = None if _is_missing(value) else parse(value)
        self._fingerprint = self._hash() if fingerprint else ""

    def _hash(self) -> str:
        facts = repr((self._facts, self.ids, list(self.patients)))
        total = hashlib.blake2b(facts.encode(), digest_size=16)
        for i in range(len(self.ids)):
            total.update(np.ascontiguousarray(self.signals[i]).data)
        return total.hexdigest()

    @property
    def settings(self) -> Mapping[str, str]:
        return {"rate": f"{self.rate:g}", "unit": self.unit}

    def list(self) -> Listing:
        pairs = enumerate(zip(self.ids, self.patients, strict=True))
        entries = tuple(Entry(name, patient, str(i)) for i, (name, patient) in pairs)
        return Listing(entries, fingerprint=self._fingerprint)

    def read(self, entry: Entry) -> Recording:
        """The recording of an entry; its array alone is copied."""
        number = int(entry.path)
        signal = signal_of(self.signals[number], number, len(self.leads))
        known = self.unit != UNKNOWN_UNIT
        per_mv = UNITS_PER_MV[self.unit.lower()] if known else _peak(signal)
        made = quantize_with_gaps(signal, self.leads, name=entry.id, per_mv=per_mv)
        return Recording(
            id=entry.id,
            patient=entry.patient,
            leads=made.leads,
            rate=self.rate,
            digital=made.digital,
            gain=made.gain if known else made.gain / per_mv,
            baseline=np.zeros(len(made.leads), np.int32),
            unit="mV" if known else self.unit,
            gaps=made.gaps,
            **self._facts[number],
        )


def signal_of(array: Any, number: int, leads: int) -> NDArray[np.floating]:
    """(leads, samples) of recording `number`, as floating point; refuses another shape or type."""
    signal = np.asarray(array)
    if signal.ndim == 1:
        signal = signal[None]
    if signal.dtype.kind not in _NUMBERS:
        raise SettingError(f"recording {number} holds {signal.dtype}, not numbers")
    if signal.ndim != 2 or len(signal) != leads or not signal.shape[1]:
        raise SettingError(
            f"recording {number} has the shape {np.shape(array)}; with {leads} `leads`, expected "
            f"({leads}, samples)"
        )
    wide = signal.dtype.kind != "f" or signal.dtype.itemsize < 4
    return np.asarray(signal, np.float64) if wide else signal


def _peak(signal: NDArray[np.floating]) -> float:
    """The largest value, to which samples of an unknown unit are scaled: they may be tiny."""
    peak = float(np.abs(signal).max(where=np.isfinite(signal), initial=0.0))
    return peak or 1.0


def _frame(frame: FrameSpec | float | None, longest: float) -> FrameSpec:
    """The frame given, or one that fits the longest recording, in seconds, twice."""
    if frame is None:
        return FrameSpec(min(5.0, longest / 2))
    spec = frame if isinstance(frame, FrameSpec) else FrameSpec(frame)
    if spec.seconds > longest * (1 + 1e-6):
        raise SettingError(
            f"`frame` has {spec.seconds:g} s, but the longest recording has {longest:g} s; give a "
            "shorter one"
        )
    return spec


def _labels(
    labels: Any, classes: Sequence[str] | None, count: int
) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The label names of each recording, and all classes in order."""
    known = None if classes is None else tuple(map(str, classes))
    if labels is None:
        return [()] * count, known or ()
    columns = getattr(labels, "columns", None)  # a table of pandas or polars
    matrix = np.asarray(labels) if columns is not None or hasattr(labels, "ndim") else None
    if matrix is not None and matrix.ndim == 2:
        names = known or (None if columns is None else tuple(map(str, columns)))
        if names is None or len(names) != matrix.shape[1] or len(names) < 2:
            raise SettingError(
                f"`labels` has {matrix.shape[1]} columns; give the name of each of at least two as "
                "`classes`, or one name per recording as `labels`"
            )
        if not np.isin(matrix, (0, 1)).all():
            raise SettingError("a matrix of `labels` holds 0 and 1 alone; leave out the rest")
        return [tuple(n for n, on in zip(names, row, strict=True) if on) for row in matrix], names
    named = [_names(one) for one in labels]
    found = sorted({name for one in named for name in one})
    unknown = [name for name in found if known is not None and name not in known]
    if unknown:
        raise SettingError(f"{unknown[0]!r} in `labels` is not one of `classes`")
    return named, known or tuple(found)


def _names(label: Any) -> tuple[str, ...]:
    """The names in one recording's label: none, one, or several."""
    if _is_missing(label):
        return ()
    if isinstance(label, str) or not isinstance(label, Iterable):
        return (str(label),)
    return tuple(dict.fromkeys(map(str, label)))


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _age(age: Any) -> float:
    if not 0 <= float(age) < math.inf:
        raise SettingError(f"`ages` has {age!r}; give years, or None where unknown")
    return float(age)


def _sex(sex: Any) -> str:
    known = parse_sex(str(sex))
    if known is None:
        raise SettingError(f"`sexes` has {sex!r}; give 'male', 'female' or None")
    return known


def _date(given: Any) -> str:
    """A moment or a day as ISO 8601, without a time zone."""
    if isinstance(given, np.datetime64):
        given = given.astype("datetime64[s]").item()
    try:
        moment = given if isinstance(given, date) else datetime.fromisoformat(str(given))
    except ValueError:
        raise SettingError(
            f"`recorded_at` has {given!r}; give dates as ISO 8601, such as 2018-01-11T15:51:15"
        ) from None
    if not isinstance(moment, datetime):
        return moment.isoformat()
    if isinstance(given, str) and len(given) == len("2018-01-11"):
        return given
    return moment.replace(microsecond=0, tzinfo=None).isoformat()


# Attributes of a recording, the columns that users give, and how to read one cell of them.
_FACTS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "age": ("ages", _age), "sex": ("sexes", _sex),
    "recorded_at": ("recorded_at", _date), "fold": ("folds", str),
}  # fmt: skip

"""Arrays of numbers as recordings: which axis is which, and what the file leaves unsaid.

What only plausibility tells (axes, the unit, the order of twelve leads without names) is said in
`extra["notice"]`; what not even that tells is refused with the option that does. Names of fields
beside the numbers (attributes, columns, comments, datasets) tell what they mean.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnknownRateError, UnknownUnitError, UnusableError
from clocs.files import check_size
from clocs.formats.base import (
    SEXES,
    FileMetadata,
    ReadOptions,
    make_recording,
    standard_names,
    stretch,
    units_per_mv,
    unreadable,
)
from clocs.recording import (
    PLAUSIBLE_HZ,
    STANDARD_LEADS,
    UNITS_PER_MV,
    UNNAMED_LEAD,
    Recording,
    canonical_lead,
    check_rate,
    said_by_file,
)

_COLUMN_NAMES = Path(__file__).with_name("column_names.toml")
NAMES = {
    kind: {meaning: names.split() for meaning, names in own.items()}
    for kind, own in tomllib.loads(_COLUMN_NAMES.read_text("utf-8")).items()
}
_MEANINGS = {name: meaning for meaning, names in NAMES["fields"].items() for name in names}
_IN_BRACKETS = re.compile(r"([^(\[]*)[(\[]([^)\]]*)[)\]]\Z")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_LONGEST_NAME = 200  # characters
_MAX_TEXT = 1000  # characters of a field that is kept
_MAX_LEADS = 64
_LOOKED_AT = 500  # values of each lead, from which a unit is guessed
# What the middle 99 % of a lead span: ECGs have 0.05 to 20 mV, drift and lost leads included.
_SPANS = {"V": (5e-5, 1e-2), "mV": (0.03, 25.0), "µV": (60.0, 2e5)}


def meaning_of(name: str) -> str | None:
    """What a field of this name holds, as `column_names.toml` says; None where unknown."""
    bare, _ = split_unit(name)
    if canonical_lead(bare) in STANDARD_LEADS:
        return None
    return _MEANINGS.get(re.sub(r"[\W_]+", "_", bare.lower()).strip("_"))


def split_unit(name: str) -> tuple[str, str | None]:
    """'II (mV)' and 'II [mV]' are 'II' in 'mV'."""
    match = _IN_BRACKETS.match(name.strip()) if len(name) < _LONGEST_NAME else None
    return (match[1].strip(), match[2].strip()) if match else (name.strip(), None)


def by_meaning(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields under what they mean, the first of each."""
    found = {meaning_of(name): value for name, value in reversed(list(fields.items()))}
    return {meaning: value for meaning, value in found.items() if meaning is not None}


def rate_in(value: Any) -> float | None:
    """A rate in Hz from 500, '500', '500 Hz' or '511,3 Hertz'; None where it is none."""
    text = text_of(value)
    match = _NUMBER.match(text.replace(",", "."))
    number = float(match[0]) if match else 0.0
    if number < PLAUSIBLE_HZ[0] and re.match(r"\d{1,2},\d{3}\b", text):  # of thousands
        number *= 1000
    return number if 0 < number < math.inf else None


def age_in(value: Any) -> float | None:
    """An age in years; None where it is none that anybody has."""
    match = _NUMBER.match(text_of(value))
    years = float(match[0]) if match else math.nan
    return years if 0 <= years <= 150 else None


def text_of(value: Any) -> str:
    """One value as text: bytes decoded, arrays of one element unpacked, nothing as ''."""
    while hasattr(value, "tolist"):
        value = value.tolist()
    while isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    text = str(value).strip("\0 \t\r\n")[:_MAX_TEXT]
    return text.encode("utf-8", "replace").decode()


def texts_of(value: Any) -> list[str]:
    """Several values as text; names in one string are divided at commas."""
    while hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (str, bytes)):
        return [part.strip() for part in text_of(value).split(",")]
    if isinstance(value, Sequence):
        return [text_of(one) for one in value]
    return [text_of(value)]


def metadata_from(fields: Mapping[str, Any]) -> FileMetadata:
    """What fields say, by their meanings; labels only where there is one, or a list of them."""
    unit, labels = text_of(fields.get("unit")), fields.get("labels")
    texts = map(text_of, labels) if isinstance(labels, list) else [text_of(labels)]
    return FileMetadata(
        rate=rate_in(fields.get("rate")),
        unit=unit if unit.lower() in UNITS_PER_MV else None,
        patient=text_of(fields.get("patient")) or None,
        age=age_in(fields.get("age")),
        sex=SEXES.get(text_of(fields.get("sex")).lower()),
        recorded_at=text_of(fields.get("recorded_at")) or None,
        labels=tuple(text for text in texts if text),
    )


class Axes(NamedTuple):
    """Where an array has what; None where it has no such axis."""

    recording: int | None
    lead: int | None
    sample: int
    notice: str = ""


def find_axes(
    shape: Sequence[int], named: Sequence[str] | None, options: ReadOptions, *, name: str
) -> Axes:
    """Which axis holds leads and which samples, by the names of leads or by the sizes.

    Args:
        shape: Of one to three axes.
        named: Leads as the file names them, in order.
        options: Its `leads`, or `lead_names` by number, count where the file names none.
        name: For messages.

    Raises:
        UnusableError: unreadable, where it cannot be told.
    """
    text = " × ".join(map(str, shape)) or "0"
    if not 1 <= len(shape) <= 3 or not all(shape):
        raise unreadable(f"{name} has an array of shape {text}; give (leads, samples)")
    if len(shape) == 1:
        return Axes(None, None, 0)
    first, last = len(shape) - 2, len(shape) - 1
    outer = 0 if len(shape) == 3 else None
    a, b = shape[first], shape[last]
    count = len(named if named is not None else options.leads or _by_number(options))
    if count and (a == count) != (b == count):
        return Axes(outer, first, last) if a == count else Axes(outer, last, first)
    if count == 1 and outer is None and 12 not in (a, b):  # of twelve, one is to be kept
        return Axes(0, None, 1, "each row is taken as a recording of one lead")
    for leads_first, leads, samples in ((True, a, b), (False, b, a)):
        twelve = leads == 12 and samples > 12
        if samples >= 50 and leads <= _MAX_LEADS and (twelve or samples >= 4 * leads):
            axes = (outer, first, last) if leads_first else (outer, last, first)
            if leads == 1 or named is not None:
                return Axes(*axes)
            order = "leads by samples" if leads_first else "samples by leads"
            return Axes(*axes, f"an array of {text} is taken as {order}")
    raise unreadable(
        f"{name} has an array of shape {text}, which does not tell leads from samples; "
        "name its leads, in order, with `lead_names`, such as 1=I,2=II"
    )


def _by_number(options: ReadOptions) -> tuple[str, ...]:
    """Leads that the user names by their numbers in the file, 1 for the first; none otherwise."""
    numbers = [str(number) for number in range(1, len(options.lead_names) + 1)]
    return tuple(options.lead_names.get(number, "") for number in numbers)


def recording_from(
    values: NDArray[Any],
    meta: FileMetadata,
    options: ReadOptions,
    *,
    name: str,
    sample: NDArray[Any] | None = None,
) -> Recording:
    """A recording from numbers and what is known about them.

    Args:
        values: (leads, samples) integers or floats, NaN where there is no value.
        meta: By the file; what is found out is added.
        options: By the user, for what the file does not say.
        name: The recording's id; its patient too, where the file names none.
        sample: (leads, some samples) from which to guess the unit; given where `values` are already
            what lies between `start` and `stop` of the options.

    Raises:
        UnusableError: unreadable, no rate, nan or implausible.
        SettingError: `unit` is no voltage.
    """
    if values.dtype.kind not in "iuf":
        raise unreadable(f"{name} holds {values.dtype.name}, not numbers")
    check_size(values.size * 2, packed=values.nbytes, name=name)
    meta.leads = _leads(len(values), meta, options, name=name)
    rate = meta.rate if meta.rate is not None else options.rate
    if rate is None:
        raise UnknownRateError.for_recording(name)
    check_rate(rate, name=name)
    unit = meta.unit or options.unit
    if unit is None:
        unit = _guess_unit(values if sample is None else sample, meta, name=name)
    if sample is None:
        values = values[:, stretch(options, rate=rate, samples=values.shape[1], name=name)]
    meta.rate, meta.unit, meta.extra = rate, None, said_by_file(meta.extra)
    if values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)
    return make_recording(values, meta, per_mv=units_per_mv(unit), name=name)


def _leads(count: int, meta: FileMetadata, options: ReadOptions, *, name: str) -> tuple[str, ...]:
    if meta.leads is not None:
        if len(meta.leads) != count:
            raise unreadable(f"{name} names {len(meta.leads)} leads and holds {count}")
        return standard_names(meta.leads, options, name=name)
    for given in (options.leads or (), _by_number(options)):
        if len(given) == count and all(given):
            return standard_names(given, ReadOptions(), name=name)
    if count == 1:
        return standard_names((UNNAMED_LEAD,), options, name=name)
    if count == len(STANDARD_LEADS):
        meta.notices.append("twelve leads without names are taken in the standard order, I to V6")
        return STANDARD_LEADS
    examples = enumerate(STANDARD_LEADS[:count][:3], 1)
    raise unreadable(
        f"{name} has {count} leads without names; name them, in order, with `lead_names`, such as "
        + ",".join(f"{number}={lead}" for number, lead in examples)
    )


def _guess_unit(values: NDArray[Any], meta: FileMetadata, *, name: str) -> str:
    some = values[:, :: -(-values.shape[1] // _LOOKED_AT)].astype(np.float64)
    some[~np.isfinite(some)] = np.nan
    some = some[~np.isnan(some).all(axis=1)]
    if not some.size:
        raise UnusableError("nan", f"{name} has no value in any lead")
    some.sort(axis=1)  # NaN last
    last = np.isfinite(some).sum(axis=1) - 1
    edge, rows = last // 200, range(len(some))  # beyond the edge is half a percent of the values
    span = float(np.median(some[rows, last - edge] - some[rows, edge]))
    for unit, (least, most) in _SPANS.items():
        if least <= span <= most:
            meta.notices.append(f"values are assumed to be in {unit}, judging by their size")
            return unit
    if span == 0:
        return "mV"  # flat, whatever the unit
    raise UnknownUnitError(
        "unreadable",
        f"{name} has leads that span {span:.3g}, which fits no unit; give it as `unit` (mV or µV)",
    )

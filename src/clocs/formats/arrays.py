"""Arrays of numbers as recordings: which axis is which, and what the file leaves unsaid.

What only plausibility tells (axes, the unit, the order of twelve leads without names) is said in
`extra["notice"]`; what not even that tells is refused with the option that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnknownRateError, UnknownUnitError, UnusableError
from clocs.formats.base import ReadOptions
from clocs.formats.samples import (
    WITHOUT_VALUES,
    from_floats,
    from_integers,
    leads_of,
    units_per_mv,
)
from clocs.limits import check_size
from clocs.recording import (
    STANDARD_LEADS,
    UNNAMED_LEAD,
    Recording,
    check_plausible,
    check_rate,
    said_by_file,
)

_MAX_LEADS = 64
_LOOKED_AT = 500  # values of each lead, from which a unit is guessed
# What the middle 99 % of a lead span: ECGs have 0.05 to 20 mV, drift and lost leads included.
_SPANS = {"V": (5e-5, 1e-2), "mV": (0.03, 25.0), "µV": (60.0, 2e5)}


@dataclass(frozen=True)
class Said:
    """What a file says about a recording besides its numbers; None where it does not."""

    leads: Sequence[str] | None = None
    rate: float | None = None
    unit: str | None = None
    patient: str | None = None
    age: float | None = None
    sex: str | None = None
    taken: str | None = None
    labels: tuple[str, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


class Axes(NamedTuple):
    """Where an array has what; None where it has no such axis."""

    recording: int | None
    lead: int | None
    sample: int
    notice: str = ""

    def size(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Recordings, leads and samples."""
        one = [1 if axis is None else int(shape[axis]) for axis in self[:3]]
        return one[0], one[1], one[2]


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
    if not 1 <= len(shape) <= 3 or not all(shape):
        detail = (
            f"{name} has an array of shape {_by(shape)}; give (leads, samples) or one more axis"
        )
        raise UnusableError("unreadable", detail)
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
            return Axes(*axes, f"an array of {_by(shape)} is taken as {order}")
    raise UnusableError(
        "unreadable",
        f"{name} has an array of shape {_by(shape)}, which does not tell leads from samples; "
        "name its leads, in order, with `lead_names`, such as 1=I,2=II",
    )


def _by_number(options: ReadOptions) -> tuple[str, ...]:
    """Leads that the user names by their numbers in the file, 1 for the first; none otherwise."""
    numbers = [str(number) for number in range(1, len(options.lead_names) + 1)]
    return tuple(options.lead_names.get(number, "") for number in numbers)


def _by(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "0"


def recording_from(
    values: NDArray[Any],
    said: Said,
    options: ReadOptions,
    *,
    name: str,
    sample: NDArray[Any] | None = None,
) -> Recording:
    """A recording from numbers and what is known about them.

    Args:
        values: (leads, samples) integers or floats, NaN where there is no value.
        said: By the file.
        options: By the user, for what the file does not say.
        name: The recording's id; its patient too, where the file names none.
        sample: (leads, some samples) from which to guess the unit, where `values` are a stretch.

    Raises:
        UnusableError: unreadable, no rate, nan or implausible.
        SettingError: `unit` is no voltage.
    """
    if values.dtype.kind not in "iuf":
        raise UnusableError("unreadable", f"{name} holds {values.dtype.name}, not numbers")
    check_size(values.size * 2, packed=values.nbytes, name=name)
    notices = list(said.notices)
    leads = _leads(len(values), said, options, notices, name=name)
    rate = said.rate if said.rate is not None else options.rate
    if rate is None:
        raise UnknownRateError.for_recording(name)
    check_rate(rate, name=name)
    unit = said.unit or options.unit
    if unit is None:
        unit = _guess_unit(values if sample is None else sample, notices, name=name)
    per_mv = units_per_mv(unit)
    if values.dtype.kind == "f":
        floats = values.astype(np.float64, copy=False)
        samples = from_floats(floats, leads, per_mv=per_mv, name=name)
    else:
        gain, zero = np.full(len(leads), per_mv), np.zeros(len(leads))
        samples = from_integers(values, leads, gain=gain, zero=zero, name=name)
    added = {"notice": "; ".join(notices)} if notices else {}
    if lost := [lead for lead in leads if lead not in samples.leads]:
        added[WITHOUT_VALUES] = ", ".join(lost)
    recording = Recording(
        id=name,
        patient=said.patient or name,
        leads=samples.leads,
        rate=rate,
        digital=samples.digital,
        gain=samples.gain,
        baseline=samples.baseline,
        labels=said.labels,
        age=said.age,
        sex=said.sex,
        taken=said.taken,
        extra=said_by_file(said.extra) | added,
        gaps=samples.gaps,
    )
    check_plausible(recording)
    return recording


def _leads(
    count: int, said: Said, options: ReadOptions, notices: list[str], *, name: str
) -> tuple[str, ...]:
    if said.leads is not None:
        if len(said.leads) != count:
            detail = f"{name} names {len(said.leads)} leads and holds {count}"
            raise UnusableError("unreadable", detail)
        return leads_of(said.leads, options.lead_names, name=name)
    for given in (options.leads or (), _by_number(options)):
        if len(given) == count and all(given):
            return leads_of(given, {}, name=name)
    if count == 1:
        return leads_of((UNNAMED_LEAD,), options.lead_names, name=name)
    if count == len(STANDARD_LEADS):
        notices.append("twelve leads without names are taken in the standard order, I to V6")
        return STANDARD_LEADS
    raise UnusableError(
        "unreadable",
        f"{name} has {count} leads without names; name them, in order, with `lead_names`, such as "
        + ",".join(f"{number}={lead}" for number, lead in enumerate(STANDARD_LEADS[:count][:3], 1)),
    )


def _guess_unit(values: NDArray[Any], notices: list[str], *, name: str) -> str:
    step = -(-values.shape[1] // _LOOKED_AT)
    some = values[:, ::step].astype(np.float64)
    some[np.isinf(some)] = np.nan
    some.sort(axis=1)  # NaN last
    held = np.isfinite(some).sum(axis=1)
    rows = np.flatnonzero(held)
    if not rows.size:
        raise UnusableError("nan", f"{name} has no value in any lead")
    edge = (held[rows] - 1) // 200  # beyond which are half a percent of the values
    span = float(np.median(some[rows, held[rows] - 1 - edge] - some[rows, edge]))
    for unit, (least, most) in _SPANS.items():
        if least <= span <= most:
            notices.append(f"values are assumed to be in {unit}, judging by their size")
            return unit
    if span == 0:
        return "mV"  # flat, whatever the unit
    raise UnknownUnitError(
        "unreadable",
        f"{name} has leads that span {span:.3g}, which fits no unit; give it as `unit` (mV or µV)",
    )

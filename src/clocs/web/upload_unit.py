"""The unit of an upload: amplitudes that no ECG has are a question, never a guess."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clocs.errors import SourceError, UnknownUnitError, UnusableError
from clocs.recording import UNITS_PER_MV, Recording, noted

STEPS = "steps"  # of a converter, so many of them per mV
UNITS = ("mV", "µV", STEPS)
# What the middle 99 % of an ECG's leads span, their median, in mV: wider than any real ECG needs.
PLAUSIBLE_MV = (0.03, 50.0)


@dataclass(frozen=True)
class GivenUnit:
    """What the visitor says about a recording's numbers.

    Attributes:
        unit: One of `UNITS`; None where the file, or the size of its numbers, is to tell.
        gain: Steps per mV, of 'steps'.
        confirmed: Whether it was the answer to the question: then it counts, whatever it gives.
    """

    unit: str | None = None
    gain: float | None = None
    confirmed: bool = False


class UnitQuestionError(SourceError):
    """A recording with the amplitudes of no ECG: its unit has to be given.

    Attributes:
        facts: `name` of the recording, `span` of its leads in the numbers of the file, and `mv`,
            the span in mV as it was read; None where it could not be read.
    """

    def __init__(self, name: str, span: float, mv: float | None) -> None:
        least, most = PLAUSIBLE_MV
        read = "" if mv is None else f", {mv:.3g} mV as it was read"
        super().__init__(
            f"the leads of {name} span {span:.3g}{read}; those of an ECG span {least:g} to "
            f"{most:g} mV, so say in which unit its numbers are: mV, µV, or steps with their "
            "number per mV as the gain"
        )
        self.facts: dict[str, Any] = {"name": name, "span": span, "mv": mv}


def in_given_unit(read: Callable[[str | None], Recording], given: GivenUnit) -> Recording:
    """The recording that `read` gives for a unit, scaled as the visitor says.

    Raises:
        UnitQuestionError: Its amplitudes are those of no ECG, and the visitor was not asked yet.
    """
    if given.unit == STEPS:
        recording = _in_steps(read, given.gain or 1.0)
    else:
        try:
            recording = read(given.unit)
        except UnusableError as error:
            unclear = error.reason == "implausible" or isinstance(error, UnknownUnitError)
            if not unclear or (held := _numbers(read)) is None:
                raise
            name = held[0].id
            if given.confirmed:
                raise
            raise UnitQuestionError(name, span_mv(held[0]) * held[1], None) from None
        if given.confirmed and given.unit is not None and _says_its_unit(read):
            # the file's own unit is wrong: what it calls mV are these
            scale = UNITS_PER_MV[given.unit.lower()]
            recording = replace(recording, gain=recording.gain * scale)
    mv = span_mv(recording)
    if recording.unit != "mV" or not mv or PLAUSIBLE_MV[0] <= mv <= PLAUSIBLE_MV[1]:
        return recording
    if not given.confirmed:
        held = None if _says_its_unit(read) else _numbers(read)
        span = mv if held is None else span_mv(held[0]) * held[1]
        raise UnitQuestionError(recording.id, span, mv)
    notice = f"its leads span {mv:.3g} mV in the unit that was given, which is no ECG's amplitude"
    return replace(recording, extra=noted(recording.extra, notice))


def span_mv(recording: Recording) -> float:
    """The median over the leads that vary of what their middle 99 % span; 0 where none does."""
    step = max(1, recording.samples // 5000)
    digital = recording.digital[:, ::step].astype(np.float64)
    low, high = np.percentile(digital, (0.5, 99.5), axis=1)
    spans = (high - low) / recording.gain
    return float(np.median(spans[spans > 0])) if (spans > 0).any() else 0.0


def _numbers(read: Callable[[str | None], Recording]) -> tuple[Recording, float] | None:
    """The recording in a unit that makes its numbers readable, and how many of it make a mV."""
    for unit in ("mV", "µV", "nV"):
        try:
            recording = read(unit)
        except UnusableError:
            continue
        if span_mv(recording):
            return recording, UNITS_PER_MV[unit.lower()]
    return None


def _says_its_unit(read: Callable[[str | None], Recording]) -> bool:
    """Whether the file says it, so that what the visitor says has no effect on reading it."""
    try:
        return bool(np.array_equal(read("mV").signal, read("µV").signal, equal_nan=True))
    except UnusableError:
        return False


def _in_steps(read: Callable[[str | None], Recording], gain: float) -> Recording:
    """Of a file that says its unit, the samples as they are stored; of others, their numbers."""
    if _says_its_unit(read):
        recording = read(None)
        return replace(recording, gain=np.full(len(recording.leads), gain), unit="mV")
    held = _numbers(read)
    if held is None:
        return read(None)  # which says what is wrong
    recording, per_mv = held
    return replace(recording, gain=recording.gain * (gain / per_mv))

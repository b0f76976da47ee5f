"""From numbers in a file to the samples of a recording: what the readers of numbers share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError, UnusableError
from clocs.formats.base import ReadOptions
from clocs.formats.leads import name_leads
from clocs.recording import (
    UNITS_PER_MV,
    Gap,
    find_gaps,
    quantize_with_gaps,
)

WITHOUT_VALUES = "leads without values"  # in `Recording.extra`, where such leads are left out
_FAR = 2**30  # steps: no converter has as many


class Samples(NamedTuple):
    """Samples as a `Recording` has them, of the leads that have a value at all."""

    leads: tuple[str, ...]
    digital: NDArray[np.int16]
    gain: NDArray[np.float64]
    baseline: NDArray[np.int32]
    gaps: tuple[Gap, ...] = ()


@contextmanager
def decoding(name: str, what: str) -> Iterator[None]:
    """Turn whatever a library raises on a damaged file into one sentence; hide its warnings.

    Args:
        name: Of the file.
        what: Its format.

    Raises:
        UnusableError: unreadable.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (ClocsError, ImportError, NameError, MemoryError):
        raise  # a broken installation or too little memory, not a broken recording
    except Exception as error:
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise UnusableError("unreadable", f"{name} cannot be read as {what}: {text}") from None


def units_per_mv(unit: str) -> float:
    """How many of a voltage make one mV.

    Raises:
        SettingError: There is no such voltage.
    """
    per_mv = UNITS_PER_MV.get(unit.strip().lower())
    if per_mv is None:
        raise SettingError(f"`unit` is {unit!r}; give mV, µV (or uV), nV or V")
    return per_mv


def leads_of(names: Sequence[str], mapped: Mapping[str, str], *, name: str) -> tuple[str, ...]:
    """Leads by the names in a file, first by what the user said about them.

    Raises:
        UnusableError: unreadable, where two are the same lead or one has no name.
    """
    if not all(text.strip() and text.isprintable() for text in names):
        found = ", ".join(map(repr, names))[:100]
        raise UnusableError("unreadable", f"{name} does not name each lead: {found}")
    return name_leads(names, mapped, name=name)[0]


def stretch(options: ReadOptions, *, rate: float, samples: int, name: str) -> slice:
    """The samples between `start` and `stop` of the options.

    Raises:
        UnusableError: truncated, where there are none.
    """
    first = max(round(options.start * rate), 0)
    last = samples if options.stop is None else min(round(options.stop * rate), samples)
    if last <= first:
        detail = f"{name} has {samples:,} samples and none after {options.start:g} s"
        raise UnusableError("truncated", detail)
    return slice(first, last)


def from_integers(
    steps: NDArray[np.integer],
    leads: Sequence[str],
    *,
    gain: NDArray[np.float64],
    zero: NDArray[np.float64],
    missing: NDArray[np.bool_] | None = None,
    name: str,
) -> Samples:
    """Integers as they are, where 16 bits hold them; else in the finest steps that do.

    Args:
        steps: (leads, samples).
        leads: Their names.
        gain: (leads,) steps per mV.
        zero: (leads,) the value of 0 mV, in steps.
        missing: (leads, samples) where there is no value; None where there is one everywhere.
        name: Of the recording, for messages.

    Raises:
        UnusableError: nan, where there is no value at all.
    """
    gaps: tuple[Gap, ...] = ()
    if missing is not None and missing.any():
        kept, gaps = find_gaps(missing, leads, name=name)
        leads, gain, zero = [leads[i] for i in kept], gain[kept], zero[kept]
        steps, missing = steps[kept], missing[kept]
    else:
        missing = None
    ends = np.iinfo(steps.dtype)
    present: NDArray[np.bool_] | bool = True if missing is None else ~missing
    low = steps.min(axis=1, where=present, initial=ends.max).tolist()
    high = steps.max(axis=1, where=present, initial=ends.min).tolist()
    shift = [  # unsigned 16 bits, for example, are moved by 32768
        0 if a >= -32768 and b <= 32767 else (a + b + 1) // 2
        for a, b in zip(low, high, strict=True)
    ]
    narrow = all(b - a <= 65535 for a, b in zip(low, high, strict=True))
    near = all(abs(s) < _FAR for s in shift) and bool((np.abs(zero) < _FAR).all())
    if not (narrow and near and np.array_equal(zero, np.rint(zero))):
        signal = (steps - zero[:, None]) / gain[:, None]
        if missing is not None:
            signal[missing] = np.nan
        return from_floats(signal, leads, name=name)
    baseline = zero.astype(np.int64) - shift
    digital = steps.astype(np.int64) - np.array(shift)[:, None] if any(shift) else steps
    if missing is not None:
        digital = np.where(missing, baseline.clip(-32768, 32767)[:, None], digital)
    return Samples(
        tuple(leads),
        np.ascontiguousarray(digital, np.int16),
        gain,
        baseline.astype(np.int32),
        gaps,
    )


def from_floats(
    signal: NDArray[np.floating], leads: Sequence[str], *, per_mv: float = 1.0, name: str
) -> Samples:
    """As `quantize_with_gaps`; the arguments are the same."""
    leads, digital, gain, gaps = quantize_with_gaps(signal, leads, name=name, per_mv=per_mv)
    return Samples(leads, digital, gain, np.zeros(len(leads), np.int32), gaps)

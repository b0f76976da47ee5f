"""The sampling rate that a column of times gives."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnknownRateError, UnusableError

_PER_SECOND = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "μs": 1e6}
_PER_SECOND |= {"ns": 1e9}
_UNIT_AT_END = re.compile(r"(?:^|[\W_])(ms|us|µs|ns|s|sec|seconds)\W*$", re.IGNORECASE)
_CLOCK = re.compile(r"\d{1,3}(?::\d{1,2}){1,2}(?:[.,]\d+)?\Z")
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?\s?(?:Z|[+-]\d\d:?\d\d)?\Z")
# Numbers as large as this count from 1970, so many to the second.
_SINCE_1970 = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
_DECIMALS = re.compile(r":\d+[.,](\d+)")
_LOOKED_AT = 20  # times, for how many decimals they have: some programs leave out zeros
_COARSEST = 2e-3  # of the duration of a recording whose rate its times give
_LONGEST_STEP = 0.02  # s, of the lowest rate that an ECG has


def is_stamp(text: str) -> bool:
    """Whether it is a date with a time, such as '2024-01-01T12:00:00.004'."""
    return _STAMP.match(text.replace("/", "-")) is not None


def is_time(text: str) -> bool:
    """Whether it is a time such as '0:01.250' or '01:00:02', perhaps with a date."""
    return _CLOCK.match(text) is not None or is_stamp(text)


def stamp_of(text: str) -> datetime | None:
    """The moment that `is_stamp` is true of; None where there is no such day."""
    try:
        return datetime.fromisoformat(text.replace("/", "-").replace(" ", "T", 1).replace(" ", ""))
    except ValueError:
        return None


def seconds_of(times: NDArray[Any]) -> NDArray[np.float64]:
    """Text that `is_time` as seconds, NaN for anything else; numbers as they are."""
    if times.dtype.kind in "iuf":
        return times.astype(np.float64)
    if times.dtype.kind == "M":
        missing = np.isnat(times)
        return np.where(missing, np.nan, times.astype("datetime64[ns]").astype(np.int64) / 1e9)
    return np.array([_seconds(str(one)) for one in times])


def _seconds(text: str) -> float:
    if _CLOCK.match(text):
        total = 0.0
        for part in text.replace(",", ".").split(":"):
            total = 60 * total + float(part)
        return total
    stamp = stamp_of(text) if is_stamp(text) else None
    return np.nan if stamp is None else stamp.replace(tzinfo=stamp.tzinfo or UTC).timestamp()


def counts(column: NDArray[Any]) -> bool:
    """Whether values grow by one step throughout, as a counter's or a clock's do."""
    if len(column) < 3 or column.dtype.kind not in "iuf":
        return False
    column = column.astype(np.float64)
    step = (column[-1] - column[0]) / (len(column) - 1)
    return bool(step > 0 and np.abs(np.diff(column) - step).max() <= 0.01 * step)


def rate_of_times(
    times: NDArray[Any], *, column: str, unit: str | None, name: str, given: float | None = None
) -> tuple[float | None, str]:
    """The rate in Hz and what to say about it; None where the column only counts samples.

    A rate that the user gives counts where the column's unit would have to be guessed.

    Args:
        times: One per sample; numbers, or text that `is_time`.
        column: Its name.
        unit: Its unit, where the header says it.
        name: Of the recording, for messages.
        given: The rate that the user gives, where files do not.

    Raises:
        UnusableError: unreadable, where times jump and no rate is given.
        UnknownRateError: They are too coarse to give it, and no rate is given.
    """
    if len(times) < 2:
        return None, ""
    ending = _UNIT_AT_END.search(column)
    per_second = _PER_SECOND.get((unit or (ending[1] if ending else "")).lower(), 0.0)
    digit = 0.0  # what the last digit of a clock stands for, in seconds
    if times.dtype.kind not in "iuf":
        per_second = 1.0
        some = times[:_LOOKED_AT].astype(str)
        digit = min(0.1 ** len("".join(_DECIMALS.findall(one))) for one in some)
    times = seconds_of(times)
    if digit:  # a clock begins anew at midnight
        times += 86_400 * np.cumsum(np.diff(times, prepend=times[:1]) < -43_200)
    steps = np.diff(times)
    step = float((times[-1] - times[0]) / len(steps))
    if not step > 0:
        return None, ""
    even = bool(np.abs(steps - step).max() <= max(0.6 * step, 1.01 * digit))  # both are rounded
    coarse = digit > _COARSEST * (times[-1] - times[0])
    if given is not None and (coarse or not (per_second and even)):
        return None, ""
    if not even:
        row = int(np.abs(steps - step).argmax()) + 2
        raise UnusableError(
            "unreadable",
            f"{name} has times that jump in row {row:,}; give the sampling rate in Hz as `rate`",
        )
    if coarse:
        what = f"has times in steps of {digit:g} s, too coarse to tell its sampling rate"
        raise UnknownRateError.for_recording(name, what)
    guessed = not per_second
    if guessed:
        since = next((per for least, per in _SINCE_1970 if times[0] >= least), None)
        if step == 1 and since is None:  # a counter, or milliseconds at 1000 Hz
            return None, ""
        per_second = since or (1.0 if step <= _LONGEST_STEP else 1e3)
    rate = per_second / step
    rate = float(round(rate)) if abs(rate - round(rate)) < 1e-3 * rate else rate
    kind = {1.0: "seconds", 1e3: "milliseconds", 1e6: "microseconds"}.get(per_second, "nanoseconds")
    taken = f"the column {column or 1} is taken as {kind}, which" if guessed else f"{column}"
    other = given is not None and abs(rate - given) > 0.01 * rate
    instead = f", not the {given:g} Hz that were given" if other else ""
    return rate, f"{taken} gives a rate of {rate:g} Hz{instead}"

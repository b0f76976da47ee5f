"""The sampling rate that a column of times gives."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError

_PER_SECOND = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "μs": 1e6}
_UNIT_AT_END = re.compile(r"(?:^|[\W_])(ms|us|µs|s|sec|seconds)\W*$", re.IGNORECASE)
_CLOCK = re.compile(r"\d{1,3}(?::\d{1,2}){1,2}(?:[.,]\d+)?\Z")
_LONGEST_STEP = 0.02  # s, of the lowest rate that an ECG has


def is_clock(text: str) -> bool:
    """Whether it is a time such as '0:01.250' or '01:00:02'."""
    return _CLOCK.match(text) is not None


def seconds_of(clock: str) -> float:
    """The seconds of a time such as '0:01.250' or '01:00:02'; NaN for anything else."""
    if not is_clock(clock):
        return np.nan
    total = 0.0
    for part in clock.replace(",", ".").split(":"):
        total = 60 * total + float(part)
    return total


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
        times: One per sample; numbers, or text such as '0:01.250'.
        column: Its name.
        unit: Its unit, where the header says it.
        name: Of the recording, for messages.
        given: The rate that the user gives, where files do not.

    Raises:
        UnusableError: unreadable, where times jump and no rate is given.
    """
    if len(times) < 2:
        return None, ""
    ending = _UNIT_AT_END.search(column)
    per_second = _PER_SECOND.get((unit or (ending[1] if ending else "")).lower(), 0.0)
    if times.dtype.kind not in "iuf":  # a clock's digits round, so that only its ends count
        ends = seconds_of(str(times[0])), seconds_of(str(times[-1]))
        times, per_second = np.linspace(*ends, len(times)), 1.0
    times = times.astype(np.float64)
    steps = np.diff(times)
    step = float((times[-1] - times[0]) / len(steps))
    if not step > 0:
        return None, ""
    if given is not None and (not per_second or not np.abs(steps - step).max() <= 0.6 * step):
        return None, ""
    if not np.abs(steps - step).max() <= 0.6 * step:  # rounded times differ by up to a half
        row = int(np.abs(steps - step).argmax()) + 2
        raise UnusableError(
            "unreadable",
            f"{name} has times that jump in row {row:,}; give the sampling rate in Hz as `rate`",
        )
    guessed = not per_second
    if guessed:
        if step == 1:  # a counter, or milliseconds at 1000 Hz
            return None, ""
        per_second = 1.0 if step <= _LONGEST_STEP else 1e3
    rate = per_second / step
    rate = float(round(rate)) if abs(rate - round(rate)) < 1e-3 * rate else rate
    kind = {1.0: "seconds", 1e3: "milliseconds"}.get(per_second, "microseconds")
    taken = f"the column {column or 1} is taken as {kind}, which" if guessed else f"{column}"
    other = given is not None and abs(rate - given) > 0.01 * rate
    instead = f", not the {given:g} Hz that were given" if other else ""
    return rate, f"{taken} gives a rate of {rate:g} Hz{instead}"

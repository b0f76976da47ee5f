"""ECGs as comma-separated text, as the Chapman dataset publishes them.

One row per sample, one column per lead; no header row (then the standard twelve leads in their
usual order) or one with lead names. Neither the rate nor the unit is in the file: they are given,
or those of Chapman are assumed and checked. `text_table.py` reads tables of every other layout.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError, UnusableError
from clocs.limits import UNPACKED_FREELY
from clocs.recording import (
    STANDARD_LEADS,
    UNITS_PER_MV,
    Recording,
    canonical_lead,
    check_plausible,
    quantise,
)

RATE_HZ = 500.0
ROWS = 5000  # 10 s
_MOST_LINE = 64 << 10  # characters
# The range of the largest lead of any ECG lies between these, in mV.
_SMALLEST_MV, _LARGEST_MV = 0.05, 200.0


def read_csv(
    data: bytes,
    *,
    name: str,
    rate: float | None = None,
    unit: str | None = None,
    rows: int = 1,
) -> Recording:
    """Decode one file.

    Args:
        data: The file's bytes.
        name: The recording's id, also its patient.
        rate: In Hz; without it, the file must hold 10 s at 500 Hz.
        unit: 'mV', 'µV' …; µV by default, if that gives the amplitudes of an ECG.
        rows: A file with fewer rows is truncated.

    Raises:
        UnusableError: truncated, nan or unreadable, also where rate or unit cannot be right.
        SettingError: There is no such unit.
    """
    per_mv = UNITS_PER_MV.get((unit or "µV").lower())
    if per_mv is None:
        raise SettingError(f"`unit` is {unit!r}; give mV, µV (or uV), nV or V")
    leads, body = _split_header(data, name)
    whole = _is_whole(body, columns=len(leads))
    values = _numbers_fast(body, columns=len(leads)) if whole else None
    if values is None:
        values = _numbers_slowly(body, columns=len(leads), name=name, whole=whole)
    if values.shape[1] < rows and np.isfinite(values).all():
        raise UnusableError("truncated", f"{name} has {values.shape[1]} of {rows} rows")
    if rate is None and values.shape[1] != ROWS:
        raise UnusableError(
            "unreadable",
            f"{name} has {values.shape[1]:,} rows, not the {ROWS:,} of 10 s at 500 Hz; "
            "give its sampling rate in Hz as `rate`",
        )
    try:
        digital, gain = quantise(values, per_mv)
    except UnusableError:
        row, column = np.argwhere(~np.isfinite(values.T))[0]
        detail = f"{name} has no finite value in row {row + 1}, lead {leads[column]}"
        raise UnusableError("nan", detail) from None
    _check_amplitude(digital, gain, name=name, unit=unit)
    recording = Recording(
        id=name,
        patient=name,
        leads=leads,
        rate=rate or RATE_HZ,
        digital=digital,
        gain=gain,
        baseline=np.zeros(len(leads), np.int32),
    )
    check_plausible(recording)
    return recording


def _check_amplitude(
    digital: NDArray[np.int16], gain: NDArray[np.float64], *, name: str, unit: str | None
) -> None:
    """Refuse amplitudes that no ECG has; small ones may be right where the unit was given."""
    steps = digital.max(axis=1).astype(np.int64) - digital.min(axis=1)
    size = float((steps / gain).max())
    if size > _LARGEST_MV or (unit is None and 0 < size < _SMALLEST_MV):
        raise UnusableError(
            "unreadable",
            f"{name} spans {size:.3g} mV if its values are in {unit or 'µV'}, which is no ECG; "
            "give the unit of its values as `unit` (mV or µV)",
        )


def _split_header(data: bytes, name: str) -> tuple[tuple[str, ...], bytes]:
    """Lead names and the rows below them."""
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not data.endswith(b"\n") or data.endswith(b"\n\n"):
        data = data.rstrip(b"\n \t\0") + b"\n"
    end = data.index(b"\n")
    if end > _MOST_LINE:
        detail = f"{name} has a first line of {end:,} characters; one value per lead is expected"
        raise UnusableError("exceeds limits", detail)
    first = data[:end]
    if not first:
        raise UnusableError("truncated", f"{name} is empty")
    fields = first.split(b",")
    if _is_number(fields[0]) or not fields[0].strip():
        if len(fields) != len(STANDARD_LEADS) and len(first) + 1 < len(data):
            raise UnusableError(
                "unreadable",
                f"{name} has {len(fields)} columns and no header row; "
                f"{len(STANDARD_LEADS)} leads are expected",
            )
        return STANDARD_LEADS, data
    try:
        names = [field.decode().strip().strip("\"'") for field in fields]
    except UnicodeDecodeError:
        raise UnusableError("unreadable", f"{name} is not text") from None
    leads = tuple(canonical_lead(lead) for lead in names)
    if len(set(leads)) != len(leads) or not all(lead.isprintable() and lead for lead in leads):
        detail = f"{name} starts with neither numbers nor lead names: {first[:40]!r}"
        raise UnusableError("unreadable", detail)
    return leads, data[len(first) + 1 :]


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _is_whole(body: bytes, *, columns: int) -> bool:
    """Whether rows can hold one number per column, looked at where memory or time is at stake."""
    step = _MOST_LINE
    if len(body) <= step:
        return True
    if 8 * columns * len(body) <= UNPACKED_FREELY:
        return body.find(b"\n", 0, step) >= 0
    ends = all(body.find(b"\n", at, at + step) >= 0 for at in range(0, len(body) - step, step))
    return ends and 2 * columns * body.count(b"\n") <= len(body)


def _numbers_slowly(
    body: bytes, *, columns: int, name: str, whole: bool = True
) -> NDArray[np.float64]:
    """(columns, rows), field by field: for unusual files, and to say what is wrong.

    Where the body is not `whole`, a row is found in which numbers are missing.
    """
    if not body.strip():
        return np.empty((columns, 0))
    rows = body.count(b"\n")
    values = np.empty((columns, rows if whole else 0))
    for row, line in enumerate(_lines(body)):
        fields = line.split(b",", columns)
        last = row == rows - 1
        if last and len(fields) < columns:
            raise UnusableError("truncated", f"{name} breaks off in row {row + 1}")
        if len(fields) != columns:
            held = line.count(b",") + 1
            detail = f"{name} has {held} columns in row {row + 1}, {columns} above"
            raise UnusableError("unreadable", detail)
        for column, field in enumerate(fields):
            if not field.strip():
                reason = "truncated" if last else "nan"
                raise UnusableError(reason, f"{name} has an empty field in row {row + 1}")
            if not _is_number(field):
                detail = f"{name} has {field[:20]!r} for a number in row {row + 1}"
                raise UnusableError("unreadable", detail)
            if whole:
                values[column, row] = float(field)
    return values


def _lines(body: bytes) -> Iterator[bytes]:
    """Its lines, one at a time: a list of them could take many times as much memory."""
    start = 0
    while (stop := body.find(b"\n", start)) >= 0:
        yield body[start:stop]
        start = stop + 1


def _numbers_fast(body: bytes, *, columns: int) -> NDArray[np.float64] | None:
    """(columns, rows), equal to `float` of each field; None if a field is not a plain number."""
    import polars as pl  # here, because processes that read are forked before it is imported

    schema = {f"column_{number}": pl.Float64 for number in range(columns)}
    try:
        table = pl.read_csv(body, has_header=False, schema=schema, quote_char=None)
    except pl.exceptions.PolarsError:
        return None
    values = np.ascontiguousarray(table.to_numpy().T, np.float64)
    return values if np.isfinite(values).all() else None

"""ECGs as tables in text: any separator, with a header or without; wide, long, or lead by lead."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnknownRateError, UnusableError
from clocs.formats.arrays import Said, find_axes, recording_from
from clocs.formats.base import HEAD_BYTES, FileFormat, ReadOptions
from clocs.formats.field_names import meaning_of, rate_in, split_unit
from clocs.formats.long_table import from_long
from clocs.formats.samples import stretch, units_per_mv
from clocs.formats.source import Source, stem
from clocs.formats.text_layout import MISSING, TextLayout, find_layout
from clocs.formats.times import counts, is_time, rate_of_times, stamp_of
from clocs.limits import UNPACKED_FREELY
from clocs.recording import UNITS_PER_MV, Recording

if TYPE_CHECKING:
    import polars as pl

_MAX_ROWS_OF_LEADS = 64
_FIRST_LOOK = 64 << 10  # bytes
_NO_LEADS = frozenset({"id", "patient", "labels", "age", "sex", "taken", "rate"})


def read_table(data: bytes, *, name: str, options: ReadOptions | None = None) -> Recording:
    """Decode one file.

    Args:
        data: The file's bytes.
        name: The recording's id, also its patient.
        options: By the user, for what the file does not say.

    Raises:
        UnusableError: truncated, unreadable, nan, implausible or beyond the limits.
        SettingError: There is no such unit.
    """
    options = options or ReadOptions()
    data = _plain(data, name)
    layout = find_layout(data, whole=True)
    if layout is None:
        if not data.strip():
            raise UnusableError("truncated", f"{name} is empty")
        raise UnusableError("unreadable", f"{name} is no table of numbers")
    facts = layout.facts
    taken = stamp_of(facts.get("taken", ""))
    said = Said(
        rate=rate_in(facts.get("rate", "")),
        unit=facts.get("unit"),
        taken=taken.replace(tzinfo=None).isoformat() if taken else None,
        extra=layout.comments,
    )
    body = data[layout.start :]
    lines = body.count(b"\n", 0, _FIRST_LOOK) + 1
    if lines <= _MAX_ROWS_OF_LEADS:
        lines = body.count(b"\n") + 1
    values: NDArray[np.float64]
    if lines <= _MAX_ROWS_OF_LEADS and layout.columns >= 4 * lines and layout.columns >= 50:
        values, said = _rows_of_leads(body, layout, said, name)
    else:
        table = _table(body, layout, name)
        meanings = {meaning_of(one) for one in layout.names or ()}
        if {"lead", "value"} <= meanings:
            columns = layout.names or ()
            values, said = from_long(table, said, name=name, taken=columns, given=options.rate)
        else:
            values, said = _wide(table, layout, said, options, name)
    rate = said.rate or options.rate
    if rate is None:
        raise UnknownRateError.for_recording(name)
    kept = stretch(options, rate=rate, samples=values.shape[1], name=name)
    return recording_from(values[:, kept], said, options, name=name, sample=values)


def _plain(data: bytes, name: str) -> bytes:
    """As UTF-8, without a byte order mark and with line feeds alone; what is no UTF is cp1252."""
    for mark, code in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if data.startswith(mark):
            try:
                data = data[2:].decode(code).encode()
            except UnicodeError:
                raise UnusableError("unreadable", f"{name} is damaged text") from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        if not data.isascii():
            data.decode()
    except UnicodeDecodeError as error:
        if error.end < len(data) or error.reason != "unexpected end of data":  # of a file's head
            data = data.decode("cp1252", "replace").encode()
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data


def _table(body: bytes, layout: TextLayout, name: str) -> pl.DataFrame:
    """One column per column of the file, `0`, `1` …; NaN where a number is missing."""
    import polars as pl

    separator = layout.separator
    if separator == " ":
        body = _without_spaces(body, "\n")
    body = body.strip(b"\n") + b"\n"
    rows = body.count(b"\n")
    if 8 * layout.columns * rows > max(UNPACKED_FREELY, 8 * len(body)):
        raise UnusableError("exceeds limits", f"{name} has {rows:,} rows that are mostly empty")
    last = body[body.rfind(b"\n", 0, -1) + 1 : -1].decode("utf-8", "replace")
    if not last.startswith("#") and len(layout.fields(last)) < layout.columns:
        raise UnusableError("truncated", f"{name} breaks off in row {rows:,}")
    kinds = (pl.String if i in layout.text else pl.Float64 for i in range(layout.columns))
    options: dict[str, Any] = {
        "has_header": False,
        "schema": {str(i): kind for i, kind in enumerate(kinds)},
        "separator": separator or "\x1f",
        "quote_char": layout.quote if layout.quote.encode() in body else None,
        "decimal_comma": layout.decimal == ",",
        "comment_prefix": "#" if b"\n#" in body else None,
    }
    try:  # the usual file first: looking for words that stand for no value takes as long again
        return pl.read_csv(body, **options)
    except pl.exceptions.PolarsError:
        options["null_values"] = list(MISSING)
    if separator not in (" ", ""):
        body = _without_spaces(body, "\n" + separator)
    try:
        return pl.read_csv(body, **options)
    except pl.exceptions.PolarsError as error:
        raise _bad_row(body, layout, name, error) from None


def _without_spaces(body: bytes, marks: str) -> bytes:
    """With one space for each run of white space, and none beside these marks; in linear time."""
    if "\t" not in marks:
        body = body.replace(b"\t", b" ")
    body = re.sub(rb"  +", b" ", body)
    for mark in marks:
        one = mark.encode()
        body = body.replace(b" " + one, one).replace(one + b" ", one)
    return body.strip(b" ")


def _bad_row(body: bytes, layout: TextLayout, name: str, error: Exception) -> UnusableError:
    """What is wrong, and where."""
    start = row = 0
    while (stop := body.find(b"\n", start)) >= 0:
        row += 1
        fields = layout.fields(body[start:stop].decode("utf-8", "replace"))
        if len(fields) > layout.columns:
            detail = f"{name} has {len(fields)} columns in row {row:,}, {layout.columns} above"
            return UnusableError("unreadable", detail)
        for column, field in enumerate(fields):
            if column not in layout.text and field not in MISSING and not _is_number(field, layout):
                detail = f"{name} has {field[:20]!r} for a number in row {row:,}"
                return UnusableError("unreadable", detail)
        start = stop + 1
    text = " ".join(str(error).split())[:100]
    return UnusableError("unreadable", f"{name} cannot be read as a table: {text}")


def _is_number(field: str, layout: TextLayout) -> bool:
    try:
        float(field.replace(",", ".") if layout.decimal == "," else field)
    except ValueError:
        return False
    return True


def _rows_of_leads(
    body: bytes, layout: TextLayout, said: Said, name: str
) -> tuple[NDArray[np.float64], Said]:
    """(leads, samples) of a file with one lead per line, perhaps with its name in front."""
    named = 0 in layout.text
    if layout.text - {0}:
        raise UnusableError("unreadable", f"{name} has text among the numbers of its first row")
    one = layout._replace(text=frozenset(), columns=1, separator="")
    rows, names = [], []
    for line in body.strip(b"\n").split(b"\n"):
        text = b"\n".join(line.split()) if layout.separator == " " else line.strip()
        if layout.separator != " ":
            text = text.replace(layout.separator.encode(), b"\n")
        if named:
            lead, _, text = text.partition(b"\n")
            names.append(lead.decode("utf-8", "replace").strip(layout.quote + " "))
        rows.append(_table(text, one, name)["0"].to_numpy())
    if len({len(row) for row in rows}) > 1:
        raise UnusableError("unreadable", f"{name} has rows of different lengths")
    shape = f"{len(rows)} rows of {len(rows[0]):,} numbers are taken as leads"
    notices = said.notices if named else (*said.notices, shape)
    return np.stack(rows), replace(said, leads=names if named else None, notices=notices)


def _wide(
    table: pl.DataFrame, layout: TextLayout, said: Said, options: ReadOptions, name: str
) -> tuple[NDArray[np.float64], Said]:
    """(leads, samples) of a file with one column per lead."""
    names = layout.names or ("",) * layout.columns
    meanings = [meaning_of(one) for one in names]
    notices = list(said.notices)
    clock = next((i for i, meaning in enumerate(meanings) if meaning == "time"), None)
    if clock is None:
        texts = (i for i in sorted(layout.text) if len(table) and is_time(str(table[str(i)][0])))
        clock = next(texts, None)
    # No lead rises by equal steps throughout, whatever the name of its column.
    if clock is None and layout.columns > 1 and counts(table["0"].to_numpy()):
        clock = 0
    skipped = {i for i, meaning in enumerate(meanings) if meaning in _NO_LEADS or i in layout.text}
    skipped |= {i for i, meaning in enumerate(meanings) if meaning == "sample" or i == clock}
    columns = [i for i in range(layout.columns) if i not in skipped]
    other = [names[i] for i in sorted(layout.text - {clock}) if names[i]]
    if other:
        notices.append(f"columns that are no numbers were left out: {', '.join(other)[:100]}")
    if not columns:
        raise UnusableError("unreadable", f"{name} has no column of numbers that could be a lead")
    rate = said.rate
    if rate is None and clock is not None:
        rate, notice = rate_of_times(
            table[str(clock)].to_numpy(),
            column=names[clock],
            unit=layout.units[clock],
            name=name,
            given=options.rate,
        )
        notices += [notice] if notice else []
    values = table.select(str(i) for i in columns).to_numpy().T.astype(np.float64, copy=False)
    units = [layout.units[i] for i in columns]
    unit = said.unit
    if all(one and one.lower() in UNITS_PER_MV for one in units):
        scales = np.array([units_per_mv(str(one)) for one in units])
        unit = "mV"
        values = values / scales[:, None]
    leads = None if layout.names is None else [split_unit(names[i])[0] for i in columns]
    if leads is None and len(columns) == 1 and "lead" in layout.facts:
        leads = [layout.facts["lead"]]
    if leads is None and len(columns) > 1:
        find_axes((len(columns), len(table)), None, options, name=name)  # enough samples to tell
    return np.ascontiguousarray(values), replace(
        said, leads=leads, rate=rate, unit=unit, notices=tuple(notices)
    )


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    return read_table(source.read(path), name=stem(path), options=options)


def _recognize(head: bytes) -> bool:
    try:
        layout = find_layout(_plain(head, ""), whole=len(head) < HEAD_BYTES)
    except UnusableError:
        return False
    return layout is not None and layout.is_signal()


CSV = FileFormat("CSV", ".csv", _read, other_suffixes=(".tsv",), recognize=_recognize, generic=True)

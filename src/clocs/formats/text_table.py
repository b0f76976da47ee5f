"""ECGs as tables in text: any separator, with a header or without; wide, long, or lead by lead."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.files import UNPACKED_FREELY
from clocs.formats import base
from clocs.formats.arrays import meaning_of, rate_in, recording_from, split_unit
from clocs.formats.base import FileFormat, FileMetadata, ReadOptions, truncated, unreadable
from clocs.formats.source import Source, stem
from clocs.formats.tables import from_table, is_stamp, is_time, stamp_of
from clocs.recording import STANDARD_LEADS, UNITS_PER_MV, Recording, canonical_lead

if TYPE_CHECKING:
    import polars as pl

_MISSING = (
    *("", "NA", "N/A", "na", "null", "NULL", "None", "?", "-"),
    *("NaN", "nan", "NAN", "inf", "-inf"),
)
_MAX_ROWS_OF_LEADS = 64
_LOOKED_AT = 1 << 20  # bytes from which the layout is told
_LINES = 40
_MAX_ABOVE = 3  # lines above the numbers that say nothing about them
_MIN_ROWS, _MIN_SAMPLES = 8, 50  # of numbers without a header that can be a signal
_COMMENTS = ("#", "%", "//")
# Each digit can be matched in one way only, or long runs of them would take quadratic time.
_POINT = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?\Z")
_COMMA = re.compile(r"[-+]?(?:\d+(?:,\d*)?|,\d+)(?:[eE][-+]?\d+)?\Z")
_BLANK = re.compile(r"\s*\n")
_FACT = re.compile(r"([^,;:=\t]{1,60})[,;:=\t](.{1,200})")
_SAMPLING = re.compile(r"samp|abtast|messrate|amostr|muestr|chantil|サンプル", re.IGNORECASE)
_HERTZ = re.compile(r"[\d.,]+\s*(?:hz|hertz|hercios|ヘルツ)", re.IGNORECASE)
_PERSONAL = re.compile(
    r"(?:\b|_)(?:\w*name|birth\w*|dob|geb\w*|nasc\w*|naiss\w*|nacim\w*|address|phone)\Z",
    re.IGNORECASE,
)
_NAMES_A_SIGNAL = re.compile(r"ecg|ekg|lead|signal|channel|volt|mv|[uµμ]v", re.IGNORECASE)


class _Layout(NamedTuple):
    """A table of numbers in text.

    Attributes:
        separator: Of fields; ' ' for any white space, '' where there is one column.
        decimal: The mark before the decimals, '.' or ','.
        quote: Around fields.
        start: First byte of the numbers.
        names: Of the columns; None where there is no header.
        units: Of the columns, where the header says them.
        text: Columns that are not numbers.
        columns: How many there are.
        rows: Those that were looked at.
        comments: Those of the form `name: value` before the numbers, but for names of persons.
        facts: `rate`, `unit`, `lead` and `recorded_at`, which lines above the numbers give.
    """

    separator: str
    decimal: str
    quote: str
    start: int
    names: tuple[str, ...] | None
    units: tuple[str | None, ...]
    text: frozenset[int]
    columns: int
    rows: int
    comments: dict[str, str]
    facts: dict[str, str]

    def fields(self, line: str) -> list[str]:
        return _fields(line, self.separator, self.quote)

    def is_signal(self) -> bool:
        """Whether the header, if there is one, is that of a signal and not of another table."""
        if self.names is None:
            enough = self.rows >= _MIN_ROWS or self.columns >= _MIN_SAMPLES
            return enough and not self.text - {0}
        meanings = {meaning_of(name) for name in self.names}
        if {"lead", "value"} <= meanings:
            return True
        numbers = [name for i, name in enumerate(self.names) if i not in self.text]
        known = any(map(_is_lead, numbers))
        told = any(_NAMES_A_SIGNAL.search(name) for name in numbers) or any(self.units)
        return known or (told and len(self.text) < 2) or ("time" in meanings and not self.text)


def _find_layout(data: bytes, *, whole: bool) -> _Layout | None:
    """The layout of a table that begins with `data`; None where it is no table of numbers.

    Args:
        data: UTF-8 text from its start.
        whole: Whether this is all of it; else its last line counts only up to its last field.
    """
    head = data[:_LOOKED_AT]
    if b"\0" in head:
        return None
    text = head.decode("utf-8", "replace")
    if len(head) < len(data) or not whole:
        cut = text.rfind("\n")
        if cut < 0:
            cut = max(text.rfind(mark) for mark in ",;\t| ") - 1
        text = text[: cut + 1]
    lines: list[tuple[int, str]] = []
    comments: dict[str, str] = {}
    facts: dict[str, str] = {}
    at = start = 0
    while start < len(text) and len(lines) < _LINES:
        blank = _BLANK.match(text, start)
        stop = blank.end() if blank else text.find("\n", start) + 1 or len(text)
        raw = text[start:stop]
        line = raw.strip()
        if line.startswith(_COMMENTS):
            line = re.sub(r"^[#%/\s]+", "", line[:1000])
            key, mark, value = line.partition(":" if ":" in line else "=")
            if mark and not lines:
                facts |= _fact(line)
                if not _PERSONAL.search(key.strip()):
                    comments.setdefault(key.strip().lower(), value.strip())
        elif line:
            lines.append((at, raw.rstrip("\n")))
        start, at = stop, at + len(raw.encode())
    found: list[_Layout] = []
    for separator in (*";\t|, ", ""):
        if (one := _with(separator, lines)) is not None:
            found.append(one)
            if one.columns > 1 and not one.text:
                break  # none fits better
    best = min(found, key=lambda one: (len(one.text), one.columns == 1), default=None)
    return best and best._replace(comments=comments, facts=facts | best.facts)


def _fact(line: str) -> dict[str, str]:
    """What a line such as 'Sample Rate,512 hertz' says about the numbers below it, if anything.

    The values tell most of it in any language: 'Ableitung,Ableitung I' is a lead as well. A name,
    a date of birth or whatever else a line holds is not looked at.
    """
    match = _FACT.match(line.strip().strip("\"'"))
    if match is None:
        return {}
    key, value = match[1].strip(), match[2].strip(" \t\xa0,;\"'")
    meaning = meaning_of(key)
    if meaning in ("time", "sample") or _is_lead(key):
        return {}  # names of columns
    if rate_in(value) and (
        meaning == "rate" or (_SAMPLING.search(key) and _HERTZ.fullmatch(value))
    ):
        return {"rate": value}
    if value.lower() in UNITS_PER_MV and (meaning == "unit" or len(value) > 1):
        return {"unit": value}
    lead = canonical_lead(value.removeprefix(key))
    if lead in STANDARD_LEADS and (value.startswith(key) or meaning == "lead"):
        return {"lead": lead}
    return {"recorded_at": value} if is_stamp(value) and not _PERSONAL.search(key) else {}


def _with(sep: str, lines: Sequence[tuple[int, str]]) -> _Layout | None:
    """The layout if this is the separator."""
    some = "".join(line for _, line in lines)
    quote = "'" if "'" in some and '"' not in some else '"'
    rows = [_fields(line, sep, quote) for _, line in lines]
    if not rows:
        return None
    columns = len(rows[-2 if len(rows) > 1 else -1])  # the last row may be cut off
    if (columns < 2) != (sep == ""):
        return None
    first = _first_of_body(rows, columns, sep)
    body, above = rows[first:], [row for row in rows[:first] if any(row)]
    given = [_fact(line) for _, line in lines[:first]]
    facts = {key: value for one in given for key, value in one.items()}
    odd = len(above) > _MAX_ABOVE or any(_is_data(row, sep) for row in above)
    if (odd and not facts.keys() & {"rate", "unit"}) or any(map(_is_numbers, above)):
        return None
    single = sep == "," and columns == 2 and above and (len(above[-1]) == 1 or given[-1])
    if single and all(_COMMA.match(",".join(row)) for row in body):
        return None  # one column, with commas before the decimals
    fields = [field for row in body for field in row]
    points = any("." in field and _POINT.match(field) for field in fields)
    commas = sep != "," and not points and any("," in field for field in fields)
    number, decimal = (_COMMA, ",") if commas else (_POINT, ".")
    header = [row for row in above if len(row) == columns and (sep or not _FACT.match(row[0]))]
    if above and above[-1] not in header:
        header = []
    names, units = _header(header, columns)
    text = frozenset(i for i in range(columns) if _is_text(i, body, names, number))
    if len(text) == columns:
        return None
    start = lines[first][0]
    counted = [str(i) for i in range(columns)], ["", *map(str, range(columns - 1))]
    if names is None and columns > 2 and body[0] in counted and body[1:2] not in ([], body[:1]):
        start = lines[first + 1][0]  # columns that a library has numbered
    return _Layout(sep, decimal, quote, start, names, units, text, columns, len(body), {}, facts)


def _first_of_body(rows: Sequence[list[str]], columns: int, sep: str) -> int:
    """The first of the rows that hold numbers down to the last of them."""
    first = len(rows) - 1
    while first and len(rows[first - 1]) == columns and _is_data(rows[first - 1], sep):
        first -= 1
    while first < len(rows) - 1 and not any(rows[first]):
        first += 1
    return first


def _is_text(
    column: int, body: Sequence[list[str]], names: Sequence[str] | None, number: re.Pattern[str]
) -> bool:
    """Whether a column holds no numbers; a lead without a value is one of numbers, too."""
    shown = [row[column] for row in body if column < len(row) and row[column] not in _MISSING]
    if shown:
        return not all(number.match(field) for field in shown)
    if names is not None:
        return not _is_lead(names[column])
    return len(body[0]) != len(STANDARD_LEADS) and column == len(body[0]) - 1


def _header(
    rows: Sequence[list[str]], columns: int
) -> tuple[tuple[str, ...] | None, tuple[str | None, ...]]:
    """Names and units from the lines right above the numbers."""
    if not rows:
        return None, (None,) * columns
    with_units = len(rows) > 1 and any(unit.lower() in UNITS_PER_MV for unit in rows[-1])
    names = rows[-2] if with_units else rows[-1]
    units = [split_unit(name)[1] for name in names]
    if with_units:
        units = [unit or old for unit, old in zip(rows[-1], units, strict=True)]
    return tuple(names), tuple(units)


def _is_lead(name: str) -> bool:
    return canonical_lead(split_unit(name)[0]) in STANDARD_LEADS


def _fields(line: str, sep: str, quote: str) -> list[str]:
    if not sep:
        return [line.strip().strip(quote).strip()]
    parts = line.split() if sep == " " else line.split(sep)
    return [part.strip().strip(quote).strip() for part in parts]


def _is_data(row: Sequence[str], sep: str) -> bool:
    """Whether a line holds numbers; a decimal comma only where fields are divided otherwise."""
    return all(field in _MISSING for field in row) or any(
        _POINT.match(field) or (sep != "," and _COMMA.match(field)) or is_time(field)
        for field in row
    )


def _is_numbers(row: Sequence[str]) -> bool:
    return any(row) and all(field in _MISSING or _POINT.match(field) for field in row)


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
    data = plain_text(data, name)
    layout = _find_layout(data, whole=True)
    if layout is None:
        if not data.strip():
            raise truncated(f"{name} is empty")
        raise unreadable(f"{name} is no table of numbers")
    facts, body = layout.facts, data[layout.start :]
    moment = stamp_of(facts.get("recorded_at", ""))
    meta = FileMetadata(
        rate=rate_in(facts.get("rate", "")),
        unit=facts.get("unit"),
        recorded_at=moment.replace(tzinfo=None).isoformat() if moment else None,
        extra=layout.comments,
    )
    lines = body.count(b"\n") + 1
    if lines <= _MAX_ROWS_OF_LEADS and layout.columns >= max(4 * lines, 50):
        values = _rows_of_leads(body, layout, meta, name)
        return recording_from(values, meta, options, name=name)
    values, units = from_table(
        _table(body, layout, name), meta, options, name=name, names=layout.names, units=layout.units
    )
    values = np.ascontiguousarray(values, np.float64)
    if units and all(one and one.lower() in UNITS_PER_MV for one in units):
        values = values / np.array([base.units_per_mv(str(one)) for one in units])[:, None]
        meta.unit = "mV"
    if meta.leads is None and len(values) == 1 and "lead" in facts:
        meta.leads = [facts["lead"]]
    return recording_from(values, meta, options, name=name)


def plain_text(data: bytes, name: str) -> bytes:
    """As UTF-8, without a byte order mark and with line feeds alone; what is no UTF is cp1252."""
    for mark, code in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if data.startswith(mark):
            try:
                data = data[2:].decode(code).encode()
            except UnicodeError:
                raise unreadable(f"{name} is damaged text") from None
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


def _table(body: bytes, layout: _Layout, name: str) -> pl.DataFrame:
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
        raise truncated(f"{name} breaks off in row {rows:,}")
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
        options["null_values"] = list(_MISSING)
    if separator not in (" ", ""):
        body = _without_spaces(body, "\n" + separator)
    try:
        return pl.read_csv(body, **options)
    except pl.exceptions.PolarsError as error:
        what = _bad_row(body, layout) or f"cannot be read as a table: {error!s:.100}"
        raise unreadable(f"{name} {what}") from None


def _bad_row(body: bytes, layout: _Layout) -> str:
    """What is wrong, and where; '' where that is not found."""
    number = _COMMA if layout.decimal == "," else _POINT
    for row, line in enumerate(io.BytesIO(body), 1):
        fields = layout.fields(line.decode("utf-8", "replace"))
        if len(fields) > layout.columns:
            return f"has {len(fields)} columns in row {row:,}, {layout.columns} above"
        for column, field in enumerate(fields):
            if column not in layout.text and field not in _MISSING and not number.match(field):
                return f"has {field[:20]!r} for a number in row {row:,}"
    return ""


def _without_spaces(body: bytes, marks: str) -> bytes:
    """With one space for each run of white space, and none beside these marks; in linear time."""
    if "\t" not in marks:
        body = body.replace(b"\t", b" ")
    body = re.sub(rb"  +", b" ", body)
    for mark in marks:
        one = mark.encode()
        body = body.replace(b" " + one, one).replace(one + b" ", one)
    return body.strip(b" ")


def _rows_of_leads(
    body: bytes, layout: _Layout, meta: FileMetadata, name: str
) -> NDArray[np.float64]:
    """(leads, samples) of a file with one lead per line, perhaps with its name in front."""
    named = 0 in layout.text
    if layout.text - {0}:
        raise unreadable(f"{name} has text among the numbers of its first row")
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
        raise unreadable(f"{name} has rows of different lengths")
    if named:
        meta.leads = names
    else:
        shape = f"{len(rows)} rows of {len(rows[0]):,} numbers"
        meta.notices.append(f"{shape} are taken as leads")
    return np.stack(rows)


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    return read_table(source.read(path), name=stem(path), options=options)


def _recognize(head: bytes) -> bool:
    try:
        layout = _find_layout(plain_text(head, ""), whole=len(head) < base.HEAD_BYTES)
    except UnusableError:
        return False
    return layout is not None and layout.is_signal()


CSV = FileFormat("CSV", ".csv", _read, other_suffixes=(".tsv",), recognize=_recognize, generic=True)

"""How a text file writes a table of numbers: separator, decimal mark, header, units, comments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from clocs.formats.field_names import meaning_of, split_unit
from clocs.formats.times import is_clock
from clocs.recording import STANDARD_LEADS, UNITS_PER_MV, canonical_lead

MISSING = (
    "",
    "NA",
    "N/A",
    "na",
    "null",
    "NULL",
    "None",
    "?",
    "-",
    "NaN",
    "nan",
    "NAN",
    "inf",
    "-inf",
)
LOOKED_AT = 1 << 20  # bytes from which the layout is told
_LINES = 20
_FIRST_LOOK = 16 << 10  # bytes, that hold as many lines of most files
_FEWEST_ROWS, _FEWEST_SAMPLES = 8, 50  # of numbers without a header that can be a signal
_COMMENTS = ("#", "%", "//")
# Each digit can be matched in one way only, or long runs of them would take quadratic time.
_POINT = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?\Z")
_COMMA = re.compile(r"[-+]?(?:\d+(?:,\d*)?|,\d+)(?:[eE][-+]?\d+)?\Z")
_NAMES_A_SIGNAL = re.compile(r"ecg|ekg|lead|signal|channel|volt|mv|[uµμ]v", re.IGNORECASE)


class TextLayout(NamedTuple):
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
        comments: Those of the form `name: value` before the numbers.
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

    def fields(self, line: str) -> list[str]:
        return _fields(line, self.separator, self.quote)

    def is_signal(self) -> bool:
        """Whether the header, if there is one, is that of a signal and not of another table."""
        if self.names is None:
            enough = self.rows >= _FEWEST_ROWS or self.columns >= _FEWEST_SAMPLES
            return enough and not self.text - {0}
        meanings = {meaning_of(name) for name in self.names}
        if {"lead", "value"} <= meanings:
            return True
        numbers = [name for i, name in enumerate(self.names) if i not in self.text]
        known = any(canonical_lead(split_unit(name)[0]) in STANDARD_LEADS for name in numbers)
        told = any(_NAMES_A_SIGNAL.search(name) for name in numbers) or any(self.units)
        return known or (told and len(self.text) < 2) or ("time" in meanings and not self.text)


def find_layout(data: bytes, *, whole: bool) -> TextLayout | None:
    """The layout of a table that begins with `data`; None where it is no table of numbers.

    Args:
        data: UTF-8 text from its start.
        whole: Whether this is all of it; else its last line counts only up to its last field.
    """
    head = data[:_FIRST_LOOK]
    if head.count(b"\n") < _LINES:
        head = data[:LOOKED_AT]
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
    at = start = 0
    while start < len(text) and len(lines) < _LINES:
        stop = text.find("\n", start) + 1 or len(text)
        raw = text[start:stop]
        line = raw.strip()
        if line.startswith(_COMMENTS):
            key, mark, value = re.sub(r"^[#%/\s]+", "", line[:1000]).partition(
                ":" if ":" in line else "="
            )
            if mark and not lines:
                comments.setdefault(key.strip().lower(), value.strip())
        elif line:
            lines.append((at, raw.rstrip("\n")))
        start, at = stop, at + len(raw.encode())
    found = [one for sep in ";\t|, " if (one := _with(sep, lines, comments)) is not None]
    found += [one] if (one := _with("", lines, comments)) is not None else []
    return min(found, key=lambda one: (len(one.text), one.columns == 1), default=None)


def _with(
    sep: str, lines: Sequence[tuple[int, str]], comments: dict[str, str]
) -> TextLayout | None:
    """The layout if this is the separator."""
    some = "".join(line for _, line in lines)
    quote = "'" if "'" in some and '"' not in some else '"'
    rows = [_fields(line, sep, quote) for _, line in lines]
    first = next((i for i, row in enumerate(rows) if _is_data(row, sep)), None)
    if first is None or first > 3:
        return None
    body, above = rows[first:], rows[:first]
    columns = len(body[0])
    if (columns < 2) != (sep == "") or any(len(row) != columns for row in body[:-1]):
        return None
    if above and len(above[0]) == 1 and columns > 1 and sep == ",":
        return None  # one name above a decimal comma
    if (
        sep != ","
        and any("," in f for row in body for f in row)
        and not any("." in f for row in body for f in row if "," not in f)
    ):
        number, decimal = _COMMA, ","
    else:
        number, decimal = _POINT, "."
    text = frozenset(
        i
        for i in range(columns)
        for shown in [[row[i] for row in body if i < len(row) and row[i] not in MISSING]]
        if not shown or not all(number.match(field) for field in shown)
    )
    if len(text) == columns:
        return None
    start, names, units = lines[first][0], *_header(above, columns)
    counted = [str(i) for i in range(columns)], ["", *map(str, range(columns - 1))]
    if names is None and columns > 2 and body[0] in counted and len(lines) > first + 1:
        start = lines[first + 1][0]  # columns that a library has numbered
    return TextLayout(sep, decimal, quote, start, names, units, text, columns, len(body), comments)


def _header(
    above: Sequence[list[str]], columns: int
) -> tuple[tuple[str, ...] | None, tuple[str | None, ...]]:
    """Names and units from the lines above the numbers."""
    full = [row for row in above if len(row) == columns]
    if not full:
        return None, (None,) * columns
    pairs = [split_unit(name) for name in full[0]]
    units = [unit for _, unit in pairs]
    if len(full) > 1 and any(unit.lower() in UNITS_PER_MV for unit in full[1]):
        units = [unit or old for unit, old in zip(full[1], units, strict=True)]
    return tuple(full[0]), tuple(units)


def _fields(line: str, sep: str, quote: str) -> list[str]:
    if not sep:
        return [line.strip().strip(quote).strip()]
    parts = line.split() if sep == " " else line.split(sep)
    return [part.strip().strip(quote).strip() for part in parts]


def _is_data(row: Sequence[str], sep: str) -> bool:
    """Whether a line holds numbers; a decimal comma only where fields are divided otherwise."""
    return any(
        _POINT.match(field) or (sep != "," and _COMMA.match(field)) or is_clock(field)
        for field in row
    )

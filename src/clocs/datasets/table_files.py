"""Tables about recordings as columns of text (CSV, TSV, Parquet, XLSX), and what is in their cells.

People write several labels at once, yes and no, dates and ages, in many ways.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import re
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs.errors import SettingError, SourceError, UnusableError
from clocs.files import MAX_TABLE_BYTES, check_size
from clocs.formats.addresses import Address, parse_path_or_url, remote_file
from clocs.formats.source import Source
from clocs.formats.text_table import plain_text

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".xlsx", ".xlsm")
TABLES = (".csv", ".tsv", ".parquet", ".xlsx")  # files that are probably one
_SEPARATORS = ",;\t|"
_MAX_COLUMNS = 4096
_NOTHING = frozenset({"", "nan", "none", "null", "na", "n/a", "unknown", "-", "?"})
_YES = frozenset({"1", "1.0", "1,0", "true", "yes"})
_NO = frozenset({"0", "0.0", "0,0", "false", "no"}) | _NOTHING
_MAX_CELL = 10_000  # characters of a cell that are parsed as a list
_WHOLE = re.compile(r"(\d+\.0)?")
_NUMPY = re.compile(r"""(['"])\s+(['"])""")  # "['AF' 'PVC']"
_DAY = re.compile(r"(\d{1,4})[./-](\d{1,2})[./-](\d{1,4})(?:[T ]+(\d{1,2}:\d{2}(?::\d{2})?).*)?$")
_AGE = re.compile(r"([\d.,]+)\s*(?:y|years?|yrs?)?$", re.IGNORECASE)
# By the mark before decimals; the other one may part groups of three digits.
_NUMBERS = {
    mark: re.compile(
        rf"([+-]?(?:\d+|\d{{1,3}}(?:[{other}'’\s]\d{{3}})+))(?:\{mark}(\d+))?([eE][+-]?\d{{1,3}})?"
    )
    for mark, other in (".,", ",.")
}
_LONGEST_NUMBER = 40
_CODE = 6  # digits: '164889003,426783006' are two codes
_MAX_CLASSES, _SURELY_TOO_MANY = 20, 50  # different numbers of a column of classes
_ROWS_OF_A_CLASS = 5
_LOOKED_AT = 2000  # different cells that tell whether a column is one of numbers
_OLDEST = 150


def find_table(source: Source, given: str, *, option: str) -> tuple[str, bytes]:
    """A table's name and content: inside the source, on disk, or beside the zip.

    Args:
        source: Of the recordings.
        given: A name in the source, or a path.
        option: For messages.

    Returns:
        The name in the source, or '' for a table outside of it, and the bytes.
    """
    place = parse_path_or_url(given)
    path = None if isinstance(place, Address) else _on_disk(given)
    inside = _name_inside(source, given, path or place)
    try:
        if inside:
            return inside, source.read(inside, MAX_TABLE_BYTES)
        if isinstance(place, Address):
            return "", remote_file(place).read(MAX_TABLE_BYTES)
        if path is not None:
            check_size(path.stat().st_size, packed=1 << 40, name=given, most=MAX_TABLE_BYTES)
            return "", path.read_bytes()
        beside = source.read_sibling(given, MAX_TABLE_BYTES)
    except UnusableError as error:
        raise SourceError(f"{place} cannot be read: {error.detail}") from None
    except OSError as error:
        raise SourceError(f"{given} cannot be read ({error.strerror})") from None
    if beside is None:
        raise SettingError(
            f"`{option}` is {given}, which is neither a file nor in {source.path}; give the path "
            f"of a table ({', '.join(SUFFIXES)})"
        )
    return "", beside


def _on_disk(given: str) -> Path | None:
    """The file of this path; None where there is none, or where the text cannot be a path."""
    try:
        path = Path(given).expanduser()
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no such user
        return None


def _name_inside(source: Source, given: str, place: Path | Address) -> str:
    """The name in the source of a file given by name, path or address; '' where it is not in it."""
    name = given.replace("\\", "/").removeprefix("./")
    root = source.path
    if name not in source:
        if isinstance(place, Address):
            name = place.inside(root) if isinstance(root, Address) else ""
        elif _on_disk(given) is None:
            alike = [one for one in source.names if one.rpartition("/")[2] == name]
            name = alike[0] if len(alike) == 1 else ""
        elif isinstance(root, Path) and source.is_folder:
            with suppress(ValueError):  # it lies elsewhere
                name = place.resolve().relative_to(root.resolve()).as_posix()
    return name if name in source else ""


def read_table(
    data: bytes, *, name: str, is_id: Callable[[str], bool] = lambda text: False
) -> dict[str, list[str]]:
    """Columns by name, all values as text, '' where there is none.

    Dates are ISO 8601, whole numbers have no point, lists are JSON. A CSV without a header row is
    known by an ID in its first one; its columns are called column_1, column_2 …

    Args:
        data: The file's content.
        name: Its name, whose suffix tells the kind.
        is_id: Whether a text names a recording.

    Raises:
        SourceError: It is no such table.
    """
    import polars as pl

    suffix = Path(name).suffix.lower()
    try:
        if suffix == ".parquet":
            columns = _as_texts(pl.read_parquet(io.BytesIO(data)), name)
        elif suffix in (".xlsx", ".xlsm"):
            excel = io.BytesIO(unpacked_excel(data, name))
            columns = _as_texts(pl.read_excel(excel, engine="calamine"), name)
        else:
            columns = _read_text(data, is_id, name)
    except (ImportError, MemoryError, SourceError):
        raise
    except UnusableError as error:
        raise SourceError(f"{name} cannot be read: {error}") from None
    except (Exception, pl.exceptions.PanicException) as error:  # its Excel engine has many kinds
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise SourceError(
            f"{name} cannot be read as a table ({problem}); give a CSV, TSV, Parquet or XLSX file "
            "with a row of column names"
        ) from None
    found: dict[str, list[str]] = {}
    for column, values in columns.items():
        texts = [(value or "").strip() for value in values]
        if all(map(_WHOLE.fullmatch, texts)):  # as pandas writes whole numbers with gaps
            texts = [text.removesuffix(".0") for text in texts]
        short = column.strip()
        found[column if short in found else short] = texts
    return found


def _read_text(
    data: bytes, is_id: Callable[[str], bool], name: str
) -> dict[str, Sequence[str | None]]:
    text = plain_text(data, name).decode("utf-8", "replace").lstrip("\n")
    if not text:
        raise ValueError("it is empty")
    first = text.partition("\n")[0][:100_000]
    separator = max(_SEPARATORS, key=lambda one: (first.count(one), one == ","))
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    head = next(reader)
    _check_columns(len(head), name)
    rows = [head] if any(is_id(field.strip()) for field in head) else []
    for number, row in enumerate(reader, 2):
        if any(map(str.strip, row[len(head) :])):
            raise SourceError(
                f"{name} cannot be read: row {number:,} has {len(row)} cells, the first one "
                f"{len(head)}; put quotes around cells that contain {separator!r}"
            )
        if row:
            rows.append(row)
    names = [f"column_{i}" for i in range(1, len(head) + 1)] if rows[:1] == [head] else head
    columns: dict[str, Sequence[str | None]] = {}
    for i, column in enumerate(names):
        unique = f"{column}_{i + 1}" if column in columns else column
        columns[unique] = [row[i] if i < len(row) else None for row in rows]
    return columns


def _check_columns(count: int, name: str) -> None:
    if count > _MAX_COLUMNS:
        raise SourceError(
            f"{name} has {count:,} columns; a table of labels has at most {_MAX_COLUMNS:,}"
        )


def _as_texts(table: pl.DataFrame, name: str) -> dict[str, Sequence[str | None]]:
    _check_columns(table.width, name)
    return {column.name: _as_text(column).to_list() for column in table}


def _as_text(column: pl.Series) -> pl.Series:
    import polars as pl

    kind = column.dtype
    if isinstance(kind, pl.List | pl.Array | pl.Struct):
        values = [None if value is None else _as_json(value) for value in column.to_list()]
        return pl.Series(column.name, values, pl.String)
    if isinstance(kind, pl.Datetime):
        column = column.dt.to_string("%Y-%m-%dT%H:%M:%S").str.replace("T00:00:00$", "")
    elif kind.is_float():
        column = column.fill_nan(None)
        whole = column.drop_nulls()
        if ((whole == whole.round()) & (whole.abs() < 2**53)).all():
            column = column.cast(pl.Int64)
    elif isinstance(kind, pl.Boolean):
        column = column.cast(pl.Int8)
    return column.cast(pl.String)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def unpacked_excel(table: bytes, name: str) -> bytes:
    """An Excel file, which is a zip, without compression: then none of its sizes is a lie."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(table)) as packed, zipfile.ZipFile(made, "w") as plain:
        infos = packed.infolist()
        size, held = sum(info.file_size for info in infos), len(table)
        check_size(size, packed=held, name=name, most=4 * MAX_TABLE_BYTES)
        for info in infos:
            with packed.open(info) as member, plain.open(info.filename, "w") as copy:
                shutil.copyfileobj(member, copy, 4096)  # at most the size that it states
    return made.getvalue()


def is_nothing(text: str) -> bool:
    """Whether a cell says nothing: '', 'NaN' or 'unknown'."""
    return text.strip().lower() in _NOTHING


def split_labels(text: str) -> tuple[str, ...]:
    """The labels in a cell, each once: 'AF', 'AF;PVC', '["AF", "PVC"]', "{'NORM': 100.0}"."""
    text = text.strip()
    if is_nothing(text):
        return ()
    found = _listed(text) if text[0] in "[{(" and len(text) <= _MAX_CELL else None
    if found is None:
        found = re.split(r"[;|]", text)
        if len(found) == 1 and "," in text:
            parts = [part.strip() for part in text.split(",")]
            # 'Sinus rhythm, normal' is one label; 'AF,PVC' are two.
            found = parts if not any(" " in part for part in parts) else found
    labels = (str(one).strip() for one in found)
    return tuple(dict.fromkeys(label for label in labels if not is_nothing(label)))


def _listed(text: str) -> Iterable[object] | None:
    """The items of a list, or the keys of a mapping, as JSON or Python writes them."""
    value: object
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(_NUMPY.sub(r"\1, \2", text))  # parses, and executes nothing
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return None
    if isinstance(value, Mapping | Collection) and not isinstance(value, str | bytes):
        return list(value)
    return [value]


def are_yes_or_no(values: Iterable[str]) -> bool:
    """Whether these cells are all 1 or 0, yes or no, or empty, and some say yes or no."""
    found = {value.strip().lower() for value in values}
    return found <= _YES | _NO and bool(found - _NOTHING)


def is_yes(text: str) -> bool:
    """Whether a cell says 1, yes or true."""
    return text.strip().lower() in _YES


def age_of(text: str) -> float | None:
    """Years, from '62', '062Y' or '62.5 years'; None where it is no plausible age."""
    match = _AGE.match(text.strip()) if len(text) <= _LONGEST_NUMBER else None
    age = numbers_of([match[1].rstrip(".,")])[0] if match else None
    return age if age is not None and 0 <= age <= _OLDEST else None


def numbers_of(values: Iterable[str]) -> list[float | None]:
    """A column of numbers, None where a cell is none: '51.8', '51,8', '1.234,5', '1,234.5'.

    Commas are decimal marks where more cells of the column can be read so than otherwise. Where
    nothing tells whether '1,234' has decimals or thousands, it is None.
    """
    texts = [value.strip() for value in values]
    point, comma = ([_number(text, mark) for text in texts] for mark in _NUMBERS)
    more = sum(one is not None for one in comma) - sum(one is not None for one in point)
    if more == 0:
        point = [None if "," in text else one for text, one in zip(texts, point, strict=True)]
    return comma if more > 0 else point


def _number(text: str, mark: str) -> float | None:
    match = _NUMBERS[mark].fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    if match is None:
        return None
    whole = re.sub(r"[.,'’\s]", "", match[1])
    if mark == "," and len(whole) >= _CODE and len(match[2] or "") >= _CODE:
        return None
    number = float(f"{whole}.{match[2] or 0}{match[3] or ''}")
    return number if math.isfinite(number) else None


def numbers_with_commas(values: Iterable[str]) -> dict[str, str]:
    """The cells of a column that are numbers with a comma, as numbers with a point where it is one.

    None of them where another cell holds several labels: '1,2' may then, too.
    """
    texts = [text for text in dict.fromkeys(values) if not is_nothing(text)]
    if not any("," in text for text in texts):
        return {}
    short = [text.strip() for text in texts]
    are = [any(_number(text, mark) is not None for mark in _NUMBERS) for text in short]
    if any(len(split_labels(text)) > 1 for text, one in zip(short, are, strict=True) if not one):
        return {}
    return {
        text: text.strip() if number is None else f"{number:.15g}"
        for text, number, one in zip(texts, numbers_of(short), are, strict=True)
        if one and "," in text
    }


def are_measured(values: Sequence[str]) -> int:
    """How many different numbers a column holds, where they are too many to be classes; else 0.

    Long whole numbers are codes, not measurements.
    """
    texts = [text for text in dict.fromkeys(values) if not is_nothing(text)]
    if len(texts) <= _MAX_CLASSES:
        return 0
    some = texts[:_LOOKED_AT]
    numbers = [one for one in numbers_of(some) if one is not None]
    whole = all(one.is_integer() for one in numbers)
    codes = whole and all(abs(one) >= 10 ** (_CODE - 1) for one in numbers)
    if codes or 10 * len(numbers) < 9 * len(some) or len(set(numbers)) <= _MAX_CLASSES:
        return 0
    few = len(texts) * _ROWS_OF_A_CLASS > len(values) or len(texts) > _SURELY_TOO_MANY
    return len(texts) if few or not whole else 0


def dates_of(values: Iterable[str]) -> list[str | None]:
    """A column of dates as ISO 8601, None where one cannot be understood.

    '03/04/2020' is 3 April where some first number of the column exceeds 12, 4 March where some
    second one does, and None where nothing tells.
    """
    texts = [value.strip() for value in values]
    matches = [_DAY.match(text) for text in texts]
    ending_in_year = [match for match in matches if match and len(match[3]) == 4]
    points = any(match and "." in match[0] for match in matches)
    day_first: bool | None = None
    if points or any(int(match[1]) > 12 for match in ending_in_year):
        day_first = True
    elif any(int(match[2]) > 12 for match in ending_in_year):
        day_first = False
    return [
        _date(text, match, day_first=day_first) for text, match in zip(texts, matches, strict=True)
    ]


def _date(text: str, match: re.Match[str] | None, *, day_first: bool | None) -> str | None:
    if match is None or len(match[1]) == 4:
        return _iso(text)
    if len(match[3]) != 4 or day_first is None:
        return None
    day, month = (match[1], match[2]) if day_first else (match[2], match[1])
    time = f"T{match[4]:0>5}" if match[4] else ""
    return _iso(f"{match[3]}-{month:0>2}-{day:0>2}{time}")


def _iso(text: str) -> str | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment.replace(tzinfo=None, microsecond=0)
    only_day = len(text) <= 10 or (moment.hour, moment.minute, moment.second) == (0, 0, 0)
    return moment.date().isoformat() if only_day else moment.isoformat()

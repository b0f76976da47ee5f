"""Tables about recordings as columns of text: CSV, TSV, Parquet and XLSX."""

from __future__ import annotations

import csv
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs.errors import SettingError, SourceError, UnusableError
from clocs.formats.addresses import Address, parse_path_or_url, remote_file
from clocs.formats.source import Source
from clocs.limits import MAX_TABLE_BYTES, check_size

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".xlsx", ".xlsm")
TABLES = (".csv", ".tsv", ".parquet", ".xlsx")  # files that are probably one
_SEPARATORS = ",;\t|"
_MAX_COLUMNS = 4096


def find_table(source: Source, given: str, *, option: str) -> tuple[str, bytes]:
    """A table's name and content: inside the source, on disk, or beside the zip.

    Args:
        source: Of the recordings.
        given: A name in the source, or a path.
        option: For messages.

    Returns:
        The name in the source, or '' for a table outside of it, and the bytes.
    """
    inside = name_inside(source, given)
    try:
        if inside:
            return inside, source.read(inside, MAX_TABLE_BYTES)
        if isinstance(place := parse_path_or_url(given), Address):
            return "", remote_file(place).read(MAX_TABLE_BYTES)
        path = _on_disk(given)
        if path is not None:
            check_size(path.stat().st_size, packed=1 << 40, name=given, most=MAX_TABLE_BYTES)
            return "", path.read_bytes()
        beside = source.read_sibling(given, MAX_TABLE_BYTES)
    except UnusableError as error:
        raise SourceError(f"{parse_path_or_url(given)} cannot be read: {error.detail}") from None
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


def name_inside(source: Source, given: str) -> str:
    """The name in the source of a file given by a path; '' where it is not in it."""
    name = given.replace("\\", "/").removeprefix("./")
    if name in source:
        return name
    if isinstance(place := parse_path_or_url(given), Address):
        own = place.inside(source.path) if isinstance(source.path, Address) else ""
        return own if own in source else ""
    path = _on_disk(given)
    if path is not None and isinstance(source.path, Path) and source.is_folder:
        root = source.path.resolve()
        resolved = path.resolve()
        if resolved.is_relative_to(root):
            own = resolved.relative_to(root).as_posix()
            return own if own in source else ""
    if path is not None:
        return ""
    alike = [one for one in source.names if one.rpartition("/")[2] == name]
    return alike[0] if len(alike) == 1 else ""


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
            table = pl.read_parquet(io.BytesIO(data))
        elif suffix in (".xlsx", ".xlsm"):
            table = pl.read_excel(io.BytesIO(unpacked_excel(data, name)), engine="calamine")
        else:
            table = _read_text(data, is_id, name)
        _check_columns(table.width, name)
        texts = _as_texts(table)
        columns: dict[str, list[str]] = {}
        for column in table.columns:
            short = column.strip()
            columns[column if short in columns else short] = texts[column].to_list()
    except (ImportError, MemoryError, SourceError):
        raise
    except UnusableError as error:
        raise SourceError(f"{name} cannot be read: {error.detail}") from None
    except (Exception, pl.exceptions.PanicException) as error:  # its Excel engine has many kinds
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise SourceError(
            f"{name} cannot be read as a table ({problem}); give a CSV, TSV, Parquet or XLSX file "
            "with a row of column names"
        ) from None
    return columns


def _read_text(data: bytes, is_id: Callable[[str], bool], name: str) -> pl.DataFrame:
    import polars as pl

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\n")
    first = text.partition("\n")[0][:100_000]
    separator = max(_SEPARATORS, key=lambda one: (first.count(one), one == ","))
    fields = next(csv.reader([first], delimiter=separator), [])
    header = not any(is_id(field.strip()) for field in fields)
    columns = 0
    for number, row in enumerate(csv.reader(io.StringIO(text), delimiter=separator), 1):
        if not columns:
            columns = len(row)
            _check_columns(columns, name)
        if any(map(str.strip, row[columns:])):
            raise SourceError(
                f"{name} cannot be read: row {number:,} has {len(row)} cells, the first one "
                f"{columns}; put quotes around cells that contain {separator!r}"
            )
    return pl.read_csv(
        io.BytesIO(text.encode()),
        separator=separator,
        has_header=header,
        infer_schema=False,
        truncate_ragged_lines=True,
    )


def _check_columns(count: int, name: str) -> None:
    if count > _MAX_COLUMNS:
        raise SourceError(
            f"{name} has {count:,} columns; a table of labels has at most {_MAX_COLUMNS:,}"
        )


def _as_texts(table: pl.DataFrame) -> pl.DataFrame:
    """Columns of text; those of whole numbers that pandas wrote with gaps without their '.0'."""
    import polars as pl

    texts = table.with_columns(
        _as_text(column) for column in table if not isinstance(column.dtype, pl.String)
    ).select(pl.all().str.strip_chars().fill_null(""))
    whole = texts.select(pl.all().str.contains(r"^(\d+\.0)?$").all()).row(0) if texts.width else ()
    names = [name for name, one in zip(texts.columns, whole, strict=True) if one]
    return texts.with_columns(pl.col(names).str.strip_suffix(".0"))


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

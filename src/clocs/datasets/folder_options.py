"""The options of the dataset `folder`, and `clocs.toml`, which keeps them beside the data."""

from __future__ import annotations

import json
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from clocs.datasets.table_files import name_inside
from clocs.errors import ClocsWarning, SettingError, UnusableError
from clocs.files import write_atomic
from clocs.formats.addresses import last_name
from clocs.formats.source import OPTIONS_FILE, Source
from clocs.registry import Option, chosen_options

MAX_OPTIONS_BYTES = 64 << 10  # of `clocs.toml`
NO_TABLE = ("header", "annotations", "none")  # instead of a table of labels
_TABLES = ("labels", "codes")
OPTIONS = (
    Option(
        "patient",
        None,
        "Where the patient is named: header (names and numbers are kept), folder, folder:N, file, "
        "column:NAME of the table or pattern:REGEX on the path; by default the table, else "
        "pseudonyms of what files say, else each file is one",
        kind=str,
    ),
    Option(
        "labels",
        None,
        "Table of labels (CSV, TSV, Parquet, XLSX), or header, annotations or none, the default",
        kind=str,
    ),
    Option("id_column", None, "Column of the table that names the files; found if left out", str),
    Option(
        "label_columns",
        None,
        "Columns of the table that hold labels, thresholds such as 'LVEF<40', or 'none'",
        kind=tuple,
    ),
    Option("codes", None, "Second table with names for the labels' codes", kind=str),
    Option("code_names", None, "Column of the names in that table; the second by default", str),
    Option(
        "classes", None, "Labels to use, in this order; the most frequent first if left out", tuple
    ),
    Option(
        "columns", None, "Other columns of the table, such as age=AGE_AT_ECG,sex=SEX", kind=dict
    ),
    Option("split_column", None, "Column of the table with the folds of an official split", str),
    Option("lead_names", None, "Leads by unusual names, such as ECG1=II,ch2=V5", kind=dict),
    Option(
        "leads", None, "Leads to keep where present, such as I,II,V5; all by default", kind=tuple
    ),
    Option(
        "rate",
        None,
        "Sampling rate in Hz of files that do not say",
        kind=float,
        minimum=50,
        maximum=10_000,
    ),
    Option("unit", None, "Unit of files that do not say, such as mV", kind=str),
    Option(
        "frame_seconds", None, "Seconds of a frame; chosen from the data by default", float, above=0
    ),
    Option("frame_samples", None, "Samples of a frame; 2500 by default", kind=int, minimum=1),
    Option(
        "cap_minutes", None, "Minutes of each patient to keep, spread evenly", kind=float, above=0
    ),
    Option(
        "most_hours",
        None,
        "Total hours to keep, shared equally by patients",
        kind=float,
        above=0,
    ),
    Option("dataset", None, "Name of the dataset in the store; 'folder' by default", kind=str),
    Option(
        "keep_text",
        None,
        "Free text of headers to keep in the store, such as institution,statements, or all; none "
        "by default",
        kind=tuple,
    ),
)


@dataclass(frozen=True)
class FolderOptions:
    """What the user says about a folder; see `OPTIONS` for each."""

    patient: str | None = None
    labels: str | None = None
    id_column: str | None = None
    label_columns: tuple[str, ...] | None = None
    codes: str | None = None
    code_names: str | None = None
    classes: tuple[str, ...] | None = None
    columns: Mapping[str, str] | None = field(default=None)
    split_column: str | None = None
    lead_names: Mapping[str, str] | None = field(default=None)
    leads: tuple[str, ...] | None = None
    rate: float | None = None
    unit: str | None = None
    frame_seconds: float | None = None
    frame_samples: int | None = None
    cap_minutes: float | None = None
    most_hours: float | None = None
    dataset: str | None = None
    keep_text: tuple[str, ...] | None = None

    def given(self) -> dict[str, Any]:
        """Those that differ from the defaults, by name."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def as_text(self) -> dict[str, str]:
        """Those that were given, as the command line takes them; tables without their folder."""
        texts = {name: text_of(value) for name, value in self.given().items()}
        for name in _TABLES:
            if name in texts:
                texts[name] = last_name(texts[name])
        return texts


def text_of(value: Any) -> str:
    """An option's value as the command line takes it."""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={text}" for key, text in value.items())
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class _Row:
    name: str = OPTIONS_FILE
    options: tuple[Option, ...] = OPTIONS


def saved_options(source: Source) -> Mapping[str, Any]:
    """The options in `clocs.toml` of a source, or beside a zip, where the file is the user's own.

    Those of anybody else are shown in a warning and not used. Tables are named by plain names:
    inside the source, or beside the zip.

    Raises:
        SettingError: It is no TOML, or has unknown keys or values.
    """
    strange = ""
    try:
        inside = OPTIONS_FILE in source
        data = (
            source.read(OPTIONS_FILE, MAX_OPTIONS_BYTES)
            if inside
            else source.read_sibling(OPTIONS_FILE, MAX_OPTIONS_BYTES)
        )
        if data is None:
            return {}
        strange = source.not_own(OPTIONS_FILE)
        saved = tomllib.loads(data.decode())
        chosen_options(_Row(), saved)
        if strange:
            said = ", ".join(f"{name} = {_toml(value)}" for name, value in saved.items())
            said = said.encode("ascii", "backslashreplace").decode()
            names = ", ".join(f"`{name}`" for name in saved)
            problem = f"it says {said:.1000}; give what is right of it yourself, as {names}"
        else:
            return {name: _named(source, name, value) for name, value in saved.items()}
    except (UnusableError, ValueError, RecursionError) as error:
        problem = f"it cannot be read ({error}); correct or delete it"
    except (SettingError, TypeError) as error:
        problem = f"{error}; correct or delete it"
    if not strange:
        raise SettingError(f"{OPTIONS_FILE} of {source.path} is not used: {problem}")
    warnings.warn(
        f"{OPTIONS_FILE} of {source.path} is not used because {strange}; {problem}",
        ClocsWarning,
        stacklevel=2,
    )
    return {}


def _named(source: Source, option: str, value: Any) -> Any:
    """The value, as a name in the source or the path of a file beside the zip where it is a table.

    Raises:
        SettingError: It names anything else.
    """
    if option not in _TABLES or value.partition(":")[0] in NO_TABLE or value in source:
        return value
    plain = "/" not in value and "\\" not in value and isinstance(source.path, Path)
    if plain and not source.is_folder and (source.path.parent / value).is_file():
        return str(source.path.parent / value)
    where = "" if source.is_folder else " or beside it"
    raise SettingError(
        f"`{option}` is {value!r:.200}, which is no file in {source.path}{where}; give a table "
        "from elsewhere with the command"
    )


def save_options(options: FolderOptions, source: Source) -> Path:
    """Write `clocs.toml` into a folder, or beside a zip; its path.

    Raises:
        SettingError: It would name a table outside of the folder.
    """
    if not isinstance(source.path, Path):
        raise SettingError(f"`save` writes beside the data, but {source.path} is only read")
    folder = source.path if source.is_folder else source.path.parent
    for name in _TABLES:
        given = getattr(options, name)
        if given is None or given.partition(":")[0] in NO_TABLE:
            continue
        inside = name_inside(source, given)
        beside = folder / last_name(given)
        if not inside and not source.is_folder and beside.is_file():
            own = Path(given).samefile(beside) if Path(given).is_file() else given == beside.name
            inside = beside.name if own else ""
        if not inside:
            raise SettingError(
                f"`{name}` is {given}, which is not in {folder}; copy it there to `save` the "
                "options, or give it each time"
            )
        values: dict[str, Any] = {name: inside}
        options = replace(options, **values)
    lines = [f"{name} = {_toml(value)}" for name, value in options.given().items()]
    text = "# Options of `clocs prepare folder`, which reads this file.\n" + "\n".join(lines)
    write_atomic(folder / OPTIONS_FILE, f"{text}\n".encode())
    return folder / OPTIONS_FILE


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)

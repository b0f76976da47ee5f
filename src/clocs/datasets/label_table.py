"""Tables of labels: which column names the recording, which are classes, and what else they say."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from clocs.datasets import checks
from clocs.datasets.label_values import (
    age_of,
    are_yes_or_no,
    dates_of,
    is_nothing,
    is_yes,
    split_labels,
)
from clocs.datasets.recording_names import Names
from clocs.errors import SettingError, first_of

Columns = Mapping[str, Sequence[str]]

_SAMPLED = 2000  # rows that tell which column names the recordings

# What columns are called, in lower case without other characters than letters.
ROLES: Mapping[str, tuple[str, ...]] = {
    "patient": ("patientid", "patient", "subjectid", "subject", "patid", "mrn"),
    "age": ("age", "patientage", "ageyears", "ageatecg"),
    "sex": ("sex", "gender", "patientsex"),
    "date": ("date", "recordingdate", "acquisitiondate", "ecgdate", "datetime", "taken"),
    "fold": ("fold", "stratfold", "split"),
}
_LABELS = (
    *("label", "labels", "class", "classes", "diagnosis", "diagnoses", "rhythm", "dx", "target"),
    *("scpcodes", "statements"),
)


class NoIdsError(SettingError):
    """No column of a table names recordings."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What the user says about a table; see `clocs.datasets.folder`."""

    id_column: str | None = None
    label_columns: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    patient_column: str | None = None
    split_column: str | None = None


@dataclass(frozen=True, slots=True)
class Labelled:
    """What a table says about recordings.

    Attributes:
        info: By the recording's number: labels (a JSON list), patient, age, sex, taken, fold.
        unmatched: IDs of rows without a recording.
        roles: The columns that were used, by what they are.
        notices: What the user should know.
    """

    info: Mapping[int, Mapping[str, str]]
    unmatched: tuple[str, ...]
    roles: Mapping[str, str]
    notices: tuple[str, ...]


def label_recordings(
    table: Columns,
    names: Names,
    options: TableOptions,
    *,
    codes: Mapping[str, str] | None = None,
    name: str,
) -> Labelled:
    """Match the rows of a table with recordings.

    Args:
        table: Columns of text.
        names: Of all recordings.
        options: What the user says about the columns.
        codes: Names of labels, '' for those to leave out; others keep theirs.
        name: Of the table, for messages.

    Raises:
        NoIdsError: No column names recordings.
        SettingError: A column is missing, or none is clearly a label.
    """
    roles = _roles(table, options, name)
    others = {column for role, column in roles.items() if role != "patient"}
    ids = _id_columns(table, names, options, taken=others, name=name)
    classes = _label_columns(table, options, taken={*ids, *roles.values()}, name=name)
    of_rows, notices = _labels_of_rows(table, classes, codes)
    dates = dates_of(table[roles["date"]]) if "date" in roles else []
    facts: dict[int, dict[str, str]] = {}
    labels: dict[int, list[str]] = {}
    unmatched: list[str] = []
    several: set[int] = set()
    for row, cells in enumerate(zip(*(table[column] for column in ids), strict=True)):
        written = [cell for cell in cells if not is_nothing(cell)]
        found = {number for cell in written for number in names.find(cell)}
        if not found and written:
            unmatched.append(written[0])
        for number in found:
            if number in facts:
                several.add(number)
            own = facts.setdefault(number, {})
            labels.setdefault(number, []).extend(of_rows[row])
            for key, text in _facts_of_row(table, roles, dates, row).items():
                own.setdefault(key, text)
    for number, own in facts.items():
        own["labels"] = json.dumps(list(dict.fromkeys(labels[number])), ensure_ascii=False)
    if several:
        notices.append(
            f"{len(several):,} recordings have several rows in {name}; their labels are combined, "
            "and the first row tells the rest"
        )
    notices += _numbers_for_sex(table, roles, name)
    if dates and not any(dates):
        notices.append(f"no date in the column {roles['date']} of {name} could be understood")
    used = {"id": ", ".join(ids), **roles, "labels": ", ".join(classes)}
    return Labelled(facts, tuple(unmatched), used, tuple(notices))


def _facts_of_row(
    table: Columns, roles: Mapping[str, str], dates: Sequence[str | None], row: int
) -> dict[str, str]:
    found: dict[str, str] = {}
    for role, column in roles.items():
        text = table[column][row]
        if role == "date":
            text = dates[row] or ""
        elif role == "age":
            age = age_of(text)
            text = "" if age is None else f"{age:g}"
        elif role == "sex":
            text = checks.parse_sex(text) or ""
        if not is_nothing(text):
            found["taken" if role == "date" else role] = text
    return found


def _numbers_for_sex(table: Columns, roles: Mapping[str, str], name: str) -> list[str]:
    values = [text for text in table[roles["sex"]] if text] if "sex" in roles else []
    if values and not any(checks.parse_sex(text) for text in values):
        return [
            f"the column {roles['sex']} of {name} holds {values[0]!r:.20} and others, which do not "
            "say who is male or female; write male and female into it"
        ]
    return []


def _simple(column: str) -> str:
    return re.sub(r"[^a-z]", "", column.lower())


def _existing(table: Columns, column: str, *, option: str, name: str) -> str:
    """The column, also where its case differs."""
    if column in table:
        return column
    alike = [one for one in table if one.lower() == column.lower()]
    if len(alike) != 1:
        raise SettingError(
            f"`{option}` names the column {column!r}, but {name} has {_listed(table)}"
        )
    return alike[0]


def _listed(table: Iterable[str]) -> str:
    return first_of(list(table), 12)


def _roles(table: Columns, options: TableOptions, name: str) -> dict[str, str]:
    unknown = ", ".join(role for role in options.columns if role not in ROLES)
    if unknown:
        raise SettingError(f"`columns` names {unknown}; it may name {', '.join(ROLES)}")
    roles: dict[str, str] = {}
    for role, usual in ROLES.items():
        given = options.columns.get(role)
        if given is not None:
            roles[role] = _existing(table, given, option="columns", name=name)
            continue
        found = [column for word in usual for column in table if _simple(column) == word]
        found = [one for one in found if one not in (options.id_column, *options.label_columns)]
        if found:
            roles[role] = found[0]
    if options.patient_column is not None:
        roles["patient"] = _existing(table, options.patient_column, option="patient", name=name)
    if options.split_column is not None:
        roles["fold"] = _existing(table, options.split_column, option="split_column", name=name)
    return roles


def _id_columns(
    table: Columns, names: Names, options: TableOptions, *, taken: set[str], name: str
) -> list[str]:
    """The column that names most recordings, and others that name further ones."""
    if options.id_column is not None:
        return [_existing(table, options.id_column, option="id_column", name=name)]
    step = max(1, len(next(iter(table.values()), ())) // _SAMPLED)
    matched = _matched(table, names, taken, step) or _matched(table, names, taken, 1)
    if not matched:
        raise NoIdsError(
            f"no column of {name} ({_listed(table)}) names the recordings; give the column with "
            "their file names as `id_column`"
        )
    best = max(matched, key=lambda column: len(matched[column]))
    chosen, seen = [best], matched[best]
    for column, found in matched.items():
        values = [text for text in table[column][::step] if text]
        paths = len(set(values)) == len(values) and 2 * len(found) >= len(values)
        if column != best and paths and not found <= seen:
            chosen, seen = [*chosen, column], seen | found
    return chosen


def _matched(
    table: Columns, names: Names, taken: Collection[str], step: int
) -> dict[str, set[int]]:
    """The recordings that each column names, in every so many rows; without those of none.

    Columns that are `taken` name none: an age may happen to be a file's number.
    """
    matched = {
        column: {number for text in set(values[::step]) for number in names.find(text)}
        for column, values in table.items()
        if column not in taken
    }
    return {column: found for column, found in matched.items() if found}


def _label_columns(
    table: Columns, options: TableOptions, *, taken: Collection[str], name: str
) -> list[str]:
    if options.label_columns == ("none",):
        return []
    if options.label_columns:
        wanted = options.label_columns
        return [_existing(table, one, option="label_columns", name=name) for one in wanted]
    left = [column for column in table if column not in taken and any(table[column])]
    usual = [column for word in _LABELS for column in left if _simple(column) == word]
    if usual:
        return usual[:1]
    classes = [column for column in left if are_yes_or_no(table[column])]
    if classes:
        return classes
    if len(left) > 1:
        raise SettingError(
            f"{name} has several columns that could be labels ({_listed(left)}); give those that "
            "are as `label_columns`, or 'none'"
        )
    return left


def _labels_of_rows(
    table: Columns, columns: Sequence[str], codes: Mapping[str, str] | None
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The labels of each row by name, and notices."""
    height = len(next(iter(table.values()), ()))
    rows: list[list[str]] = [[] for _ in range(height)]
    for column in columns:
        values = table[column]
        if len(columns) > 1 and are_yes_or_no(values):
            for row, text in zip(rows, values, strict=True):
                row.extend((column,) if is_yes(text) else ())
            continue
        parsed = {text: split_labels(text) for text in set(values)}
        for row, text in zip(rows, values, strict=True):
            row.extend(parsed[text])
    named, unnamed = named_by(codes, rows)
    notices = []
    if unnamed:
        words = ", ".join(sorted(unnamed)[:5])
        notices.append(f"{len(unnamed):,} codes have no name in `codes` and keep theirs: {words}")
    return named, notices


def named_by(
    codes: Mapping[str, str] | None, rows: Iterable[Sequence[str]]
) -> tuple[list[tuple[str, ...]], set[str]]:
    """Labels by their names, and codes without one."""
    if codes is None:
        return [tuple(row) for row in rows], set()
    rows = list(rows)
    unnamed = {one for row in rows for one in row} - codes.keys()
    named = [(codes.get(one, one) for one in row) for row in rows]
    return [tuple(dict.fromkeys(one for one in row if one)) for row in named], unnamed


def read_codes(table: Columns, *, column: str | None, name: str) -> dict[str, str]:
    """Names by code: from the first column to the one given, or to the second.

    Raises:
        SettingError: There is no such column.
    """
    columns = list(table)
    if len(columns) < 2:
        raise SettingError(f"`codes` is {name}, which has one column; give codes and their names")
    target = columns[1] if column is None else column
    target = _existing(table, target, option="code_names", name=name)
    return {
        code: "" if is_nothing(label) else label
        for code, label in zip(table[columns[0]], table[target], strict=True)
        if code
    }

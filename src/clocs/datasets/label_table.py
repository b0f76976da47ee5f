"""Tables of labels: which column names the recording, which are classes, and what else they say."""

from __future__ import annotations

import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from clocs.datasets import checks
from clocs.datasets.label_values import (
    age_of,
    are_measured,
    are_yes_or_no,
    dates_of,
    is_nothing,
    is_yes,
    numbers_of,
    numbers_with_commas,
    split_labels,
)
from clocs.datasets.recording_names import Names
from clocs.errors import SettingError, first_of

Columns = Mapping[str, Sequence[str]]

_SAMPLED = 2000  # rows that tell which column names the recordings
_THRESHOLD = re.compile(r"(.+?)\s*(<=|>=|<|>)\s*([^<>=]+)")
_OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MEETS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, ">=": operator.ge, ">": operator.gt, "<=": operator.le,
}  # fmt: skip

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


@dataclass(frozen=True, slots=True)
class Threshold:
    """Two classes of a column of numbers: 'LVEF<40' and 'LVEF>=40'."""

    column: str
    sign: str
    limit: float

    def __str__(self) -> str:
        return f"{self.column}{self.sign}{self.limit:g}"

    def classes(self, values: Sequence[str]) -> list[tuple[str, ...]]:
        """The class of each value; none where it is missing or no number."""
        other = f"{self.column}{_OPPOSITE[self.sign]}{self.limit:g}"
        return [
            () if one is None else (str(self) if _MEETS[self.sign](one, self.limit) else other,)
            for one in numbers_of(values)
        ]

    def notice(self, values: Sequence[str], found: Sequence[tuple[str, ...]]) -> str:
        """How many values are of which class, and how many of none."""
        counts = Counter(one for labels in found for one in labels)
        others = [value for value, one in zip(values, found, strict=True) if not one]
        strange = [value for value in others if not is_nothing(value)]
        such = f", such as {strange[0]!r:.30}" if strange else ""
        said = ", ".join(f"{label} {count:,}" for label, count in counts.most_common())
        return (
            f"rows by {self}: {said or 'none'}; {len(others) - len(strange):,} values are missing "
            f"and {len(strange):,} are not numbers{such}, and have no such label"
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
class Labeled:
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
) -> Labeled:
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
    classes, measured = _label_columns(table, options, taken={*ids, *roles.values()}, name=name)
    of_rows, notices = _labels_of_rows(table, classes, codes)
    notices += measured
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
    used = {"id": ", ".join(ids), **roles, "labels": ", ".join(map(str, classes))}
    return Labeled(facts, tuple(unmatched), used, tuple(notices))


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
    simple = {column: _simple(column) for column in table}
    for role, usual in ROLES.items():
        given = options.columns.get(role)
        if given is not None:
            roles[role] = _existing(table, given, option="columns", name=name)
            continue
        found = [column for word in usual for column in table if simple[column] == word]
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
) -> tuple[Sequence[str | Threshold], list[str]]:
    """The columns of labels, and notices on columns that could be some."""
    if options.label_columns == ("none",):
        return [], []
    if options.label_columns:
        return [_named_column(table, one, name) for one in options.label_columns], []
    left = [column for column in table if column not in taken and any(table[column])]
    measured = {column: n for column in left if (n := are_measured(table[column]))}
    left = [column for column in left if column not in measured]
    simple = {column: _simple(column) for column in left}
    usual = [column for word in _LABELS for column in left if simple[column] == word]
    if usual:
        return usual[:1], []
    classes = [column for column in left if are_yes_or_no(table[column])]
    if classes:
        return classes, []
    if not left and measured:
        column, count = next(iter(measured.items()))
        middle = median(one for one in numbers_of(table[column]) if one is not None)
        return [], [
            f"the column {column} of {name} holds {count:,} different numbers and is not taken for "
            f'labels; a threshold makes classes of it, such as `label_columns="{column} < '
            f'{middle:.3g}"`, and its name makes each number one'
        ]
    if len(left) > 1:
        raise SettingError(
            f"{name} has several columns that could be labels ({_listed(left)}); give those that "
            "are as `label_columns`, or 'none'"
        )
    return left, []


def _named_column(table: Columns, given: str, name: str) -> str | Threshold:
    match = None if given in table else _THRESHOLD.fullmatch(given[:1000])
    if match is None:
        return _existing(table, given, option="label_columns", name=name)
    column = _existing(table, match[1], option="label_columns", name=name)
    limit = numbers_of([match[3]])[0]
    if limit is None:
        raise SettingError(
            f"`label_columns` has {given!r:.100}, whose threshold is no number; give one such as "
            f"'{column}<40'"
        )
    return Threshold(column, match[2], limit)


def _labels_of_rows(
    table: Columns, columns: Sequence[str | Threshold], codes: Mapping[str, str] | None
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The labels of each row by name, and notices."""
    height = len(next(iter(table.values()), ()))
    rows: list[list[str]] = [[] for _ in range(height)]
    notices = []
    for column in columns:
        if isinstance(column, Threshold):
            continue
        values = table[column]
        if len(columns) > 1 and are_yes_or_no(values):
            for row, text in zip(rows, values, strict=True):
                row.extend((column,) if is_yes(text) else ())
            continue
        parsed = {text: split_labels(text) for text in set(values)}
        decimal = numbers_with_commas(values)
        parsed |= {text: (one,) for text, one in decimal.items() if not _are_codes(text, codes)}
        if decimal:
            text = next(iter(decimal))
            notices.append(
                f"cells of the column {column} such as {text!r} are taken for numbers; where "
                "several labels are meant, part them by ';'"
            )
        for row, text in zip(rows, values, strict=True):
            row.extend(parsed[text])
    named, unnamed = named_by(codes, rows)
    if unnamed:
        words = ", ".join(sorted(unnamed)[:5])
        notices.append(f"{len(unnamed):,} codes have no name in `codes` and keep theirs: {words}")
    for column in columns:
        if isinstance(column, Threshold):
            values = table[column.column]
            found = column.classes(values)
            named = [(*row, *more) for row, more in zip(named, found, strict=True)]
            notices.append(column.notice(values, found))
    return named, notices


def _are_codes(text: str, codes: Mapping[str, str] | None) -> bool:
    return codes is not None and all(one in codes for one in split_labels(text))


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

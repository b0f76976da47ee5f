"""What users say about a folder, and its tables: which columns name recordings and classes."""

from __future__ import annotations

import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, NamedTuple

from clocs.datasets import table_files as cells
from clocs.datasets.base import Entry, option, parse_sex
from clocs.errors import SettingError, first_of
from clocs.formats.addresses import last_name
from clocs.formats.arrays import NAMES
from clocs.formats.read import known_suffixes
from clocs.formats.source import Source

Columns = Mapping[str, Sequence[str]]
# Numbers of the recordings that a text names, none where it names none or is unclear.
Finder = Callable[[str], Sequence[int]]

NO_TABLE = ("header", "annotations", "none")  # instead of a table of labels
_SAMPLED = 2000  # rows that tell which column names the recordings
_THRESHOLD = re.compile(r"(.+?)\s*(<=|>=|<|>)\s*([^<>=]+)")
_OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MEETS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, ">=": operator.ge, ">": operator.gt, "<=": operator.le,
}  # fmt: skip

# What columns are called, in lower case without other characters than letters.
ROLES = dict(NAMES["columns"])
_LABELS = ROLES.pop("labels")


@dataclass(frozen=True)
class FolderOptions:
    """What the user says about a folder; None where nothing."""

    patient: str | None = option(
        None,
        "Where the patient is named: header (names and numbers are kept), folder, folder:N, file, "
        "column:NAME of the table or pattern:REGEX on the path; by default the table, else "
        "pseudonyms of what files say, else each file is one",
    )
    labels: str | None = option(
        None,
        "Table of labels (CSV, TSV, Parquet, XLSX), or header, annotations or none, the default",
    )
    id_column: str | None = option(None, "The table's column of file names; found if left out")
    label_columns: tuple[str, ...] | None = option(
        None,
        "Columns of the table that hold labels, thresholds such as 'LVEF<40', or 'none'",
        kind=tuple,
    )
    codes: str | None = option(None, "Second table with names for the labels' codes")
    code_names: str | None = option(None, "Column of names in that table; the second by default")
    classes: tuple[str, ...] | None = option(
        None, "Labels to use, in this order; the most frequent first if left out", kind=tuple
    )
    columns: Mapping[str, str] | None = option(
        None, "Other columns of the table, such as age=AGE_AT_ECG,fold=strat_fold", kind=dict
    )
    lead_names: Mapping[str, str] | None = option(
        None, "Leads by unusual names, such as ECG1=II,ch2=V5", kind=dict
    )
    leads: tuple[str, ...] | None = option(
        None, "Leads to keep where present, such as I,II,V5; all by default", kind=tuple
    )
    rate: float | None = option(
        None, "Sampling rate in Hz of files that do not say", kind=float, minimum=50, maximum=10_000
    )
    unit: str | None = option(None, "Unit of files that do not say, such as mV")
    frame_seconds: float | None = option(
        None, "Seconds of a frame; chosen from the data by default", kind=float, above=0
    )
    dataset: str | None = option(None, "Name of the dataset; 'folder' by default")
    keep_text: tuple[str, ...] | None = option(
        None,
        "Free text of headers to keep in the store, such as institution,statements, or all; none "
        "by default",
        kind=tuple,
    )

    def as_text(self) -> dict[str, str]:
        """Those that were given, as the command line takes them; tables without their folder."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        texts = {name: _as_text(value) for name, value in values.items() if value is not None}
        return texts | {
            name: last_name(texts[name]) for name in ("labels", "codes") if name in texts
        }


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={text}" for key, text in value.items())
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


class Labeled(NamedTuple):
    """What a table says about recordings.

    Attributes:
        info: By the recording's number: labels (a JSON list), patient, age, sex, recorded_at, fold.
        unmatched: IDs of rows without a recording.
        notices: What the user should know.
    """

    info: Mapping[int, Mapping[str, str]]
    unmatched: Sequence[str] = ()
    notices: Sequence[str] = ()


class NoIdsError(SettingError):
    """No column of a table names recordings."""


class FolderTables:
    """The tables that the options name, read.

    Attributes:
        name: Of the table of labels; '' where there is none.
        inside: Names of those that are in the source.
        contents: Of all, for the fingerprint.
        codes: Names of labels by code, where a table has them.
    """

    def __init__(self, source: Source, options: FolderOptions) -> None:
        self._options = options
        self.name = ""
        self.inside: set[str] = set()
        self.contents: list[bytes] = []
        self.codes: dict[str, str] | None = None
        if options.labels is not None and options.labels.partition(":")[0] not in NO_TABLE:
            self.name = last_name(options.labels)
            self._table = self._read(source, options.labels, "labels")
        if options.codes is not None:
            data = self._read(source, options.codes, "codes")
            columns = cells.read_table(data, name=options.codes)
            self.codes = read_codes(columns, column=options.code_names, name=options.codes)

    def _read(self, source: Source, given: str, option: str) -> bytes:
        inside, data = cells.find_table(source, given, option=option)
        self.inside |= {inside} - {""}
        self.contents.append(data)
        return data

    def match(self, entries: Sequence[Entry], patients: Sequence[str]) -> Labeled:
        """What the table says about each entry, or else about each patient."""
        if not self.name:
            if column := patient_column(self._options):
                raise SettingError(
                    f"`patient` names the column {column} of a table; give it as `labels`"
                )
            return Labeled({})
        found = None
        try:
            found = self._matched(recording_finder(entries, known_suffixes()))
        except NoIdsError:
            if not any(patients):
                raise
        if found and found.info:
            return found
        by_patient = self._matched(patient_finder(patients))
        return by_patient if by_patient.info else found or by_patient

    def _matched(self, find: Finder) -> Labeled:
        table = cells.read_table(self._table, name=self.name, is_id=lambda text: bool(find(text)))
        return label_recordings(table, find, self._options, codes=self.codes, name=self.name)


def patient_column(options: FolderOptions) -> str:
    """The table's column of patients that `patient` names; '' where it is another rule."""
    kind, _, column = (options.patient or "").partition(":")
    return column if kind == "column" else ""


def patient_finder(patients: Iterable[str]) -> Finder:
    """Finds the recordings of the patient that a text names."""
    numbers: dict[str, list[int]] = {}
    for number, patient in enumerate(patients):
        if patient:
            numbers.setdefault(patient.strip().casefold(), []).append(number)
    return lambda text: numbers.get(text.strip().casefold(), ())


def recording_finder(entries: Iterable[Entry], suffixes: tuple[str, ...]) -> Finder:
    """Finds recordings by what people write: paths, file names, IDs without zeros.

    Folder, suffix, case and leading zeros do not matter. A text that fits files of several names is
    none of them. Recordings of one file are found together by the file's name, and one by one by
    their own.
    """
    files: dict[str, list[int]] = {}
    names: dict[str, Sequence[int]] = {}
    digits: dict[str, Sequence[int]] = {}

    def add(table: dict[str, Sequence[int]], name: str, numbers: Sequence[int]) -> None:
        if table.setdefault(name, numbers) != numbers:
            table[name] = ()  # ambiguous

    def bare(name: str) -> str:
        return next((name.removesuffix(one) for one in suffixes if name.endswith(one)), name)

    def tails(path: str) -> Iterator[str]:
        """The path, then ever less of its folders, each with and without its suffix."""
        tail = path.casefold().removeprefix("./").strip("/")
        while tail:
            yield from dict.fromkeys((tail, bare(tail)))
            tail = tail.partition("/")[2]

    every = list(entries)
    for number, entry in enumerate(every):
        files.setdefault(entry.path, []).append(number)
    for path, numbers in files.items():
        for name in tails(path):
            add(names, name, numbers)
        short = bare(path.rpartition("/")[2].casefold())
        if short.isdigit():
            add(digits, short.lstrip("0"), numbers)
        for number in numbers:
            if part := every[number].info.get("part", ""):
                for name in (f"{path}#{part}", every[number].id, part):
                    add(names, name.casefold(), [number])

    def find(text: str) -> Sequence[int]:
        written = text.strip()
        found = next((names[t] for t in tails(written.replace("\\", "/")) if names.get(t)), ())
        return found or digits.get(written.lstrip("0"), ())

    return find


class LabelColumn(NamedTuple):
    """A column of labels, or of numbers with a threshold: 'LVEF<40' and 'LVEF>=40' are classes."""

    name: str
    sign: str = ""
    limit: float = 0.0

    def classes(self, values: Sequence[str]) -> tuple[list[tuple[str, ...]], str]:
        """The class of each number, none where it is missing or no number, and a notice."""
        one, other = (f"{self.name}{x}{self.limit:g}" for x in (self.sign, _OPPOSITE[self.sign]))
        numbers = cells.numbers_of(values)
        found: list[tuple[str, ...]] = [
            () if x is None else (one if _MEETS[self.sign](x, self.limit) else other,)
            for x in numbers
        ]
        counts = Counter(label for labels in found for label in labels)
        others = [text for text, x in zip(values, numbers, strict=True) if x is None]
        strange = [text for text in others if not cells.is_nothing(text)]
        such = f", such as {strange[0]!r:.30}" if strange else ""
        counted = ", ".join(f"{label} {count:,}" for label, count in counts.most_common())
        return found, (
            f"rows by {one}: {counted or 'none'}; {len(others) - len(strange):,} values are "
            f"missing and {len(strange):,} are not numbers{such}, and have no such label"
        )


def label_recordings(
    table: Columns,
    find: Finder,
    options: FolderOptions,
    *,
    codes: Mapping[str, str] | None = None,
    name: str,
) -> Labeled:
    """Match the rows of a table with recordings.

    Args:
        table: Columns of text.
        find: Finds recordings.
        options: What the user says about the columns.
        codes: Names of labels, '' for those to leave out; others keep theirs.
        name: Of the table, for messages.

    Raises:
        NoIdsError: No column names recordings.
        SettingError: A column is missing, or none is clearly a label.
    """
    roles = _roles(table, options, name)
    others = {column for role, column in roles.items() if role != "patient"}
    ids = _id_columns(table, find, options.id_column, taken=others, name=name)
    given = options.label_columns or ()
    classes, notices = _label_columns(table, given, taken={*ids, *roles.values()}, name=name)
    of_rows, label_notices = _labels_of_rows(table, classes, codes)
    known, role_notices = _facts_of_rows(table, roles, name)
    notices = [*label_notices, *notices]
    facts: dict[int, dict[str, str]] = {}
    labels: dict[int, list[str]] = {}
    unmatched: list[str] = []
    several: set[int] = set()
    for row, texts in enumerate(zip(*(table[column] for column in ids), strict=True)):
        written = [text for text in texts if not cells.is_nothing(text)]
        found = {number for text in written for number in find(text)}
        if not found and written:
            unmatched.append(written[0])
        for number in found:
            if number in facts:
                several.add(number)
            own = facts.setdefault(number, {})
            labels.setdefault(number, []).extend(of_rows[row])
            for key, values in known.items():
                if not cells.is_nothing(values[row]):
                    own.setdefault(key, values[row])
    for number, own in facts.items():
        own["labels"] = json.dumps(list(dict.fromkeys(labels[number])), ensure_ascii=False)
    if several:
        notices.append(
            f"{len(several):,} recordings have several rows in {name}; their labels are combined, "
            "and the first row tells the rest"
        )
    return Labeled(facts, tuple(unmatched), (*notices, *role_notices))


def _facts_of_rows(
    table: Columns, roles: Mapping[str, str], name: str
) -> tuple[dict[str, Sequence[str]], list[str]]:
    """What columns other than of labels say, by the recording's attribute, and notices."""
    facts = {role: table[column] for role, column in roles.items()}
    notices: list[str] = []
    if "age" in facts:
        ages = map(cells.age_of, facts["age"])
        facts["age"] = ["" if age is None else f"{age:g}" for age in ages]
    if "sex" in facts:
        written = [text for text in facts["sex"] if text]
        facts["sex"] = [parse_sex(text) or "" for text in facts["sex"]]
        if written and not any(facts["sex"]):
            notices.append(
                f"the column {roles['sex']} of {name} holds {written[0]!r:.20} and others, which "
                "do not say who is male or female; write male and female into it"
            )
    if "date" in facts:
        dates = facts["recorded_at"] = [day or "" for day in cells.dates_of(facts.pop("date"))]
        if dates and not any(dates):
            notices.append(f"no date in the column {roles['date']} of {name} could be understood")
    return facts, notices


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


def _roles(table: Columns, options: FolderOptions, name: str) -> dict[str, str]:
    columns = options.columns or {}
    unknown = ", ".join(role for role in columns if role not in ROLES)
    if unknown:
        raise SettingError(f"`columns` names {unknown}; it may name {', '.join(ROLES)}")
    named = {role: (column, "columns") for role, column in columns.items()}
    if column := patient_column(options):
        named["patient"] = (column, "patient")
    taken = (options.id_column, *(options.label_columns or ()))
    free = {column: _simple(column) for column in table if column not in taken}
    roles: dict[str, str] = {}
    for role, usual in ROLES.items():
        found = [column for word in usual for column, simple in free.items() if simple == word]
        if role in named:
            column, option = named[role]
            roles[role] = _existing(table, column, option=option, name=name)
        elif found:
            roles[role] = found[0]
    return roles


def _id_columns(
    table: Columns, find: Finder, given: str | None, *, taken: Collection[str], name: str
) -> list[str]:
    """The column that names most recordings, and others that name further ones.

    Columns that are `taken` name none: an age may happen to be a file's number.
    """
    if given is not None:
        return [_existing(table, given, option="id_column", name=name)]
    step = max(1, len(next(iter(table.values()), ())) // _SAMPLED)
    matched: dict[str, set[int]] = {}
    for every in (step, 1):  # a sample of rows, then all of them
        for column, values in table.items():
            found = {n for text in set(values[::every]) for n in find(text)}
            if found and column not in taken:
                matched[column] = found
        if matched:
            break
    else:
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


def _label_columns(
    table: Columns, given: Sequence[str], *, taken: Collection[str], name: str
) -> tuple[Sequence[LabelColumn], list[str]]:
    """The columns of labels, and notices on columns that could be some."""
    if tuple(given) == ("none",):
        return [], []
    if given:
        return [_named_column(table, one, name) for one in given], []
    left = [column for column in table if column not in taken and any(table[column])]
    measured = {column: n for column in left if (n := cells.are_measured(table[column]))}
    left = [column for column in left if column not in measured]
    simple = {column: _simple(column) for column in left}
    usual = [column for word in _LABELS for column in left if simple[column] == word]
    if usual:
        return [LabelColumn(usual[0])], []
    classes = [LabelColumn(column) for column in left if cells.are_yes_or_no(table[column])]
    if classes:
        return classes, []
    if not left and measured:
        column, count = next(iter(measured.items()))
        middle = median(one for one in cells.numbers_of(table[column]) if one is not None)
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
    return [LabelColumn(column) for column in left], []


def _named_column(table: Columns, given: str, name: str) -> LabelColumn:
    match = None if given in table else _THRESHOLD.fullmatch(given[:1000])
    if match is None:
        return LabelColumn(_existing(table, given, option="label_columns", name=name))
    column = _existing(table, match[1], option="label_columns", name=name)
    limit = cells.numbers_of([match[3]])[0]
    if limit is None:
        raise SettingError(
            f"`label_columns` has {given!r:.100}, whose threshold is no number; give one such as "
            f"'{column}<40'"
        )
    return LabelColumn(column, match[2], limit)


def _labels_of_rows(
    table: Columns, columns: Sequence[LabelColumn], codes: Mapping[str, str] | None
) -> tuple[list[list[str]], list[str]]:
    """The labels of each row by name, and notices."""
    rows: list[list[str]] = [[] for _ in next(iter(table.values()), ())]
    notices: list[str] = []
    unnamed: set[str] = set()
    for column in columns:
        values = table[column.name]
        found: Iterable[Sequence[str]]
        if column.sign:
            found, notice = column.classes(values)
            notices.append(notice)
        elif len(columns) > 1 and cells.are_yes_or_no(values):
            found = [(column.name,) if cells.is_yes(text) else () for text in values]
        else:
            parsed = {text: cells.split_labels(text) for text in set(values)}
            decimal = cells.numbers_with_commas(values)
            for text, number in decimal.items():
                if codes is None or not all(one in codes for one in parsed[text]):
                    parsed[text] = (number,)
            if decimal:
                notices.append(
                    f"cells of the column {column.name} such as {next(iter(decimal))!r} are taken "
                    "for numbers; where several labels are meant, part them by ';'"
                )
            found = [parsed[text] for text in values]
        if codes is not None and not column.sign:
            unnamed |= {one for labels in found for one in labels if one not in codes}
            found = [[codes.get(one, one) for one in labels] for labels in found]
        for row, labels in zip(rows, found, strict=True):
            row.extend(filter(None, labels))
    if unnamed:
        words = ", ".join(sorted(unnamed)[:5])
        notices.append(f"{len(unnamed):,} codes have no name in `codes` and keep theirs: {words}")
    return rows, notices


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
        code: "" if cells.is_nothing(label) else label
        for code, label in zip(table[columns[0]], table[target], strict=True)
        if code
    }

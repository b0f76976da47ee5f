"""The tables that belong to a folder: labels by recording or by patient, and names of codes."""

from __future__ import annotations

from collections.abc import Sequence

from clocs.datasets.base import Entry
from clocs.datasets.folder_options import NO_TABLE, FolderOptions
from clocs.datasets.folder_patients import PatientRule
from clocs.datasets.label_table import (
    Labeled,
    NoIdsError,
    TableOptions,
    label_recordings,
    read_codes,
)
from clocs.datasets.recording_names import Names, PatientNames, RecordingNames
from clocs.datasets.table_files import TABLES, find_table, read_table
from clocs.errors import SettingError
from clocs.formats.addresses import last_name
from clocs.formats.read import Others, known_suffixes
from clocs.formats.source import Source


class FolderTables:
    """The tables that the options name, read."""

    def __init__(self, source: Source, options: FolderOptions) -> None:
        self._options = options
        self.name = ""
        self.inside: set[str] = set()
        self.contents: list[bytes] = []
        self._table: bytes | None = None
        self.codes: dict[str, str] | None = None
        if options.labels is not None and options.labels.partition(":")[0] not in NO_TABLE:
            self.name = last_name(options.labels)
            self._table = self._read(source, options.labels, "labels")
        if options.codes is not None:
            data = self._read(source, options.codes, "codes")
            columns = read_table(data, name=options.codes)
            self.codes = read_codes(columns, column=options.code_names, name=options.codes)

    def _read(self, source: Source, given: str, option: str) -> bytes:
        inside, data = find_table(source, given, option=option)
        self.inside |= {inside} - {""}
        self.contents.append(data)
        return data

    def match(
        self, entries: Sequence[Entry], patients: Sequence[str], rule: PatientRule
    ) -> Labeled:
        """What the table says about each entry, or else about each patient."""
        own = self._options
        if self._table is None:
            if rule.column is not None:
                raise SettingError(
                    f"`patient` names the column {rule.column} of a table; give it as `labels`"
                )
            return Labeled({}, (), {}, ())
        options = TableOptions(
            id_column=own.id_column,
            label_columns=own.label_columns or (),
            columns=own.columns or {},
            patient_column=rule.column,
            split_column=own.split_column,
        )
        try:
            found = self._matched(self._table, RecordingNames(entries, known_suffixes()), options)
            if found.info:
                return found
        except NoIdsError:
            if not any(patients):
                raise
            return self._matched(self._table, PatientNames(patients), options)
        by_patient = self._matched(self._table, PatientNames(patients), options)
        return by_patient if by_patient.info else found

    def _matched(self, data: bytes, names: Names, options: TableOptions) -> Labeled:
        table = read_table(data, name=self.name, is_id=lambda text: bool(names.find(text)))
        return label_recordings(table, names, options, codes=self.codes, name=self.name)


def without_row(entries: Sequence[Entry], labeled: Labeled, tables: FolderTables) -> list[str]:
    """A sentence on recordings that the table does not name, where there are some."""
    missing = [entry.id for number, entry in enumerate(entries) if number not in labeled.info]
    if not tables.name or not missing:
        return []
    count = len(missing)
    have = "recording has" if count == 1 else "recordings have"
    are = "is" if count == 1 else "are"
    return [
        f"{count:,} {have} no row in {tables.name} and {are} unlabeled: "
        f"{', '.join(missing[:3])}{' …' if count > 3 else ''}"
    ]


def unread_files(others: Others, options: FolderOptions) -> list[str]:
    """A sentence on files that are neither recordings nor among the options' tables, if any."""
    said = others.sentence()
    tables = any(name.lower().endswith(TABLES) for name in others.unused)
    if said and tables and options.labels is None:
        said += "; if one is a table of labels, give it as `labels`"
    return [said] if said else []

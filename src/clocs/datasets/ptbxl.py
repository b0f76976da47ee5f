"""PTB-XL (Wagner et al. 2020): 12 leads, 500 or 100 Hz, 10 s, SCP-ECG statements.

Versions 1.0.1 to 1.0.3 as published: `ptbxl_database.csv`, and WFDB records in `records500` and
`records100`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from clocs.datasets import base
from clocs.datasets.base import DatasetRow, Entry, Listing, PublishedDataset, Quarantined
from clocs.datasets.label_names import DIAGNOSTIC, LABEL_SETS, statement_label
from clocs.errors import SettingError, SourceError
from clocs.formats.source import Source, stem
from clocs.formats.wfdb import read_wfdb
from clocs.recording import STANDARD_LEADS, FrameSpec, Recording, check_signal

TABLE = "ptbxl_database.csv"
OLDEST = 300.0  # the age that stands for more than 89 years, from version 1.0.2 on
_NEEDED = ("ecg_id", "patient_id", "age", "sex", "recording_date", "scp_codes", "strat_fold")
_FILES = ("filename_lr", "filename_hr")
_SUFFIX = {500.0: "_hr.hea", 100.0: "_lr.hea"}
_SEXES = {"0": "male", "1": "female"}
_STATEMENT = re.compile(r"'([^']*)' *: *([0-9]+\.?[0-9]*)")


@dataclass(frozen=True, eq=False)
class PTBXL(PublishedDataset):
    """The dataset in a source.

    Attributes:
        source: Where the table and the records are.
        rate: Of the files to read, 500 or 100 Hz.
        label_set: One of `LABEL_SETS`.
        likelihood: The least, in %, of a diagnostic statement that counts. Statements of form and
            rhythm have none and always count.
    """

    rate: float = base.option(500.0, "Rate of the files of ptbxl to read, 500 or 100", minimum=1)
    label_set: str = base.option(
        "superclass",
        "Labels of ptbxl (docs/datasets.md)",
        choices=tuple(LABEL_SETS),
    )
    likelihood: float = base.option(
        0.0,
        "Least likelihood in % of a diagnostic statement that counts; at 0 all count",
        minimum=0,
        maximum=100,
    )

    name = "ptbxl"
    multilabel = True
    skip_flat = True
    frame = FrameSpec(10.0, 2500)
    segment_frame = FrameSpec(5.0, 2500)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate not in _SUFFIX:
            raise SettingError(f"`rate` must be 500 or 100 for ptbxl, not {self.rate:g}")

    @property
    def labels(self) -> tuple[str, ...]:
        return LABEL_SETS[self.label_set]

    def list(self) -> Listing:
        headers = base.with_suffix(self.source, _SUFFIX[self.rate])
        every = base.with_suffix(self.source, tuple(_SUFFIX.values()))
        self.require(len(every), f"{TABLE} with *_hr.hea or *_lr.hea")
        if not headers:
            other = next(rate for rate in _SUFFIX if rate != self.rate)
            raise SourceError(
                f"{self.source.path} has no records of {self.rate:g} Hz, but of {other:g} Hz; "
                f"give `rate={other:g}`, or the whole dataset"
            )
        tables = base.label_tables(self.source, TABLE)
        if not tables:
            raise SourceError(
                f"{self.source.path} has no {TABLE}, which holds patients and labels; "
                f"give the whole dataset, or put {TABLE} into its folder"
            )
        rows = {row["ecg_id"]: row for table in tables for row in _rows(table, self.source)}
        entries, lost = [], []
        for path in headers:
            name = stem(path)[:-3]
            if name in rows:
                entries.append(Entry(name, rows[name]["patient_id"], path, rows[name]))
            else:
                detail = f"{path} has no row in {TABLE}, so its patient is unknown"
                lost.append(Quarantined(name, "no label", detail))
        fingerprint = base.fingerprint_of(self.source, tables)
        return base.complete_listing(entries, lost, rows=rows, fingerprint=fingerprint)

    def read(self, entry: Entry) -> Recording:
        recording = read_wfdb(self.source, entry.path)
        check_signal(recording, frame=self.frame, known_leads=STANDARD_LEADS)
        row = dict(entry.info)
        own = {name: row.pop(name) for name in (*_NEEDED, *_FILES) if name in row}
        extra = {**base.header_extra(recording), **row, "scp_codes": own["scp_codes"]}
        age = base.parse_age(own["age"])
        if age is not None and age >= OLDEST:
            age, extra["age"] = 90.0, "90 or more"
        return replace(
            recording,
            id=entry.id,
            patient=entry.patient,
            labels=self._labels(own["scp_codes"]),
            age=age,
            sex=_SEXES.get(own["sex"].removesuffix(".0")),
            recorded_at=_recorded_at(own["recording_date"]) or recording.recorded_at,
            fold=own["strat_fold"].removesuffix(".0") or None,
            extra={name: value for name, value in extra.items() if value},
        )

    def _labels(self, statements: str) -> tuple[str, ...]:
        """Of the chosen set, in its order; of "{'NORM': 80.0, 'SR': 0.0}"."""
        found = {
            statement_label(statement, self.label_set)
            for statement, likelihood in _STATEMENT.findall(statements)
            if statement not in DIAGNOSTIC or float(likelihood) >= self.likelihood
        }
        return tuple(label for label in self.labels if label in found)


def _recorded_at(text: str) -> str | None:
    """'1984-11-09 09:17:34' -> ISO 8601."""
    try:
        return datetime.fromisoformat(text).isoformat()
    except ValueError:
        return None


def _rows(table: bytes, source: Source) -> Iterator[dict[str, str]]:
    """Rows of the table with IDs as file names have them; columns are found by name."""
    text = io.StringIO(table.decode("utf-8-sig", errors="replace"), newline="")
    try:
        reader = csv.DictReader(text, strict=True)
        missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"it has no column {', '.join(missing)}")
        for row in reader:
            # `DictReader` puts what a row has too much under None, and None for what it lacks.
            values = {str(key): (row[key] or "").strip() for key in reader.fieldnames or ()}
            values["ecg_id"] = f"{int(float(values['ecg_id'])):05d}"
            patient = values["patient_id"].removesuffix(".0")
            values["patient_id"] = patient or f"of recording {values['ecg_id']}"
            yield values
    except (csv.Error, ValueError, OverflowError) as error:
        raise SourceError(
            f"{TABLE} of {source.path} is not the published table ({error}); download it again"
        ) from None


def _recognize(source: Source) -> bool:
    names = (name.rpartition("/")[2] for name in source.names)
    return any(re.fullmatch(r"ptbxl_database\.csv|\d{5}_[hl]r\.hea", name) for name in names)


PTB_XL = DatasetRow("ptbxl", PTBXL, _recognize)

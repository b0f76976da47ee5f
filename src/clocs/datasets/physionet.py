"""PhysioNet/CinC challenges of 2017, 2020 (the CPSC 2018 part) and 2021, as WFDB records.

2017: one lead, 300 Hz, 9 to 61 s, four classes in `REFERENCE.csv`, inside the source or beside the
zip. 2020: 12 leads, 500 Hz, 6 to 144 s, one to three of nine labels. 2021: 12 leads, 257 to 1000
Hz, eight databases, one folder each, with or without subfolders `g1`, `g2` … The labels of the last
two are SNOMED codes in the headers' `#Dx:`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from clocs.datasets import base
from clocs.datasets.base import DatasetRow, Entry, Listing, PublishedDataset
from clocs.datasets.label_names import CLASSES, LABELS, SCORED
from clocs.errors import SettingError, SourceError, UnusableError
from clocs.files import packaged_table
from clocs.formats.source import Source, stem
from clocs.formats.wfdb import read_wfdb, refuse_missing
from clocs.recording import STANDARD_LEADS, UNNAMED_LEAD, FrameSpec, Recording, check_signal

# Some copies hold the first labels under a name of their own, and newer ones as REFERENCE.csv.
TABLES = {"original": ("REFERENCE-original.csv", "REFERENCE.csv"), "v3": ("REFERENCE-v3.csv",)}
# The nine labels of 2020, and what 2021 calls those that it names otherwise.
_NINE = ("AF", "I-AVB", "LBBB", "Normal", "PAC", "PVC", "RBBB", "STD", "STE")
_RENAMED = {"I-AVB": "IAVB", "Normal": "NSR", "PVC": "VEB"}
CODES = {label: CLASSES[_RENAMED.get(label, label)] for label in _NINE}
# The folders of the databases, and how their recordings are called.
DATABASES: Final = MappingProxyType(
    {
        row["database"]: re.compile(row["recordings"])
        for row in packaged_table("clocs.datasets", "physionet2021.csv")
    }
)
_LABEL_SETS = {"scored": tuple(SCORED), "all": tuple(CLASSES)}


@dataclass(frozen=True, eq=False)
class PhysioNet2017(PublishedDataset):
    """The dataset in a source.

    Attributes:
        source: Where the records are.
        reference: Which labels: 'original', as in the paper, or the revised 'v3'.
    """

    reference: str = base.option(
        "original",
        "Version of the labels: original, as in the paper, or the revised v3",
        choices=tuple(TABLES),
    )

    name = "physionet2017"
    labels = ("N", "A", "O", "~")
    frame = FrameSpec(2500 / 300, 2500)

    def list(self) -> Listing:
        headers = base.with_suffix(self.source, ".hea")
        self.require(len(headers), "*.hea of one lead at 300 Hz")
        tables = _references(self.source, TABLES[self.reference])
        rows = _reference_rows(tables)
        info = {name: {"label": label} for name, label in rows.items()}
        entries, lost = base.wfdb_entries(self.source, info)
        fingerprint = base.fingerprint_of(self.source, tables)
        return base.complete_listing(entries, lost, rows=rows, fingerprint=fingerprint)

    def read(self, entry: Entry) -> Recording:
        label = entry.info.get("label", "")
        if not label:
            detail = f"{entry.id} has no row in {TABLES[self.reference][-1]}"
            raise UnusableError("no label", detail)
        if label not in self.labels:
            detail = f"the label of {entry.id} is {label!r}, not one of {' '.join(self.labels)}"
            raise UnusableError("unknown label", detail)
        recording = read_wfdb(self.source, entry.path)
        refuse_missing(recording)
        check_signal(recording, frame=self.frame, known_leads=(UNNAMED_LEAD,))
        extra = base.header_extra(recording)
        return replace(recording, labels=(label,), extra=extra)


def _references(source: Source, names: tuple[str, ...]) -> list[bytes]:
    """The label tables with the first of these names found in the source or its folder."""
    for name in names:
        found = base.label_tables(source, name)
        if found:
            return found
    where = "into the folder" if source.is_folder else "beside the zip"
    raise SourceError(
        f"{source.path} has no {names[-1]}, which holds the labels; put {names[-1]} {where}"
    )


def _reference_rows(tables: list[bytes]) -> dict[str, str]:
    """Labels by record; where a record has different ones, two of them, which is no class."""
    found: dict[str, dict[str, None]] = {}
    for table in tables:
        for line in table.decode("utf-8-sig", errors="replace").splitlines():
            name, comma, label = (part.strip() for part in line.partition(","))
            if comma and name:
                found.setdefault(name, {})[label] = None
    return {name: " or ".join([*labels][:2]) for name, labels in found.items()}


def _is_2017(source: Source) -> bool:
    headers = base.first_headers(source)
    return any(
        len(one.signals) == 1 and one.rate == 300 and not {"Dx", "Rhythm"} & one.fields.keys()
        for one in headers
    )


@dataclass(frozen=True, eq=False)
class PhysioNet2020(PublishedDataset):
    """The dataset in a source."""

    name = "physionet2020"
    labels = tuple(CODES)
    multilabel = True
    frame = FrameSpec(5.0, 2500)

    def list(self) -> Listing:
        entries, lost = base.wfdb_entries(self.source, {})
        self.require(len(entries), "*.hea with #Dx")
        return base.complete_listing(entries, lost, fingerprint=self.source.fingerprint)

    def read(self, entry: Entry) -> Recording:
        recording = read_wfdb(self.source, entry.path)
        refuse_missing(recording)
        check_signal(recording, frame=self.frame, known_leads=STANDARD_LEADS)
        return replace(
            recording,
            labels=_nine_labels(entry.id, recording.extra.get("Dx", "")),
            age=base.parse_age(recording.extra.get("Age")),
            sex=base.parse_sex(recording.extra.get("Sex")),
            extra=base.header_extra(recording),
        )


def _nine_labels(name: str, diagnoses: str) -> tuple[str, ...]:
    codes = {code.strip() for code in diagnoses.split(",")} - {"", "Unknown"}
    if not codes:
        raise UnusableError("no label", f"the header of {name} has no code in #Dx")
    labels = tuple(label for label, code in CODES.items() if code in codes)
    if not labels:
        detail = f"none of the codes of {name} is among the nine: {', '.join(sorted(codes))}"
        raise UnusableError("unknown label", detail)
    return labels


@dataclass(frozen=True, eq=False)
class PhysioNet2021(PublishedDataset):
    """The dataset in a source.

    Attributes:
        source: Where the records are.
        label_set: 'scored' or 'all'.
        databases: Those to read, by their folders' names; all where None.
    """

    label_set: str = base.option(
        "scored",
        "Labels of physionet2021: the classes that the challenge scored, or all",
        choices=tuple(_LABEL_SETS),
    )
    databases: tuple[str, ...] | None = base.option(
        None, "Databases of physionet2021 to read (docs/datasets.md); all by default", kind=tuple
    )

    name = "physionet2021"
    multilabel = True
    skip_flat = True
    frame = FrameSpec(5.0, 2500)

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [name for name in self.databases or () if name not in DATABASES]
        if unknown:
            raise SettingError(
                f"`databases` has {', '.join(map(repr, unknown))}; "
                f"it can have {', '.join(DATABASES)}"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        return _LABEL_SETS[self.label_set]

    @property
    def settings(self) -> Mapping[str, str]:
        chosen = [name for name in DATABASES if name in (self.databases or ())]
        return {"label_set": self.label_set, "databases": ",".join(chosen) or "all"}

    def list(self) -> Listing:
        entries, lost = base.wfdb_entries(self.source, {})
        if not self.databases:  # else the user has named the databases
            self.require(len(entries), "*.hea with #Dx")
        wanted = self.databases or tuple(DATABASES)
        chosen = [
            replace(entry, info={"database": database}, patient_is_known=False)
            for entry in entries
            if (database := database_of(entry.path)) in wanted or not (database or self.databases)
        ]
        if not chosen:
            raise SourceError(
                f"{self.source.path} holds no recording of {', '.join(wanted)}; "
                "leave out `databases` or give another source"
            )
        missed = [one for one in lost if _of_name(one.id) in (*wanted, "")]
        return base.complete_listing(chosen, missed, fingerprint=self.source.fingerprint)

    def read(self, entry: Entry) -> Recording:
        recording = read_wfdb(self.source, entry.path)
        check_signal(recording, frame=self.frame, known_leads=STANDARD_LEADS)
        extra = base.header_extra(recording)
        return replace(
            recording,
            patient=extra.get("patient") or entry.patient,
            labels=self._labels(recording.extra.get("Dx", "")),
            age=base.parse_age(recording.extra.get("Age")),
            sex=base.parse_sex(recording.extra.get("Sex")),
            extra=extra | ({"database": entry.info["database"]} if entry.info["database"] else {}),
        )

    def _labels(self, diagnoses: str) -> tuple[str, ...]:
        """Labels of the set, in its order; codes of no class of it are ignored."""
        found = {LABELS.get(code.strip()) for code in diagnoses.split(",")}
        return tuple(label for label in self.labels if label in found)


def database_of(path: str) -> str:
    """The database of a recording, by a folder's name, else by its own; '' where neither tells."""
    folder, _, file = path.rpartition("/")
    return _of_folder(folder) or _of_name(stem(file))


@lru_cache(maxsize=256)
def _of_folder(path: str) -> str:
    return next((one for one in reversed(path.split("/")) if one in DATABASES), "")


def _of_name(name: str) -> str:
    return next((one for one, form in DATABASES.items() if form.fullmatch(name)), "")


def _challenge_of(source: Source) -> str:
    """The challenge whose files with SNOMED codes a source holds; '' where it holds none."""
    fields = [header.fields for header in base.first_headers(source)]
    if not any("Dx" in one and "Rhythm" not in one for one in fields):
        return ""
    headers = base.with_suffix(source, ".hea")
    others = any(database_of(name) not in ("", "cpsc_2018") for name in headers)
    return "physionet2021" if others else "physionet2020"


PHYSIONET2017 = DatasetRow("physionet2017", PhysioNet2017, _is_2017)
PHYSIONET2020 = DatasetRow(
    "physionet2020", PhysioNet2020, lambda source: _challenge_of(source) == "physionet2020"
)
PHYSIONET2021 = DatasetRow(
    "physionet2021", PhysioNet2021, lambda source: _challenge_of(source) == "physionet2021"
)

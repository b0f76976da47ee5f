"""PhysioNet/CinC 2021: 12 leads, 257 to 1000 Hz, eight databases, SNOMED codes as labels.

WFDB records whose headers hold the codes in `#Dx:`, one folder per database, with or without
subfolders `g1`, `g2` …
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from clocs.datasets import checks, listing
from clocs.datasets.base import DatasetRow, Entry, Listing, PublishedDataset
from clocs.datasets.label_names import CLASSES, LABELS, SCORED
from clocs.errors import SettingError, SourceError
from clocs.formats.source import Source, stem
from clocs.formats.wfdb import read_wfdb
from clocs.recording import STANDARD_LEADS, FrameSpec, Recording
from clocs.registry import Option

# The folders of the databases, and how their recordings are called.
DATABASES: Final = MappingProxyType(
    {
        "cpsc_2018": re.compile(r"A\d{4}"),
        "cpsc_2018_extra": re.compile(r"Q\d{4}"),
        "st_petersburg_incart": re.compile(r"I\d{4}"),
        "ptb": re.compile(r"S\d{4}"),
        "ptb-xl": re.compile(r"HR\d{5}"),
        "georgia": re.compile(r"E\d{5}"),
        "chapman_shaoxing": re.compile(r"JS(0\d{4}|10[0-5]\d\d|106[0-3]\d|1064[0-6])"),
        "ningbo": re.compile(r"JS\d{5}"),
    }
)
_LABEL_SETS = {"scored": tuple(SCORED), "all": tuple(CLASSES)}
OPTIONS = (
    Option(
        "label_set",
        "scored",
        f"Labels: the {len(SCORED)} classes that the challenge scored, or all {len(CLASSES)}",
        choices=tuple(_LABEL_SETS),
    ),
    Option(
        "databases",
        None,
        f"Databases to read, of {', '.join(DATABASES)}; all by default",
        kind=tuple,
    ),
)


@dataclass(frozen=True, eq=False)
class PhysioNet2021(PublishedDataset):
    """The dataset in a source.

    Attributes:
        source: Where the records are.
        label_set: 'scored' or 'all'.
        databases: Those to read, by their folders' names; all where None.
    """

    label_set: str = "scored"
    databases: tuple[str, ...] | None = None

    name = "physionet2021"
    multilabel = True
    skip_flat = True
    frame = FrameSpec(5.0, 2500)
    segment_frame = FrameSpec(5.0, 2500)

    def __post_init__(self) -> None:
        for option in OPTIONS:
            option.checked(getattr(self, option.name))
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
        entries, lost = listing.wfdb_entries(self.source, {})
        if not self.databases:  # else whoever gives one database alone has said so
            listing.require(
                self.source, dataset=self.name, found=len(entries), looked_for="*.hea with #Dx"
            )
        wanted = self.databases or tuple(DATABASES)
        chosen = [
            replace(entry, info={"database": database})
            for entry in entries
            if (database := database_of(entry.path)) in wanted or not (database or self.databases)
        ]
        if not chosen:
            raise SourceError(
                f"{self.source.path} holds no recording of {', '.join(wanted)}; "
                "leave out `databases` or give another source"
            )
        missed = [one for one in lost if _of_name(one.id) in (*wanted, "")]
        made = listing.complete(chosen, missed, fingerprint=self.source.fingerprint)
        return replace(made, patients_by_reading=True)

    def read(self, entry: Entry) -> Recording:
        recording = read_wfdb(self.source, entry.path)
        checks.check_signal(recording, frame=self.frame, known_leads=STANDARD_LEADS)
        extra = checks.header_extra(recording)
        return replace(
            recording,
            patient=extra.get("patient") or entry.patient,
            labels=self._labels(recording.extra.get("Dx", "")),
            age=checks.parse_age(recording.extra.get("Age")),
            sex=checks.parse_sex(recording.extra.get("Sex")),
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


def has_other_databases(source: Source) -> bool:
    """Whether a source holds recordings of the challenges that are not those of CPSC 2018."""
    headers = listing.with_suffix(source, ".hea")
    return any(database_of(name) not in ("", "cpsc_2018") for name in headers)


def _recognize(source: Source) -> bool:
    fields = [header.fields() for header in listing.first_headers(source)]
    has_codes = any("Dx" in one and "Rhythm" not in one for one in fields)
    return has_codes and has_other_databases(source)


PHYSIONET2021 = DatasetRow("physionet2021", PhysioNet2021, _recognize, options=OPTIONS)

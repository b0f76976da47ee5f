"""PhysioNet/CinC 2017: one lead, 300 Hz, 9 to 61 s, four classes in `REFERENCE.csv`.

WFDB records with the label table inside the source or beside the zip. Knows nothing about other
datasets or about stores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from clocs.datasets import checks, listing
from clocs.datasets.base import Entry, Listing, Published
from clocs.errors import SettingError, SourceError, UnusableError
from clocs.formats.source import Source
from clocs.formats.wfdb import read_wfdb
from clocs.recording import FrameSpec, Recording

LEADS = ("ECG",)
# Some copies hold the first labels under a name of their own, and newer ones as REFERENCE.csv.
TABLES = {
    "original": ("REFERENCE-original.csv", "REFERENCE.csv"),
    "v3": ("REFERENCE-v3.csv",),
}


@dataclass(frozen=True, eq=False)
class PhysioNet2017(Published):
    """The dataset in a source; see the module.

    Attributes:
        source: Where the records are.
        reference: Which labels: 'original', as in the paper, or the revised 'v3'.
    """

    reference: str = "original"

    name: ClassVar[str] = "physionet2017"
    labels: ClassVar[tuple[str, ...]] = ("N", "A", "O", "~")
    frame: ClassVar[FrameSpec] = FrameSpec(2500 / 300, 2500)
    segment_frame: ClassVar[FrameSpec] = FrameSpec(2500 / 300, 2500)

    def __post_init__(self) -> None:
        if self.reference not in TABLES:
            known = ", ".join(TABLES)
            raise SettingError(f"reference {self.reference!r} is not known; use one of {known}")

    @property
    def settings(self) -> Mapping[str, str]:
        return {"reference": self.reference}

    def list(self) -> Listing:
        listing.require(
            self.source,
            dataset=self.name,
            found=len(listing.with_suffix(self.source, ".hea")),
            looked_for="*.hea of one lead at 300 Hz",
        )
        tables = _tables(self.source, TABLES[self.reference])
        rows = _rows(tables)
        info = {name: {"label": label} for name, label in rows.items()}
        entries, lost = listing.wfdb_entries(self.source, info)
        kept, later = listing.unique(entries)
        held = {entry.id for entry in kept} | {one.id for one in lost}
        return Listing(
            entries=tuple(kept),
            quarantined=tuple(lost + later),
            rows_without_recording=tuple(sorted(rows.keys() - held)),
            fingerprint=listing.fingerprint(self.source, tables),
        )

    def read(self, entry: Entry) -> Recording:
        label = entry.info.get("label", "")
        if not label:
            detail = f"{entry.id} has no row in {TABLES[self.reference][-1]}"
            raise UnusableError("no label", detail)
        if label not in self.labels:
            detail = f"the label of {entry.id} is {label!r}, not one of {' '.join(self.labels)}"
            raise UnusableError("unknown label", detail)
        recording = read_wfdb(self.source, entry.path)
        checks.check_signal(recording, frame=self.frame, known_leads=LEADS)
        extra = checks.header_extra(recording)
        return dataclasses.replace(recording, labels=(label,), extra=extra)


def _tables(source: Source, names: tuple[str, ...]) -> list[bytes]:
    """The label tables of the first of these names that the source, or its folder, holds."""
    for name in names:
        found = listing.tables(source, name)
        if found:
            return found
    where = "into the folder" if source.path.is_dir() else "beside the zip"
    raise SourceError(
        f"{source.path} has no {names[-1]}, which holds the labels; put {names[-1]} {where}"
    )


def _rows(tables: list[bytes]) -> dict[str, str]:
    """Labels by record; two different ones of one record keep both words, and fit no class."""
    rows: dict[str, str] = {}
    for table in tables:
        for line in table.decode("utf-8-sig", errors="replace").splitlines():
            name, comma, label = (part.strip() for part in line.partition(","))
            if not comma or not name:
                continue
            known = rows.setdefault(name, label)
            if known != label:
                rows[name] = f"{known} or {label}"
    return rows

"""PhysioNet/CinC 2017: one lead, 300 Hz, 9 to 61 s, four classes in `REFERENCE.csv`.

WFDB records with the label table inside the source or beside the zip.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from clocs.datasets import checks, listing
from clocs.datasets.base import DatasetRow, Entry, Listing, PublishedDataset
from clocs.errors import SourceError, UnusableError
from clocs.formats.source import Source
from clocs.formats.wfdb import read_wfdb, refuse_missing
from clocs.recording import UNNAMED_LEAD, FrameSpec, Recording
from clocs.registry import Option

LEADS = (UNNAMED_LEAD,)
# Some copies hold the first labels under a name of their own, and newer ones as REFERENCE.csv.
TABLES = {
    "original": ("REFERENCE-original.csv", "REFERENCE.csv"),
    "v3": ("REFERENCE-v3.csv",),
}
REFERENCE = Option(
    "reference",
    "original",
    "Version of the labels: original, as in the paper, or the revised v3",
    choices=tuple(TABLES),
)


@dataclass(frozen=True, eq=False)
class PhysioNet2017(PublishedDataset):
    """The dataset in a source.

    Attributes:
        source: Where the records are.
        reference: Which labels: 'original', as in the paper, or the revised 'v3'.
    """

    reference: str = "original"

    name = "physionet2017"
    labels = ("N", "A", "O", "~")
    frame = FrameSpec(2500 / 300, 2500)
    segment_frame = FrameSpec(2500 / 300, 2500)

    def __post_init__(self) -> None:
        REFERENCE.checked(self.reference)

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
        fingerprint = listing.fingerprint(self.source, tables)
        return listing.complete(entries, lost, rows=rows, fingerprint=fingerprint)

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
        checks.check_signal(recording, frame=self.frame, known_leads=LEADS)
        extra = checks.header_extra(recording)
        return dataclasses.replace(recording, labels=(label,), extra=extra)


def _tables(source: Source, names: tuple[str, ...]) -> list[bytes]:
    """The label tables with the first of these names found in the source or its folder."""
    for name in names:
        found = listing.tables(source, name)
        if found:
            return found
    where = "into the folder" if source.is_folder else "beside the zip"
    raise SourceError(
        f"{source.path} has no {names[-1]}, which holds the labels; put {names[-1]} {where}"
    )


def _rows(tables: list[bytes]) -> dict[str, str]:
    """Labels by record; where a record has different ones, two of them, which is no class."""
    rows: dict[str, str] = {}
    unclear: set[str] = set()
    for table in tables:
        for line in table.decode("utf-8-sig", errors="replace").splitlines():
            name, comma, label = (part.strip() for part in line.partition(","))
            if not comma or not name:
                continue
            known = rows.setdefault(name, label)
            if known != label and name not in unclear:
                unclear.add(name)
                rows[name] = f"{known} or {label}"
    return rows


def _recognize(source: Source) -> bool:
    headers = listing.first_headers(source)
    return any(
        len(one.signals) == 1 and one.rate == 300 and not {"Dx", "Rhythm"} & one.fields().keys()
        for one in headers
    )


PHYSIONET2017 = DatasetRow(
    "physionet2017",
    PhysioNet2017,
    _recognize,
    options=(REFERENCE,),
)

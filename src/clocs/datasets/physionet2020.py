"""PhysioNet/CinC 2020, the CPSC 2018 part: 12 leads, 500 Hz, 6 to 144 s, nine labels.

WFDB records whose headers hold SNOMED codes in `#Dx:`; a recording has one to three labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clocs.datasets import checks, listing
from clocs.datasets.base import DatasetRow, Entry, Listing, PublishedDataset
from clocs.datasets.physionet2021 import has_other_databases
from clocs.errors import UnusableError
from clocs.formats.source import Source
from clocs.formats.wfdb import read_wfdb, refuse_missing
from clocs.recording import STANDARD_LEADS, FrameSpec, Recording

CODES = {
    "AF": "164889003",
    "I-AVB": "270492004",
    "LBBB": "164909002",
    "Normal": "426783006",
    "PAC": "284470004",
    "PVC": "164884008",
    "RBBB": "59118001",
    "STD": "429622005",
    "STE": "164931005",
}


@dataclass(frozen=True, eq=False)
class PhysioNet2020(PublishedDataset):
    """The dataset in a source."""

    name = "physionet2020"
    labels = tuple(CODES)
    multilabel = True
    frame = FrameSpec(5.0, 2500)
    segment_frame = FrameSpec(5.0, 2500)

    def list(self) -> Listing:
        entries, lost = listing.wfdb_entries(self.source, {})
        listing.require(
            self.source, dataset=self.name, found=len(entries), looked_for="*.hea with #Dx"
        )
        return listing.complete(entries, lost, fingerprint=self.source.fingerprint)

    def read(self, entry: Entry) -> Recording:
        recording = read_wfdb(self.source, entry.path)
        refuse_missing(recording)
        checks.check_signal(recording, frame=self.frame, known_leads=STANDARD_LEADS)
        return replace(
            recording,
            labels=_labels(entry.id, recording.extra.get("Dx", "")),
            age=checks.parse_age(recording.extra.get("Age")),
            sex=checks.parse_sex(recording.extra.get("Sex")),
            extra=checks.header_extra(recording),
        )


def _labels(name: str, diagnoses: str) -> tuple[str, ...]:
    codes = {code.strip() for code in diagnoses.split(",")} - {"", "Unknown"}
    if not codes:
        raise UnusableError("no label", f"the header of {name} has no code in #Dx")
    labels = tuple(label for label, code in CODES.items() if code in codes)
    if not labels:
        detail = f"none of the codes of {name} is among the nine: {', '.join(sorted(codes))}"
        raise UnusableError("unknown label", detail)
    return labels


def _recognize(source: Source) -> bool:
    fields = [header.fields() for header in listing.first_headers(source)]
    has_codes = any("Dx" in one and "Rhythm" not in one for one in fields)
    return has_codes and not has_other_databases(source)


PHYSIONET2020 = DatasetRow("physionet2020", PhysioNet2020, _recognize)

"""MIT-BIH Arrhythmia Database (Moody and Mark 2001): 48 half-hours, two leads, 360 Hz.

WFDB records 100 to 234 with their reference annotations (`.atr`): rhythms, or classes of beats.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from clocs.datasets import base
from clocs.datasets.base import DatasetRow, Entry, Listing, PublishedDataset
from clocs.files import MAX_HEADER_BYTES, packaged_table
from clocs.formats.source import Source, stem
from clocs.formats.wfdb import Annotations, read_annotations, read_wfdb
from clocs.formats.wfdb_header import parse_header
from clocs.recording import STANDARD_LEADS, Episode, FrameSpec, Recording, check_signal

RHYTHMS: Final = (
    *("N", "AB", "AFIB", "AFL", "B", "BII", "IVR", "NOD", "P", "PREX", "SBR", "SVTA", "T"),
    *("VFL", "VT"),
)
# The classes of ANSI/AAMI EC57, and the symbols of beats in each.
BEATS: Final = MappingProxyType({"N": "NLRBej", "S": "AaJSn", "V": "VEr", "F": "F", "Q": "/fQ?"})
_SEVEREST_FIRST = ("V", "F", "S", "Q", "N")
_LABEL_SETS = {"rhythm": RHYTHMS, "beats": tuple(BEATS)}

# Patients, and the split of De Chazal et al. 2004: DS1 to train on, of which some patients are for
# validation (ours), DS2 to test on; records with paced beats are in neither.
RECORDS: Final = MappingProxyType(
    {row["record"]: row for row in packaged_table("clocs.datasets", "mitbih.csv")}
)
_NAME = re.compile(r"[12]\d\d")
_PERSON = re.compile(r"(-?\d+)\s+([MF])\b\s*(.*)")


@dataclass(frozen=True, eq=False)
class MITBIH(PublishedDataset):
    """The database in a source.

    Attributes:
        source: Where the records are.
        label_set: 'rhythm': an episode from each change of rhythm to the next. 'beats': one per
            frame, with the most severe class of its beats (V, F, S, Q, then N).
    """

    label_set: str = base.option(
        "rhythm",
        "Labels of mitbih: rhythm, or beats (classes of AAMI)",
        choices=tuple(_LABEL_SETS),
    )

    name = "mitbih"
    frame = FrameSpec(2500 / 360, 2500)
    skip_flat = True
    keep_unlabeled = True

    @property
    def labels(self) -> tuple[str, ...]:
        return _LABEL_SETS[self.label_set]

    def list(self) -> Listing:
        headers = _headers(self.source)
        self.require(len(headers), "100.hea to 234.hea with .dat and .atr")
        entries = [
            Entry(name, RECORDS.get(name, {}).get("patient", name), path)
            for path in headers
            if (name := stem(path))
        ]
        return base.complete_listing(entries, fingerprint=self.source.fingerprint)

    def read(self, entry: Entry) -> Recording:
        recording = read_wfdb(self.source, entry.path)
        check_signal(recording, frame=self.frame, known_leads=STANDARD_LEADS)
        notes = read_annotations(self.source, entry.path, "atr")
        rhythm = self.label_set == "rhythm"
        header = parse_header(self.source.read(entry.path, MAX_HEADER_BYTES), name=entry.path)
        age, sex, facts = _person(header.comments)
        row = RECORDS.get(entry.id, {})
        extra = facts | {"de chazal": row.get("de_chazal", "")}
        return replace(
            recording,
            patient=entry.patient,
            episodes=notes.rhythms if rhythm else self._beats(notes, recording),
            age=age,
            sex=sex,
            extra=base.header_extra(recording) | {k: v for k, v in extra.items() if v},
            fold=row.get("fold"),
        )

    def _beats(self, notes: Annotations, recording: Recording) -> tuple[Episode, ...]:
        """One episode per frame with beats, of the most severe class among them."""
        step = round(self.frame.seconds * recording.rate)
        found: dict[int, set[str]] = {}
        for sample, symbol in notes.beats:
            for label, symbols in BEATS.items():
                if symbol in symbols:
                    found.setdefault(sample // step, set()).add(label)
        return tuple(
            Episode(
                frame * step,
                min((frame + 1) * step, recording.samples),
                next(label for label in _SEVEREST_FIRST if label in labels),
            )
            for frame, labels in sorted(found.items())
        )


def _person(comments: Sequence[str]) -> tuple[float | None, str | None, dict[str, str]]:
    """Age, sex, and further facts of '69 M 1085 1629 x1', 'Aldomet, Inderal' and what follows."""
    match = _PERSON.match(comments[0]) if comments else None
    if match is None:
        return None, None, {"notes": " ".join(comments)}
    facts = {"medication": comments[1] if len(comments) > 1 else "", "tape": match[3]}
    facts["notes"] = " ".join(comments[2:])
    return base.parse_age(match[1]), base.parse_sex(match[2]), facts


def _headers(source: Source) -> list[str]:
    """Headers of the records; the folder `x_mitdb` has others, of other lengths."""
    return [name for name in base.with_suffix(source, ".hea") if _NAME.fullmatch(stem(name))]


def _recognize(source: Source) -> bool:
    if not _headers(source):
        return False
    return any(len(one.signals) == 2 and one.rate == 360 for one in base.first_headers(source))


MIT_BIH = DatasetRow("mitbih", MITBIH, _recognize)

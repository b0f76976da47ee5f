"""Cardiology (Hannun et al. 2019): one lead, 200 Hz, 30 s, twelve rhythms labeled in time.

`.ecg` files with the committee's episodes in `_grp*.episodes.json`; the single readers' `_rev*`
are not used.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from dataclasses import dataclass

from clocs.datasets import base
from clocs.datasets.base import DatasetRow, Entry, Listing, PublishedDataset
from clocs.errors import UnusableError
from clocs.files import MAX_TABLE_BYTES
from clocs.formats import clinical
from clocs.formats.source import stem
from clocs.recording import UNNAMED_LEAD, Episode, FrameSpec, Recording, check_signal

MERGED = {"AVB_TYPE2": "AVB", "AFL": "AFIB"}
_COMMITTEE = re.compile(r"(.+)_grp\d*\.episodes\.json$")


@dataclass(frozen=True, eq=False)
class Cardiology(PublishedDataset):
    """The dataset in a source."""

    name = "cardiology"
    labels = (
        *("AFIB", "AVB", "BIGEMINY", "EAR", "IVR", "JUNCTIONAL", "NOISE", "NSR", "SVT"),
        *("TRIGEMINY", "VT", "WENCKEBACH"),
    )
    frame = FrameSpec(1.28, 2500)
    resample = "frame"
    batch_size = 16

    def list(self) -> Listing:
        signals = base.with_suffix(self.source, ".ecg")
        self.require(len(signals), "*.ecg with *_grp*.episodes.json")
        committee: defaultdict[str, list[str]] = defaultdict(list)
        for name in self.source.names:
            if match := _COMMITTEE.match(name):
                committee[match[1]].append(name)
        entries = [
            Entry(name, name.partition("_")[0], path, {"episodes": "\n".join(committee[path[:-4]])})
            for path in signals
            if (name := stem(path))
        ]
        held = {path[:-4] for path in signals}
        unmatched = sorted(name.rpartition("/")[2] for name in committee if name not in held)
        return dataclasses.replace(
            base.complete_listing(entries, fingerprint=self.source.fingerprint),
            rows_without_recording=tuple(unmatched),
        )

    def read(self, entry: Entry) -> Recording:
        tables = entry.info["episodes"].split("\n")
        if not tables[0]:
            detail = f"{entry.id} has no committee file {entry.id}_grp*.episodes.json"
            raise UnusableError("no label", detail)
        if len(tables) > 1:
            detail = f"{entry.id} has several committee files: {', '.join(tables)}"
            raise UnusableError("unknown label", detail)
        recording = clinical.read_ecg(self.source.read(entry.path), name=entry.id)
        table = self.source.read(tables[0], MAX_TABLE_BYTES)
        episodes = tuple(
            dataclasses.replace(episode, label=MERGED.get(episode.label, episode.label))
            for episode in clinical.read_episodes(table, name=tables[0])
        )
        last = max((episode.stop for episode in episodes), default=0)
        if last > recording.samples:
            detail = f"{entry.id} has {recording.samples} samples, its episodes end at {last}"
            raise UnusableError("truncated", detail)
        check_signal(recording, frame=self.frame, known_leads=(UNNAMED_LEAD,))
        self._check_labels(entry.id, recording, episodes)
        return dataclasses.replace(recording, patient=entry.patient, episodes=episodes)

    def _check_labels(self, name: str, recording: Recording, episodes: tuple[Episode, ...]) -> None:
        """Refuse a recording without a single frame that has one of the twelve labels."""
        step = round(self.frame.seconds * recording.rate)
        end = recording.samples - step + 1  # a frame starts before it
        found = {
            episode.label
            for episode in episodes
            if -(-episode.start // step) * step < min(episode.stop, end)
        }
        if not found:
            raise UnusableError("no label", f"no episode of {name} covers the start of a frame")
        if not found & set(self.labels):
            detail = f"the frames of {name} are all {', '.join(sorted(found))}"
            raise UnusableError("unknown label", detail)


CARDIOLOGY = DatasetRow(
    "cardiology", Cardiology, lambda source: any(map(_COMMITTEE.match, source.names))
)

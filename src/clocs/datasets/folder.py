"""Anybody's files: a tree of recordings in mixed formats, with or without a table of labels."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clocs.datasets import checks, listing
from clocs.datasets.base import DatasetRow, Entry, Listing
from clocs.datasets.folder_conclusions import conclude
from clocs.datasets.folder_files import Unit, find_files
from clocs.datasets.folder_labels import Codes, header_labels
from clocs.datasets.folder_options import OPTIONS, FolderOptions, save_options, saved_options
from clocs.datasets.folder_patients import PatientRule, is_somebody, patient_rule
from clocs.datasets.folder_stretches import (
    Stretch,
    capped,
    entry_of,
    episodes_within,
    hours_of,
    stretch_of,
)
from clocs.datasets.folder_tables import FolderTables, unread_files, without_row
from clocs.datasets.pseudonyms import Pseudonyms
from clocs.errors import SettingError, SourceError, UnusableError
from clocs.formats.base import ReadOptions
from clocs.formats.read import FORMATS, options_of
from clocs.formats.source import OPTIONS_FILE, Source, open_source, stem
from clocs.formats.wfdb import read_annotations
from clocs.recording import Episode, FrameSpec, Recording, canonical_lead
from clocs.registry import chosen_options

if TYPE_CHECKING:
    import polars as pl

_VERSION = "2"  # raise it whenever the same options give other recordings
# What headers say about signals and machines. Everything else is text that persons have written.
_TECHNICAL = {"notice", "units", "leads", "leads without values", "filters", "transducer"}
_TECHNICAL |= {"manufacturer", "model", "device", "recorder"}


@dataclass(frozen=True, eq=False)
class Folder:
    """Recordings in a source; see docs/own-ecgs.md.

    Attributes:
        source: The tree.
        options: What the user says about it.
        labels: Class names, once all is read.
        multilabel: Whether some recording has several.
        frame: Chosen once all is read, unless given.
        notices: What the user should know, once all is read.
        pseudonyms: Of patients whom only headers name.
    """

    source: Source
    options: FolderOptions = field(default_factory=FolderOptions)
    labels: tuple[str, ...] = ()
    multilabel: bool = False
    frame: FrameSpec = field(default_factory=lambda: FrameSpec(5.0))
    notices: tuple[str, ...] = ()
    pseudonyms: Pseudonyms = field(default_factory=Pseudonyms)

    resample: Literal["recording"] = "recording"
    batch_size: int = 256
    skip_flat: bool = True
    keep_unlabeled: bool = True

    @property
    def name(self) -> str:
        return self.options.dataset or "folder"

    @property
    def segment_frame(self) -> FrameSpec:
        return self.frame

    @property
    def settings(self) -> Mapping[str, str]:
        return self.options.as_text()

    @cached_property
    def _rule(self) -> PatientRule:
        return patient_rule(self.options.patient)

    @cached_property
    def _read_options(self) -> ReadOptions:
        own = self.options
        return options_of(rate=own.rate, unit=own.unit, lead_names=own.lead_names)

    def list(self) -> Listing:
        own, tables = self.options, FolderTables(self.source, self.options)
        caps = own.cap_minutes is not None or own.most_hours is not None
        files = find_files(
            self.source,
            besides={OPTIONS_FILE, *tables.inside},
            options=self._read_options,
            durations=caps,
        )
        if not files.units and not files.lost:
            raise SourceError(
                f"{self.source.path} holds no recordings; {listing.summary(self.source)} found, "
                "none of which is of a known format"
            )
        entries = [unit.entry for unit in files.units]
        of_paths = self._from_paths(entries)
        before = [self._patient(*one, "") for one in zip(files.units, of_paths, strict=True)]
        labeled = tables.match(entries, before, self._rule)
        notices = [*files.notices, *labeled.notices]
        notices += without_row(entries, labeled, tables)
        notices += unread_files(files.others, own)
        stretches: list[Stretch] = []
        seconds: dict[str, float | None] = {}
        nameless: list[str] = []
        for number, unit in enumerate(files.units):
            whole, row = unit.entry, labeled.info.get(number, {})
            patient = self._patient(unit, of_paths[number], row.get("patient", ""))
            if patient and not row.get("patient"):
                patient = self._header_patient(patient)
            named = {"patient": patient} if patient else {}
            entry = Entry(
                whole.id,
                "",
                whole.path,
                {**whole.info, **row, **named},
                labels=tuple(json.loads(row["labels"])) if "labels" in row else None,
                fold=row.get("fold"),
                patient_is_known=bool(patient),
            )
            if not patient and self._rule.required and not self._rule.from_header:
                nameless.append(entry.path)
            seconds[entry.id] = unit.seconds
            cut = unit.stretches or caps
            stretches += hours_of(entry, unit.seconds, patient or entry.id, cut=cut)
        notices += self._nameless(nameless, len(files.units))
        if caps:
            stretches = capped(stretches, cap_minutes=own.cap_minutes, most_hours=own.most_hours)
        made = listing.complete(
            (entry_of(one, seconds[one.entry.id]) for one in stretches),
            files.lost,
            fingerprint=listing.fingerprint(self.source, [_VERSION.encode(), *tables.contents]),
        )
        return replace(
            made,
            rows_without_recording=tuple(sorted(set(labeled.unmatched))),
            files=files.counts,
            notices=tuple(notices),
            patients_by_reading=self._rule.from_header
            and any(not entry.patient_is_known for entry in made.entries),
        )

    def _from_paths(self, entries: Sequence[Entry]) -> Sequence[str]:
        if self._rule.from_paths is None:
            return [""] * len(entries)
        return self._rule.from_paths([entry.path for entry in entries])

    def _patient(self, unit: Unit, in_path: str, in_table: str) -> str:
        """The patient, as far as is known before reading; '' otherwise."""
        rule = self._rule
        if rule.from_paths is not None:
            return in_path
        known = "" if self.options.patient == "header" else in_table
        if not known and rule.from_header and unit.patient and is_somebody(unit.patient):
            known = unit.patient
        return known

    @property
    def is_pseudonymous(self) -> bool:
        """Whether patients whom only headers name get pseudonyms."""
        return self.options.patient is None

    def _header_patient(self, said: str) -> str:
        """The ID of a patient whom the header alone names."""
        return self.pseudonyms(said) if self.is_pseudonymous else said

    def _nameless(self, paths: Sequence[str], total: int) -> Sequence[str]:
        if not paths:
            return []
        what = f"`patient` is {self.options.patient!r}, which names no patient for"
        if len(paths) == total:
            raise SettingError(f"{what} any file, such as {paths[0]}; give another rule")
        return [f"{what} {len(paths):,} files, such as {paths[0]}; each counts as a patient"]

    def read(self, entry: Entry) -> Recording:
        info = entry.info
        own = FORMATS[info["format"]]
        options = self._read_options
        start, stop = float(info.get("start", 0.0)), info.get("stop")
        if "part" in info:
            options = replace(options, part=info["part"])
        if stop is not None and own.reads_stretches:
            options = replace(options, start=start, stop=float(stop))
        recording = own.read(self.source, entry.path, options)
        if stop is not None and not own.reads_stretches:
            recording = stretch_of(recording, start, float(stop))
        if self.options.leads is not None:
            recording = _with_leads(recording, self.options.leads)
        checks.check_varies(recording)
        extra = self._kept(checks.header_extra(recording))
        if "of" in info:
            extra |= {"part_of": info["of"], "from_second": info["start"]}
        patient = self._patient_read(entry, recording)
        said = recording.patient
        return replace(
            recording,
            id=entry.id,
            patient=patient,
            named=said if patient != said and patient == self._header_patient(said) else None,
            labels=self._labels(entry, recording),
            episodes=self._episodes(entry, recording),
            age=checks.parse_age(info.get("age", recording.extra.get("Age")))
            if recording.age is None or "age" in info
            else recording.age,
            sex=info.get("sex") or recording.sex or checks.parse_sex(recording.extra.get("Sex")),
            taken=info.get("taken", recording.taken),
            fold=recording.fold if entry.fold is None else entry.fold,
            extra=extra,
        )

    def _patient_read(self, entry: Entry, recording: Recording) -> str:
        known = entry.info.get("patient")
        if known:
            return known
        said = recording.patient
        if self._rule.from_header and said != stem(entry.path) and is_somebody(said):
            return self._header_patient(said)
        return entry.info.get("of", entry.id)

    def _kept(self, extra: Mapping[str, str]) -> dict[str, str]:
        """What headers say, without the free text that nobody asked for."""
        asked = self.options.keep_text or ()
        return {
            key: text
            for key, text in extra.items()
            if key in _TECHNICAL or key in asked or "all" in asked
        }

    def _labels(self, entry: Entry, recording: Recording) -> tuple[str, ...]:
        if entry.labels is not None:
            return entry.labels
        if self.options.labels == "header":
            return header_labels(recording, self._codes)
        return recording.labels if self.options.labels is None else ()

    def _episodes(self, entry: Entry, recording: Recording) -> tuple[Episode, ...]:
        """Those of the annotations beside a record, or those that its reader has found."""
        wanted = self.options.labels or ""
        if wanted.partition(":")[0] != "annotations":
            return recording.episodes if self.options.labels is None else ()
        extension = wanted.partition(":")[2] or "atr"
        if f"{entry.path[: entry.path.rfind('.')]}.{extension}" not in self.source:
            return recording.episodes
        rhythms = read_annotations(self.source, entry.path, extension).rhythms
        first = round(float(entry.info.get("start", 0.0)) * recording.rate)
        return episodes_within(rhythms, first, first + recording.samples)

    @cached_property
    def _codes(self) -> Codes:
        return Codes(FolderTables(self.source, self.options).codes)

    def concluded(self, table: pl.DataFrame) -> Folder:
        """The same with the classes and the frame that the recordings suggest."""
        found = conclude(table, self.options, self.pseudonyms.folder)
        return replace(
            self,
            labels=found.labels,
            multilabel=found.multilabel,
            frame=found.frame,
            notices=found.notices,
        )


def _with_leads(recording: Recording, wanted: tuple[str, ...]) -> Recording:
    """Those of the wanted leads that it has."""
    names = [canonical_lead(lead) for lead in wanted]
    kept = [lead for lead in names if lead in recording.leads]
    if not kept:
        detail = f"{recording.id} has {', '.join(recording.leads)}; none of {', '.join(names)}"
        raise UnusableError("no known lead", detail)
    return recording.select(kept)


def _open(source: Source, **given: Any) -> Folder:
    options = FolderOptions(**given)
    if options.dataset is not None and not re.fullmatch(r"[\w.-]{1,64}", options.dataset):
        raise SettingError(
            f"`dataset` is {options.dataset!r}; give a name of letters, digits, '-', '_' and '.'"
        )
    made = Folder(source, options)
    patient_rule(options.patient)
    if options.lead_names:
        made = replace(made, options=replace(options, lead_names=dict(options.lead_names)))
    return made


def save_folder_options(source: Path | str, **given: Any) -> Path:
    """Write the options given, with those saved before, to `clocs.toml` beside the data; its path.

    Args:
        source: A folder or a zip.
        given: Options of `folder`.
    """
    opened = open_source(source)
    chosen = chosen_options(FOLDER, {**saved_options(opened), **given})
    return save_options(FolderOptions(**chosen), opened)


FOLDER = DatasetRow("folder", _open, options=OPTIONS, saved_options=saved_options)

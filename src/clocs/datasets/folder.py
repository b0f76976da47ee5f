"""Anybody's files: a tree of recordings in mixed formats, with or without a table of labels."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clocs.datasets import base
from clocs.datasets.base import Dataset, DatasetRow, Entry, Listing, Quarantined
from clocs.datasets.label_names import LABELS
from clocs.datasets.label_table import FolderOptions, FolderTables
from clocs.datasets.pseudonyms import PSEUDONYM, Pseudonyms
from clocs.datasets.table_files import TABLES, is_nothing, split_labels
from clocs.errors import ClocsError, SettingError, SourceError, UnusableError, first_of
from clocs.formats import read as formats
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.source import OPTIONS_FILE, Source, stem
from clocs.formats.wfdb import read_annotations
from clocs.recording import (
    STANDARD_LEADS,
    Episode,
    FrameSpec,
    Recording,
    canonical_lead,
    check_varies,
    stretches_between,
)

if TYPE_CHECKING:
    import polars as pl

NO_RECORDING = "not a recording"
BELONGS = "part of a recording"
HOUR = 3600.0
# No recording in fewer bytes is longer than an hour: one lead at 50 Hz has as many.
_SMALL = 180_000
_SHORTEST_PART = 2.0  # seconds: a median beat is no recording
_RULES = "header, folder, folder:N, file, column:NAME or pattern:REGEX"
# What people write where they write no patient.
_NOBODY = re.compile(r"(x|0+|anonym\w*|unknown|none|null|n/?a|patient|test|-|\?)?$", re.IGNORECASE)
_VERSION = "2"  # raise it whenever the same options give other recordings
# What headers say about signals and machines. Everything else is text that persons have written.
_TECHNICAL = {"notice", "units", "leads", "leads without values", "filters", "transducer"}
_TECHNICAL |= {"manufacturer", "model", "device", "recorder"}
_LABEL_FIELDS = ("dx", "statements", "diagnosis", "diagnoses", "rhythm", "reason for admission")
_NOT_READ = {"labels": "in the header, not read"}
_SAMPLES = 2500  # of a frame
_SECONDS = (5.0, 2.5, 1.0)  # of a frame: the longest of which nearly all recordings hold two
_NEARLY_ALL = 0.9
_MAX_NAMED = 8


def patients_in_paths(rule: str | None, paths: Sequence[str]) -> Sequence[str] | None:
    """The patients that paths name by the option `patient`, '' where one names none.

    None where not paths but headers or a table tell.

    Raises:
        SettingError: There is no such rule.
    """
    kind, colon, value = (rule or "header").partition(":")
    if rule in (None, "header") or (kind == "column" and value):
        return None
    if rule == "file":
        return [stem(path) for path in paths]
    if kind == "folder" and (not colon or re.fullmatch(r"-?[1-9]\d{0,5}", value)):
        number = int(value or -1)  # from the top, or from the file upwards where negative
        at = number - 1 if number > 0 else number
        folders = [path.split("/")[:-1] for path in paths]
        return [one[at] if -len(one) <= at < len(one) else "" for one in folders]
    if kind == "pattern" and value:
        return _matched(value, paths)
    raise SettingError(f"`patient` is {rule!r}; give {_RULES}")


def is_somebody(patient: str) -> bool:
    """Whether a header's patient is one, and not a word for nobody such as 'anonymous'."""
    return _NOBODY.match(patient.strip()) is None


def _matched(pattern: str, paths: Sequence[str]) -> Sequence[str]:
    """The one group of a regular expression, found anywhere in each path.

    The engine of polars takes linear time: no pattern runs for hours.
    """
    import polars as pl

    try:
        found = pl.Series(paths, dtype=pl.String).str.extract_groups(pattern)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        why = (str(error).strip().splitlines() or [""])[-1].removeprefix("error: ")
        raise SettingError(
            f"`patient` has the pattern {pattern!r:.200}, which is no regular expression "
            f"({why:.200}); look-around and backreferences cannot be used"
        ) from None
    groups = found.struct.fields
    if len(groups) != 1:
        raise SettingError(
            f"`patient` has the pattern {pattern!r:.200} with {len(groups)} groups; put "
            "parentheses around the patient, such as pattern:(P[0-9]+)_"
        )
    return found.struct.field(groups[0]).fill_null("").to_list()


class FoundRecording(NamedTuple):
    """One recording as a file holds it, before it is cut."""

    entry: Entry  # without a patient
    seconds: float | None  # None where only reading tells, or parts in time cannot be read alone
    patient: str | None  # where the file's table of contents names one


class FolderFiles(NamedTuple):
    """All recordings of a source."""

    recordings: list[FoundRecording]
    lost: list[Quarantined]
    counts: dict[str, int]  # files by format; others under `NO_RECORDING` and `BELONGS`
    notices: list[str]
    others: formats.Others


def find_files(source: Source, *, besides: Collection[str], options: ReadOptions) -> FolderFiles:
    """The recordings of a source, recognized by content, and what its other files are.

    Args:
        source: The tree.
        besides: Names that are tables or options.
        options: For reading.
    """
    found = {name: own for name, own in formats.recordings_in(source) if name not in besides}
    counts = Counter(own.name for own in found.values())
    others = formats.other_files(source, found, besides)
    counts[BELONGS] += others.belong
    counts[NO_RECORDING] += len(others.unused)
    lost: list[Quarantined] = []
    for name, own in others.headless:
        lost.append(Quarantined(stem(name), "unreadable", f"{name} has no header beside it"))
        counts[own.name] += 1
    ids = _ids(found)
    recordings: list[FoundRecording] = []
    left_out = 0
    apart = formats.parts_apart(
        [formats.Found(name, own, name, source) for name, own in found.items()], options
    )
    for name, own in found.items():
        known = apart.get(name)
        if isinstance(known, UnusableError) and known.reason == "exceeds limits":
            lost.append(Quarantined(ids[name], known.reason, known.detail))
            continue
        if known is None and (own.may_hold_several or _size(source, name, own) >= _SMALL):
            # small files that hold one recording are not looked into
            try:
                known = own.parts(source, name, options)
            except UnusableError:  # reading it tells why
                known = None
        parts = (Part(),) if isinstance(known, ClocsError) else known or (Part(),)
        kept = [one for one in parts if one.seconds is None or one.seconds >= _SHORTEST_PART]
        left_out += len(parts) - len(kept or parts)
        for part in kept or parts:
            info = {"format": own.name} | ({"part": part.name} if part.name else {})
            several = part.name and len(kept or parts) > 1
            entry = Entry(f"{ids[name]}#{part.name}" if several else ids[name], "", name, info)
            seconds = part.seconds if own.reads_stretches else None
            recordings.append(FoundRecording(entry, seconds, part.patient))
    notices = []
    if left_out:
        notices.append(
            f"{left_out:,} parts of files are shorter than {_SHORTEST_PART:g} s, such as median "
            "beats, and are left out"
        )
    return FolderFiles(recordings, lost, dict(counts), notices, others)


def _size(source: Source, name: str, own: FileFormat) -> float:
    """Bytes of a file and its companions; infinite where those have other names."""
    base = name[: -len(own.suffix)]
    beside = [base + suffix for suffix in own.companions if base + suffix in source]
    if own.companions and not beside:
        return float("inf")
    return sum(source.size(one) for one in (name, *beside))


def _ids(names: Iterable[str]) -> dict[str, str]:
    """IDs by path: file names where they are unique, else as much of the path as is needed."""
    ids: dict[str, str] = {}
    left = list(names)
    for shorten in (stem, lambda path: path[: path.rfind("/") + 1] + stem(path), str):
        counts = Counter(map(shorten, left))
        taken = set(ids.values())
        ids |= {
            name: shorten(name)
            for name in left
            if counts[shorten(name)] == 1 and shorten(name) not in taken
        }
        left = [name for name in left if name not in ids]
    return ids


def hours_of(entry: Entry, seconds: float | None) -> Iterator[Entry]:
    """The hours of a long recording, or the recording where it is short or only reading tells."""
    if seconds is None or seconds <= HOUR:
        yield entry
        return
    for number in range(math.ceil(seconds / HOUR)):
        start, stop = number * HOUR, min((number + 1) * HOUR, seconds)
        info = {**entry.info, "start": repr(start), "stop": repr(stop), "of": entry.id}
        clock = f"{start // 3600:02.0f}:{start // 60 % 60:02.0f}:{start % 60:02.0f}"
        yield replace(entry, id=f"{entry.id}@{clock}", info=info)


@dataclass(frozen=True, eq=False)
class Folder(Dataset):
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

    skip_flat = True
    keep_unlabeled = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.options.dataset or "folder"

    @property
    def settings(self) -> Mapping[str, str]:
        return self.options.as_text()

    @property
    def _from_header(self) -> bool:
        """Whether headers may name patients."""
        return self.options.patient in (None, "header")

    @cached_property
    def _read_options(self) -> ReadOptions:
        own = self.options
        return ReadOptions(rate=own.rate, unit=own.unit, lead_names=own.lead_names or {})

    def list(self) -> Listing:
        tables = FolderTables(self.source, self.options)
        besides = {OPTIONS_FILE, *tables.inside}
        files = find_files(self.source, besides=besides, options=self._read_options)
        if not files.recordings and not files.lost:
            raise SourceError(
                f"{self.source.path} holds no recordings of a known format "
                f"({base.count_files(self.source)} found); give the folder of the ECG files"
            )
        entries = [one.entry for one in files.recordings]
        paths = [entry.path for entry in entries]
        in_paths = patients_in_paths(self.options.patient, paths)
        patients = in_paths or [self._patient(found, "") for found in files.recordings]
        labeled = tables.match(entries, patients)
        hours: list[Entry] = []
        nameless: list[str] = []
        for number, found in enumerate(files.recordings):
            whole, row = found.entry, labeled.info.get(number, {})
            patient = in_paths[number] if in_paths else self._patient(found, row.get("patient", ""))
            if patient and not row.get("patient"):
                patient = self._header_patient(patient)
            entry = Entry(
                whole.id,
                patient or whole.id,
                whole.path,
                {**whole.info, **row, **({"patient": patient} if patient else {})},
                labels=tuple(json.loads(row["labels"])) if "labels" in row else None,
                fold=row.get("fold"),
                patient_is_known=bool(patient) or not self._from_header,
            )
            if not patient and not self._from_header:
                nameless.append(entry.path)
            hours += hours_of(entry, found.seconds)
        fingerprint = base.fingerprint_of(self.source, [_VERSION.encode(), *tables.contents])
        made = base.complete_listing(hours, files.lost, fingerprint=fingerprint)
        notices = [*files.notices, *labeled.notices]
        if tables.name:
            missing = [one.id for number, one in enumerate(entries) if number not in labeled.info]
            notices += _without_row(missing, tables.name)
        notices += [*self._unread(files.others), *self._nameless(nameless, len(entries))]
        return replace(
            made,
            rows_without_recording=tuple(sorted(set(labeled.unmatched))),
            files=files.counts,
            notices=tuple(notices),
        )

    def _unread(self, others: formats.Others) -> Sequence[str]:
        """A sentence on files that are neither recordings nor among the options' tables, if any."""
        notices = []
        if OPTIONS_FILE in self.source:
            notices.append(f"{OPTIONS_FILE} is not read; give its options with the command")
        if sentence := others.sentence():
            tables = any(name.lower().endswith(TABLES) for name in others.unused)
            hint = "; if one is a table of labels, give it as `labels`"
            notices.append(sentence + (hint if tables and self.options.labels is None else ""))
        return notices

    def _patient(self, found: FoundRecording, in_table: str) -> str:
        """The patient that the table or the header names, before reading; '' where neither does."""
        if in_table and self.options.patient != "header":
            return in_table
        in_header = found.patient or ""
        return in_header if self._from_header and is_somebody(in_header) else ""

    @property
    def is_pseudonymous(self) -> bool:
        """Whether patients whom only headers name get pseudonyms."""
        return self.options.patient is None

    def _header_patient(self, name: str) -> str:
        """The ID of a patient whom the header alone names."""
        return self.pseudonyms(name) if self.is_pseudonymous else name

    def _nameless(self, paths: Sequence[str], total: int) -> Sequence[str]:
        if not paths:
            return []
        what = f"`patient` is {self.options.patient!r}, which names no patient for"
        if len(paths) == total:
            raise SettingError(f"{what} any file, such as {paths[0]}; give another rule")
        return [f"{what} {len(paths):,} files, such as {paths[0]}; each counts as a patient"]

    def read(self, entry: Entry) -> Recording:
        info = entry.info
        own = formats.FORMATS[info["format"]]
        options = self._read_options
        if "part" in info:
            options = replace(options, part=info["part"])
        if "stop" in info:
            options = replace(options, start=float(info["start"]), stop=float(info["stop"]))
        recording = own.read(self.source, entry.path, options)
        if self.options.leads is not None:
            recording = _with_leads(recording, self.options.leads)
        check_varies(recording)
        extra = self._kept(base.header_extra(recording))
        if "of" in info:
            extra |= {"part_of": info["of"], "from_second": info["start"]}
        if self.options.labels is None and _header_labels(recording, {}):
            extra |= _NOT_READ
        patient = self._patient_read(entry, recording)
        name = recording.patient
        return replace(
            recording,
            id=entry.id,
            patient=patient,
            named=name if patient != name and patient == self._header_patient(name) else None,
            labels=self._labels(entry, recording),
            episodes=self._episodes(entry, recording),
            age=base.parse_age(info.get("age", recording.extra.get("Age")))
            if recording.age is None or "age" in info
            else recording.age,
            sex=info.get("sex") or recording.sex or base.parse_sex(recording.extra.get("Sex")),
            recorded_at=info.get("recorded_at", recording.recorded_at),
            fold=recording.fold if entry.fold is None else entry.fold,
            extra=extra,
        )

    def _patient_read(self, entry: Entry, recording: Recording) -> str:
        if known := entry.info.get("patient"):
            return known
        name = recording.patient
        if self._from_header and name != stem(entry.path) and is_somebody(name):
            return self._header_patient(name)
        return entry.info.get("of", entry.id)

    def _kept(self, extra: Mapping[str, str]) -> dict[str, str]:
        """What headers say, without the free text that nobody asked for."""
        asked = self.options.keep_text or ()
        kept = extra.keys() if "all" in asked else {*_TECHNICAL, *asked}
        return {key: text for key, text in extra.items() if key in kept}

    def _labels(self, entry: Entry, recording: Recording) -> tuple[str, ...]:
        if entry.labels is not None:
            return entry.labels
        if self.options.labels == "header":
            return _header_labels(recording, self._codes)
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
        return stretches_between(rhythms, first, first + recording.samples)

    @cached_property
    def _codes(self) -> Mapping[str, str]:
        """Names of codes: those of the user first, then SNOMED's of the PhysioNet challenges."""
        return {**LABELS, **(FolderTables(self.source, self.options).codes or {})}

    def with_inferred_schema(self, table: pl.DataFrame) -> Folder:
        """The same with classes by frequency, a frame that fits the durations, and notices."""
        counts: Counter[str] = Counter()
        classes, multilabel = self.options.classes, False
        for own, episodes in table.select("labels", "episodes").iter_rows():
            counts.update({*own, *(one["label"] for one in episodes)})
            used = [one for one in own if classes is None or one in classes]
            multilabel = multilabel or len(used) > 1
        labels = classes or tuple(sorted(counts, key=lambda one: (-counts[one], one)))
        frame, notices = _frame(table, self.options)
        if unused := [one for one in labels if one not in counts]:
            named = first_of(unused, _MAX_NAMED)
            notices.append(f"no recording has the label {named} of `classes`")
        if unread := int(table["extra"].str.contains(_NOT_READ["labels"], literal=True).sum()):
            notices.append(
                f'labels of {unread:,} of the headers are not read; `labels="header"` reads them'
            )
        notices += _patients(table, self.options, self.pseudonyms.folder)
        notices += _leads(table) + _notes_of_readers(table)
        return replace(
            self, labels=labels, multilabel=multilabel, frame=frame, notices=tuple(notices)
        )


def _without_row(missing: Sequence[str], table: str) -> list[str]:
    """A sentence on recordings that the table does not name, where there are some."""
    if not missing:
        return []
    count = len(missing)
    have, are = ("recording has", "is") if count == 1 else ("recordings have", "are")
    named = f"{', '.join(missing[:3])}{' …' if count > 3 else ''}"
    return [f"{count:,} {have} no row in {table} and {are} unlabeled: {named}"]


def _header_labels(recording: Recording, codes: Mapping[str, str]) -> tuple[str, ...]:
    """The labels that a recording's own file gives; codes by their names, others unchanged."""
    fields = {key.lower(): text for key, text in recording.extra.items()}
    text = next((fields[key] for key in _LABEL_FIELDS if not is_nothing(fields.get(key, ""))), "")
    found = (codes.get(one, one) for one in split_labels(text.replace(", ", ",")))
    return tuple(dict.fromkeys(one for one in found if one))


def _with_leads(recording: Recording, wanted: tuple[str, ...]) -> Recording:
    """Those of the wanted leads that it has."""
    names = [canonical_lead(lead) for lead in wanted]
    kept = [lead for lead in names if lead in recording.leads]
    if not kept:
        detail = f"{recording.id} has {', '.join(recording.leads)}; none of {', '.join(names)}"
        raise UnusableError("no known lead", detail)
    return recording.select(kept)


def _frame(table: pl.DataFrame, options: FolderOptions) -> tuple[FrameSpec, list[str]]:
    if options.frame_seconds is not None:
        return FrameSpec(options.frame_seconds, _SAMPLES), []
    seconds = table["samples"] / table["rate"]
    fits = [one for one in _SECONDS if (seconds >= 2 * one).sum() >= _NEARLY_ALL * len(seconds)]
    chosen = fits[0] if fits else _SECONDS[-1]
    short = int((seconds < chosen).sum())
    typical = float(np.median(seconds.to_numpy()))
    notice = (
        f"frames are {chosen:g} s as {_SAMPLES:,} samples, because the median recording has "
        f"{typical:,.4g} s; `frame_seconds` changes it"
    )
    if short:
        notice += f"; {short:,} recordings are shorter and have no frame"
    return FrameSpec(chosen, _SAMPLES), [notice]


def _patients(table: pl.DataFrame, options: FolderOptions, whose: Path | None) -> list[str]:
    """Sentences on how patients are told apart; `whose` says whose pseudonyms there are."""
    if options.patient == "header":
        return [
            "`patient` is 'header': what the files' patient fields hold, which may be names, birth "
            "dates and numbers, is kept unchanged, in the store and in tables made from it"
        ]
    if options.patient is not None:
        return []
    patients, files = table["patient"], table["id"].str.replace(r"@\d+:\d\d:\d\d$", "")
    notices = []
    if named := patients.filter(patients.str.contains(PSEUDONYM)).n_unique():
        notices.append(
            f"the headers of files name {named:,} patients, who have pseudonyms in the store; "
            f"{whose or 'a folder beside the store'} says whose they are, for you alone, and "
            '`patient="header"` keeps what the headers say'
        )
    if alone := int((patients == files).sum()):
        notices.append(
            f"patient IDs are missing in {alone:,} of the recordings, so each file counts as one "
            "patient; if patients may have several recordings, say with `patient` whose they are, "
            "or the same person may be both trained and tested on"
        )
    return notices


def _leads(table: pl.DataFrame) -> list[str]:
    counts = Counter(lead for leads in table["leads"].to_list() for lead in leads)
    unknown = [lead for lead in counts if lead not in STANDARD_LEADS]
    if not unknown:
        return []
    named = first_of([f"{one} ({counts[one]:,})" for one in unknown], _MAX_NAMED)
    return [
        f"leads with unknown names keep them: {named}; `lead_names` maps them, such "
        f'as `lead_names="{unknown[0]}=II"`'
    ]


def _notes_of_readers(table: pl.DataFrame) -> list[str]:
    """What readers guessed, each sentence once."""
    notes: Counter[str] = Counter()
    for text in table["extra"]:
        if '"notice"' in text:
            notes[str(json.loads(text).get("notice", ""))] += 1
    del notes[""]
    most = notes.most_common(_MAX_NAMED)
    shown = [f"{text} ({count:,} recordings)" if count > 1 else text for text, count in most]
    more = notes.total() - sum(count for _, count in most)
    return [*shown, f"readers had to guess in {more:,} more recordings"] if more else shown


def _open(source: Source, **given: Any) -> Folder:
    options = FolderOptions(**given)
    if options.dataset is not None and not re.fullmatch(r"[\w.-]{1,64}", options.dataset):
        raise SettingError(
            f"`dataset` is {options.dataset!r}; give a name of letters, digits, '-', '_' and '.'"
        )
    patients_in_paths(options.patient, [""])  # refused before files are listed
    return Folder(source, options)


FOLDER = DatasetRow("folder", _open, options_in=FolderOptions)

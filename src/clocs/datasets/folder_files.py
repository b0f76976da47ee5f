"""The recordings of a folder before they are read: options, patients, files and their hours."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from clocs.datasets.base import Entry, Quarantined, option
from clocs.errors import ClocsError, SettingError, UnusableError
from clocs.formats.addresses import last_name
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.read import Found, Others, other_files, parts_apart, recordings_in
from clocs.formats.source import Source, stem

NO_RECORDING = "not a recording"
BELONGS = "part of a recording"
HOUR = 3600.0
# No recording in fewer bytes is longer than an hour: one lead at 50 Hz has as many.
_SMALL = 180_000
_SHORTEST_PART = 2.0  # seconds: a median beat is no recording
_RULES = "header, folder, folder:N, file, column:NAME or pattern:REGEX"
# What people write where they write no patient.
_NOBODY = re.compile(r"(x|0+|anonym\w*|unknown|none|null|n/?a|patient|test|-|\?)?$", re.IGNORECASE)


@dataclass(frozen=True)
class FolderOptions:
    """What the user says about a folder; None where nothing."""

    patient: str | None = option(
        None,
        "Where the patient is named: header (names and numbers are kept), folder, folder:N, file, "
        "column:NAME of the table or pattern:REGEX on the path; by default the table, else "
        "pseudonyms of what files say, else each file is one",
        kind=str,
    )
    labels: str | None = option(
        None,
        "Table of labels (CSV, TSV, Parquet, XLSX), or header, annotations or none, the default",
        kind=str,
    )
    id_column: str | None = option(
        None, "Column of the table that names the files; found if left out", kind=str
    )
    label_columns: tuple[str, ...] | None = option(
        None,
        "Columns of the table that hold labels, thresholds such as 'LVEF<40', or 'none'",
        kind=tuple,
    )
    codes: str | None = option(None, "Second table with names for the labels' codes", kind=str)
    code_names: str | None = option(
        None, "Column of the names in that table; the second by default", kind=str
    )
    classes: tuple[str, ...] | None = option(
        None, "Labels to use, in this order; the most frequent first if left out", kind=tuple
    )
    columns: Mapping[str, str] | None = option(
        None, "Other columns of the table, such as age=AGE_AT_ECG,fold=strat_fold", kind=dict
    )
    lead_names: Mapping[str, str] | None = option(
        None, "Leads by unusual names, such as ECG1=II,ch2=V5", kind=dict
    )
    leads: tuple[str, ...] | None = option(
        None, "Leads to keep where present, such as I,II,V5; all by default", kind=tuple
    )
    rate: float | None = option(
        None, "Sampling rate in Hz of files that do not say", kind=float, minimum=50, maximum=10_000
    )
    unit: str | None = option(None, "Unit of files that do not say, such as mV", kind=str)
    frame_seconds: float | None = option(
        None, "Seconds of a frame; chosen from the data by default", kind=float, above=0
    )
    dataset: str | None = option(
        None, "Name of the dataset in the store; 'folder' by default", kind=str
    )
    keep_text: tuple[str, ...] | None = option(
        None,
        "Free text of headers to keep in the store, such as institution,statements, or all; none "
        "by default",
        kind=tuple,
    )

    def as_text(self) -> dict[str, str]:
        """Those that were given, as the command line takes them; tables without their folder."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        texts = {name: _as_text(value) for name, value in values.items() if value is not None}
        return texts | {
            name: last_name(texts[name]) for name in ("labels", "codes") if name in texts
        }


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={text}" for key, text in value.items())
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


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
    others: Others


def find_files(source: Source, *, besides: Collection[str], options: ReadOptions) -> FolderFiles:
    """The recordings of a source, recognized by content, and what its other files are.

    Args:
        source: The tree.
        besides: Names that are tables or options.
        options: For reading.
    """
    found = {name: own for name, own in recordings_in(source) if name not in besides}
    counts = Counter(own.name for own in found.values())
    others = other_files(source, found, besides)
    counts[BELONGS] += others.belong
    counts[NO_RECORDING] += len(others.unused)
    lost: list[Quarantined] = []
    for name, own in others.headless:
        lost.append(Quarantined(stem(name), "unreadable", f"{name} has no header beside it"))
        counts[own.name] += 1
    ids = _ids(found)
    recordings: list[FoundRecording] = []
    left_out = 0
    apart = parts_apart([Found(name, own, name, source) for name, own in found.items()], options)
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

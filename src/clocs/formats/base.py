"""What a file format is, and how its reader turns numbers into a `Recording`."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError, UnusableError, first_of
from clocs.formats.source import Source, stem
from clocs.recording import (
    LEAD_WORD,
    PLAUSIBLE_HZ,
    STANDARD_LEADS,
    UNITS_PER_MV,
    Episode,
    Gap,
    Recording,
    canonical_lead,
    check_plausible,
    find_gaps,
    is_modified_lead,
    quantize_with_gaps,
)

SEXES = {"m": "male", "male": "male", "f": "female", "female": "female"}
HEAD_BYTES = 4096  # of a file, from which its format is recognized
WITHOUT_VALUES = "leads without values"  # in `Recording.extra`, where such leads are left out
_FAR = 2**30  # ADC counts: no converter has as many
_COUNTED = re.compile(rf"(?:ecg|ekg)?[\s_.:-]*{LEAD_WORD}[\s_.:-]*(\d+)", re.IGNORECASE).fullmatch
_CHEST = re.compile(r"c[\s_]?([1-6])$", re.IGNORECASE)
_OTHER_KINDS = re.compile(r"(?:EEG|EOG|EMG|ERG|MEG|ECoG|EP)\b", re.IGNORECASE)  # as EDF+ names them
_ECG = re.compile(r"ecg|ekg", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the user says about files that are to be read.

    Attributes:
        leads: Keep these, in this order; all where None.
        rate: In Hz, for formats that do not give it.
        unit: Of the samples ('mV', 'µV' …), for formats that do not give it.
        lead_names: Leads by the names that files give them, where those are unusual.
        part: Which of the recordings of a file that holds several (`FileFormat.parts`).
        start: Where to begin, in seconds from the start of the recording.
        stop: Where to end, in seconds; at the end of the recording where None.
    """

    leads: tuple[str, ...] | None = None
    rate: float | None = None
    unit: str | None = None
    lead_names: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    start: float = 0.0
    stop: float | None = None

    def __post_init__(self) -> None:
        low, high = PLAUSIBLE_HZ
        if self.rate is not None and not low <= self.rate <= high:
            expected = f"samples per second, {low:g} to {high:,.0f} Hz, such as 500"
            raise SettingError(f"`rate` is {self.rate}; give {expected}")


@dataclass(frozen=True, slots=True)
class Part:
    """One recording of a file, as far as is known without reading its samples.

    Attributes:
        name: Of the recording in its file; '' for the only one.
        seconds: Its duration; None where only reading it tells.
        patient: Where the file names the patient.
    """

    name: str = ""
    seconds: float | None = None
    patient: str | None = None


def _one_part(source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
    return (Part(),)


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of recordings.

    Attributes:
        name: As in messages.
        suffix: Of the file that represents a recording; lower case.
        read: Reads a recording of a file in a source, by the file's name there.
        companions: Suffixes of files that belong to such a file and are no recordings alone.
        files_beside: From the file's bytes and name, the names of the files it needs beside it;
            None where only the whole folder will do.
        other_suffixes: Further ones of files that represent a recording.
        recognize: Whether a file that begins with these bytes (at most `HEAD_BYTES`) is of this
            format; None where its name alone tells.
        generic: Whether the suffix tells little, as `.csv` does, so that a file is of this format
            only where `recognize` says so too.
        parts: Lists the recordings of a file without reading their samples.
        single: Whether a file always holds one recording, whatever `parts` says about it.
        segments: Lists files in the source that are parts of the recording of this one, from its
            name and its first bytes: they would be recordings by themselves.
        reads_stretches: Whether `read` decodes only what lies between `start` and `stop` of its
            options, so that recordings of days are read in bounded memory.
        may_crash: Whether its library can end the process on a damaged file, so that `parts` is
            called in another one.
    """

    name: str
    suffix: str
    read: Callable[[Source, str, ReadOptions], Recording]
    companions: tuple[str, ...] = ()
    files_beside: Callable[[bytes, str], set[str] | None] | None = None
    other_suffixes: tuple[str, ...] = ()
    recognize: Callable[[bytes], bool] | None = None
    generic: bool = False
    parts: Callable[[Source, str, ReadOptions], Sequence[Part]] = _one_part
    single: bool = False
    segments: Callable[[Source, str, bytes], set[str]] | None = None
    reads_stretches: bool = False
    may_crash: bool = False

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of files that represent a recording."""
        return (self.suffix, *self.other_suffixes)

    @property
    def may_hold_several(self) -> bool:
        """Whether a file can hold more than one recording."""
        return not self.single and self.parts is not _one_part

    def parts_of(self, source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
        """The recordings of a file, looking into it only where there may be several."""
        return self.parts(source, path, options) if self.may_hold_several else (Part(),)


@dataclass(slots=True)  # made once per recording: frozen, it takes four times as long
class FileMetadata:
    """What a file says about a recording besides its samples; None where it does not.

    Attributes:
        unit: Of the samples.
        notices: What the reader assumed or left out, one sentence each, added on the way.
    """

    leads: Sequence[str] | None = None
    rate: float | None = None
    unit: str | None = None
    patient: str | None = None
    age: float | None = None
    sex: str | None = None
    recorded_at: str | None = None
    labels: tuple[str, ...] = ()
    episodes: tuple[Episode, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def unreadable(detail: str) -> UnusableError:
    """The error of a file whose content makes no sense."""
    return UnusableError("unreadable", detail)


def truncated(detail: str) -> UnusableError:
    """The error of a file that holds less than it promises."""
    return UnusableError("truncated", detail)


@contextmanager
def decoding(name: str, what: str) -> Iterator[None]:
    """Turn whatever a library raises on a damaged file into one sentence; hide its warnings.

    Args:
        name: Of the file.
        what: Its format.

    Raises:
        UnusableError: unreadable.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (ClocsError, ImportError, NameError, MemoryError):
        raise  # a broken installation or too little memory, not a broken recording
    except BaseException as error:
        kind = type(error).__name__
        if not isinstance(error, Exception) and kind != "PanicException":  # which polars raises
            raise
        text = " ".join(str(error).split())[:200] or kind
        raise unreadable(f"{name} cannot be read as {what}: {text}") from None


def units_per_mv(unit: str) -> float:
    """How many of a voltage make one mV.

    Raises:
        SettingError: There is no such voltage.
    """
    per_mv = UNITS_PER_MV.get(unit.strip().lower())
    if per_mv is None:
        raise SettingError(f"`unit` is {unit!r}; give mV, µV (or uV), nV or V")
    return per_mv


def stretch(options: ReadOptions, *, rate: float, samples: int, name: str) -> slice:
    """The samples between `start` and `stop` of the options.

    Raises:
        UnusableError: truncated, where there are none.
    """
    first = round(options.start * rate) if options.start > 0 else 0
    last = samples if options.stop is None else min(round(options.stop * rate), samples)
    if last <= first:
        raise truncated(f"{name} has {samples:,} samples and none after {options.start:g} s")
    return slice(first, last)


def age_on(day: date | None, born: date | None) -> float | None:
    """Whole years, of which more would tell the day of birth; None where they cannot be."""
    years = (day - born).days / 365.25 if day and born else -1.0
    return float(int(years)) if 0 <= years < 130 else None


def near_whole(zero: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whole numbers where only rounding keeps them from it."""
    near = np.rint(zero)
    return np.where(np.abs(zero - near) < 1e-6, near, zero)


def make_recording(
    values: NDArray[Any],
    meta: FileMetadata,
    *,
    per_mv: NDArray[np.float64] | float,
    zero: NDArray[Any] | float = 0.0,
    missing: NDArray[np.bool_] | None = None,
    name: str,
    recording_id: str = "",
    select: Sequence[str] | None = None,
) -> Recording:
    """A plausible recording of these samples.

    Integers stay unchanged where 16 bits hold them; else, as floats, they become the finest
    16-bit counts that do. Leads without a single value are left out, which `extra` says.

    Args:
        values: (leads, samples): ADC counts, or floats, NaN where there is no value.
        meta: With the final names of leads, and the rate.
        per_mv: (leads,) ADC counts per mV; of floats, how many of their unit make one mV.
        zero: (leads,) the ADC count of 0 mV.
        missing: (leads, samples) where there is no value; None where there is one everywhere.
        name: Of the recording, for messages.
        recording_id: Where it is not `name`; the patient too, where the file names none.
        select: Keep these leads alone.

    Raises:
        UnusableError: nan, where there is no value at all; implausible.
    """
    leads, own_id = tuple(meta.leads or ()), recording_id or name
    gaps: tuple[Gap, ...] = ()
    if values.dtype.kind != "f":
        gain = per_mv if isinstance(per_mv, np.ndarray) else np.full(len(leads), float(per_mv))
        zeros = zero if isinstance(zero, np.ndarray) else np.full(len(leads), float(zero))
        missing = missing if missing is not None and missing.any() else None
        shift = _shift(values, zeros, missing)
        if shift is None:
            values, per_mv = (values - zeros[:, None]) / gain[:, None], 1.0
            if missing is not None:
                values[missing] = np.nan
        else:
            baseline, digital = zeros.astype(np.int32), values
            if any(shift):
                baseline -= np.array(shift, np.int32)
                digital = values.astype(np.int64) - np.array(shift)[:, None]
            if missing is not None:
                kept, gaps = find_gaps(missing, leads, name=name)
                digital = np.where(missing, baseline.clip(-32768, 32767)[:, None], digital)[kept]
                leads, gain, baseline = tuple(leads[i] for i in kept), gain[kept], baseline[kept]
            digital = np.ascontiguousarray(digital, np.int16)
    if values.dtype.kind == "f":
        made = quantize_with_gaps(values, leads, name=name, per_mv=float(per_mv))
        leads, digital, gain, gaps = made
        baseline = np.zeros(len(leads), np.int32)
    extra = {**meta.extra, "notice": "; ".join(meta.notices)} if meta.notices else dict(meta.extra)
    if len(leads) < len(meta.leads or ()):
        extra[WITHOUT_VALUES] = ", ".join(one for one in meta.leads or () if one not in leads)
    recording = Recording(
        id=own_id,
        patient=meta.patient or own_id,
        leads=leads,
        rate=meta.rate or 0.0,
        digital=digital,
        gain=gain,
        baseline=baseline,
        unit=meta.unit or "mV",
        labels=meta.labels,
        episodes=meta.episodes,
        age=meta.age,
        sex=meta.sex,
        recorded_at=meta.recorded_at,
        extra=extra,
        gaps=gaps,
    )
    recording = recording if select is None else recording.select(select)
    check_plausible(recording)
    return recording


def _shift(
    counts: NDArray[np.integer], zeros: NDArray[Any], missing: NDArray[np.bool_] | None
) -> list[int] | None:
    """By how much each lead is moved to fit into 16 bits; None where that is impossible."""
    sure = counts.dtype == np.int16 and zeros.dtype == np.int32
    if not sure and not ((np.rint(zeros) == zeros) & (np.abs(zeros) < _FAR)).all():
        return None
    if counts.dtype == np.int16:
        return []
    ends = np.iinfo(counts.dtype)
    present: NDArray[np.bool_] | bool = True if missing is None else ~missing
    low = counts.min(axis=1, where=present, initial=ends.max).tolist()
    high = counts.max(axis=1, where=present, initial=ends.min).tolist()
    shift = [  # unsigned 16 bits, for example, are moved by 32768
        0 if a >= -32768 and b <= 32767 else (a + b + 1) // 2
        for a, b in zip(low, high, strict=True)
    ]
    if any(b - a > 65535 for a, b in zip(low, high, strict=True)) or max(map(abs, shift)) >= _FAR:
        return None
    return shift


def standard_names(names: Sequence[str], options: ReadOptions, *, name: str) -> tuple[str, ...]:
    """Leads by the names in a file, each of which must have one; see `name_leads`.

    Raises:
        UnusableError: unreadable, where two are the same lead or one has no name.
    """
    if not all(text.strip() and text.isprintable() for text in names):
        raise unreadable(f"{name} does not name each lead: {', '.join(map(repr, names)):.100}")
    return name_leads(names, options.lead_names, name=name)[0]


def name_leads(
    names: Sequence[str], mapped: Mapping[str, str], *, name: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    """One name per lead, and what `Recording.extra` should say about them.

    What the user says comes first, then `canonical_lead`, then the company of a name: 'Lead 1' is I
    unless the leads are counted further than 3, and 'C1' is V1 beside limb leads, unless C3 and C4
    alone are named, as EEGs name them. Modified leads of ambulatory recorders
    ('MLII') take the names of limb leads, which is noted, unless the file has those too. Leads
    without a name are called 'signal 0', further ones of an unknown name 'ECG 2'.

    Args:
        names: As the file has them.
        mapped: `ReadOptions.lead_names`; its keys are compared without case, too.
        name: Of the file, for messages.

    Raises:
        UnusableError: unreadable, where two are the same standard lead.
    """
    folded = {key.strip().lower(): canonical_lead(lead) for key, lead in mapped.items()}
    given = [text.strip() for text in names]
    leads = [folded.get(text.lower()) or canonical_lead(text) for text in given]
    for i, lead in _by_company(tuple(given), tuple(leads)).items():
        if given[i].lower() not in folded and lead not in leads:
            leads[i] = lead
    noted: dict[str, str] = {}
    for i, text in enumerate(given):
        if is_modified_lead(text) and text.lower() not in folded:
            if leads.count(leads[i]) > 1:
                leads[i] = text
            else:
                noted[leads[i]] = text
    used: set[str] = set()
    for i, lead in enumerate(leads):
        if lead in used and lead in STANDARD_LEADS:
            same = ", ".join(repr(given[k]) for k, one in enumerate(leads) if one == lead)
            raise unreadable(f"{name} has several leads of one name: {same}")
        plain = unique = lead or f"signal {i}"
        for number in range(2, len(leads) + 2):
            if unique not in used:
                break
            unique = f"{plain} {number}"
        leads[i] = unique
        used.add(unique)
    note = ", ".join(f"{lead} is {text}" for lead, text in noted.items())
    return tuple(leads), {"leads": note} if note else {}


@lru_cache(maxsize=256)  # most recordings of a dataset have the same leads
def _by_company(given: tuple[str, ...], leads: tuple[str, ...]) -> Mapping[int, str]:
    """Leads of names that mean a lead only beside others, by their places."""
    found: dict[int, str] = {}
    numbers = {i: int(match[1]) for i, text in enumerate(given) if (match := _COUNTED(text))}
    if set(numbers.values()) <= {1, 2, 3}:
        found |= {i: STANDARD_LEADS[number - 1] for i, number in numbers.items()}
    chest = {i: canonical_lead(_CHEST.sub(r"V\1", text)) for i, text in enumerate(given)}
    chest = {i: lead for i, lead in chest.items() if lead != leads[i] and lead in STANDARD_LEADS}
    beside_limbs = {*leads, *found.values()} & set(STANDARD_LEADS[:6])
    if beside_limbs and {"V1", "V2"} & set(chest.values()):
        found |= chest
    return found


# Numbers and names of the signals that are kept, 'mV' or 'mixed', and what `extra` should say.
SignalChoice: TypeAlias = tuple[tuple[int, ...], tuple[str, ...], str, Mapping[str, str]]


def choose_signals(
    kinds: tuple[tuple[int, str, str], ...], options: ReadOptions, *, name: str
) -> SignalChoice:
    """Voltages with the rate of the ECG, and the signals that the user names.

    'mixed' are units where some of them are no voltages.

    Args:
        kinds: Samples in a unit of time, unit and name of each signal.
        options: `leads` and `lead_names` count.
        name: Of the file, for messages.

    Raises:
        UnusableError: unreadable, where no signal can be an ECG.
    """
    try:
        return _chosen(kinds, options.leads, tuple(options.lead_names.items()))
    except UnusableError as error:
        raise UnusableError(error.reason, f"{name}: {error.detail}") from None


@lru_cache(maxsize=256)  # most recordings of a dataset have the same signals
def _chosen(
    kinds: tuple[tuple[int, str, str], ...],
    leads: tuple[str, ...] | None,
    mapped: tuple[tuple[str, str], ...],
) -> SignalChoice:
    speeds, units, given = zip(*kinds, strict=True)
    names, extra = name_leads(given, dict(mapped), name="it")
    asked = {canonical_lead(lead) for lead in leads or ()}
    in_volts = [unit.lower() in UNITS_PER_MV for unit in units]
    voltages = [
        i
        for i, name in enumerate(names)
        if name in asked or (in_volts[i] and not _OTHER_KINDS.match(given[i]))
    ]
    if not voltages:
        found = ", ".join(f"{name} in {unit!r}" for name, unit in zip(names, units, strict=True))
        raise unreadable(f"none of its signals is an ECG ({found:.200}); choose leads by name")
    ecgs = [i for i in voltages if names[i] in STANDARD_LEADS or _ECG.search(names[i])]
    leading = [i for i in voltages if names[i] in asked] or ecgs or voltages
    speed = max(speeds[i] for i in leading)
    kept = tuple(i for i in voltages if speeds[i] == speed)
    left = [name for i, name in enumerate(names) if i not in kept]
    if left:
        extra["notice"] = f"Signals of another kind or rate are left out: {', '.join(left)}."
    mixed = not all(in_volts[i] for i in kept)
    if mixed:  # chosen by name: another channel takes the place of a lead
        pairs = ((names[i], "mV" if in_volts[i] else units[i]) for i in kept)
        extra["units"] = ", ".join(f"{name}: {unit}" for name, unit in pairs)
    return kept, tuple(names[i] for i in kept), "mixed" if mixed else "mV", extra


class OpenFile(Protocol):
    """A file that was opened.

    Attributes:
        stays: Whether it stays open for more than the recordings of a file that holds several.
    """

    stays: bool = False

    @property
    def names(self) -> Collection[str]:
        """Of its recordings; '' for the only one."""

    def parts(self, options: ReadOptions) -> Sequence[Part]:
        """One per recording."""

    def read(self, options: ReadOptions) -> Recording:
        """The recording `part` of the options, one of `names`."""

    def close(self) -> object:
        """Let go of the file, where it stays open."""


class FileReader:
    """Reads files; the last one of several recordings stays open for the next of them.

    Args:
        what: The format, for messages.
        open_file: Opens a file of a source.
    """

    def __init__(
        self, what: str, open_file: Callable[[Source, str, ReadOptions], OpenFile]
    ) -> None:
        self._what, self._open = what, open_file
        self._of_thread = threading.local()  # a file that another thread reads must stay open

    def __reduce__(self) -> tuple[type[FileReader], tuple[object, ...]]:
        return FileReader, (self._what, self._open)  # another process opens its own

    def read(self, source: Source, path: str, options: ReadOptions) -> Recording:
        """The recording of a part."""
        with self._opened(source, path, options) as file:
            if options.part not in file.names:
                known = first_of([repr(one) for one in file.names], 5)
                raise unreadable(f"{stem(path)} has no recording {options.part!r}; it has {known}")
            return file.read(options)

    def parts(self, source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
        """All recordings of a file."""
        with self._opened(source, path, options) as file:
            return file.parts(options)

    @contextmanager
    def _opened(self, source: Source, path: str, options: ReadOptions) -> Iterator[OpenFile]:
        disk = source.on_disk(path)
        state = None if disk is None else os.stat(disk)  # noqa: PTH116
        same = (source, path) if state is None else (disk, state.st_mtime_ns, state.st_size)
        key = (os.getpid(), options.leads, tuple(options.lead_names.items()), *same)
        with decoding(stem(path), self._what):
            kept: tuple[tuple[Any, ...], OpenFile] | None = getattr(self._of_thread, "kept", None)
            if kept is not None and kept[0] == key:
                yield kept[1]
                return
            file = self._open(source, path, options)
            try:
                yield file
                stays = file.stays or len(file.names) > 1
            except BaseException:
                file.close()
                raise
            if not stays:
                file.close()
                return
            if kept is not None and kept[0][0] == os.getpid():
                kept[1].close()
            self._of_thread.kept = key, file


def format_of_several(
    name: str,
    suffixes: Sequence[str],
    open_file: Callable[[Source, str, ReadOptions], OpenFile],
    **row: Any,
) -> FileFormat:
    """The row of a format whose files may hold several recordings, read by a `FileReader`."""
    reader = FileReader(name, open_file)
    first, *others = suffixes
    row |= {"other_suffixes": tuple(others), "parts": reader.parts}
    return FileFormat(name, first, reader.read, **row)

"""Recording: one ECG of one patient; FrameSpec: what an encoder sees of it."""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError, UnusableError

STANDARD_LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
PAPER_LEADS = ("II", "V2", "aVL", "aVR")  # the four of the paper, in its order
UNNAMED_LEAD = "ECG"  # of recordings that have a single lead, without a name
LIMB_SOURCES = ("I", "II")
# How often I and II are in the limb leads that follow from them (Einthoven and Goldberger).
LIMB_LEADS = {"III": (-1.0, 1.0), "aVR": (-0.5, -0.5), "aVL": (1.0, -0.5), "aVF": (-0.5, 1.0)}


def unnamed_lead(dataset: str = "") -> str:
    """The standard lead that a single lead without a name is most like, for encoders of many.

    I, between the hands, for the recorder of PhysioNet 2017, which is held in both; otherwise II,
    as patches and monitors record it.
    """
    return "I" if dataset == "physionet2017" else "II"


# How many of a unit make one mV, by lower-case name; two characters look like a µ.
UNITS_PER_MV = {"mv": 1.0, "uv": 1000.0, "µv": 1000.0, "μv": 1000.0, "nv": 1e6, "v": 1e-3}

# What an ECG can be: outside of these, a header is wrong and so would be everything made from it.
PLAUSIBLE_HZ = (50.0, 10_000.0)
PLAUSIBLE_COUNTS_PER_MV = (1.0, 1e6)
LARGEST_MV = 500.0  # electrode offsets and lost leads included

# In `Recording.extra`: what the reader assumed or left out.
NOTES = ("notice", "leads", "units", "leads without values")
DERIVED = "leads derived"  # there, too: names, separated by commas

_LONGEST_LEAD = 64  # characters; longer ones are no spelling of a lead
MAINS = (50, 60)  # Hz
MAX_GAPS = 100_000  # of one recording
SHORTEST_FLAT = 1.0  # seconds

_CANONICAL = {name.lower(): name for name in (*STANDARD_LEADS, "V7", "V8", "V9")}
_CANONICAL |= {f"v{i}r": f"V{i}R" for i in range(1, 10)}
_CANONICAL |= {f"d{i}": lead for i, lead in ((1, "I"), (2, "II"), (3, "III"))}  # derivación
_CANONICAL |= {f"d{lead.lower()}": lead for lead in ("I", "II", "III")}
# Of ambulatory recorders: limb electrodes are on the chest. The field takes them for limb leads.
_MODIFIED = {"mli": "I", "mlii": "II", "mliii": "III"}
# Lower-case Greek iota, alpha and nu, Cyrillic i and a.
_LOOKALIKES = str.maketrans("\u03b9\u03b1\u03bd\u0456\u0430", "iavia")
# 'Lead' in lower case, as electrocardiographs of several countries write it.
LEAD_WORD = r"(?:lead|abl(?:eitung)?|afleiding|avledning|d[eé]riva(?:tion|ci[oó]n|[cç][aã]o|zione))"
_BEFORE_LEAD = re.compile(rf"(?:(?:mdc|ecg|ekg|{LEAD_WORD})(?:-|[\s_.:]*))+")
_AFTER_LEAD = re.compile(r"(?:[\s_.:-]+ref|\+)$")


def canonical_lead(name: str) -> str:
    """The usual spelling of a lead, from the many that files have; others unchanged.

    'AVR', 'Lead aVR', 'ECG_avr', 'MDC_ECG_LEAD_AVR', 'aVR-ref' and 'aVR+' are all 'aVR'; 'Ⅱ',
    'Ableitung II', 'DII', 'D2' and 'MLII' (of ambulatory recorders) are 'II'. '-aVR' is no aVR, and
    stays as it is.
    """
    return _spelled(name)[0]


def is_modified_lead(name: str) -> bool:
    """Whether a name is that of a modified lead, such as 'MLII', which `canonical_lead` renames."""
    return _spelled(name)[1]


@lru_cache(maxsize=4096)
def _spelled(name: str) -> tuple[str, bool]:
    """The usual spelling, and whether the lead is a modified one."""
    given = name.strip()
    if len(given) > _LONGEST_LEAD:
        return given, False
    # Compatibility characters: 'Ⅱ' is 'II'.
    short = unicodedata.normalize("NFKC", given).lower().translate(_LOOKALIKES)
    short = _AFTER_LEAD.sub("", short)
    prefix = _BEFORE_LEAD.match(short)
    for start in (0, prefix.end() if prefix else 0):
        key = re.sub(r"[\s_.]", "", short[start:])
        if found := _CANONICAL.get(key) or _MODIFIED.get(key):
            return found, key in _MODIFIED
    return given, False


@dataclass(frozen=True, slots=True)
class Episode:
    """A labeled stretch of a recording: from sample `start` (0-based) up to `stop`, exclusive."""

    start: int
    stop: int
    label: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of one lead without values: from sample `start` (0-based) to `stop`, exclusive."""

    start: int
    stop: int
    lead: str


_Stretch = TypeVar("_Stretch", Episode, Gap)


def stretches_between(stretches: Iterable[_Stretch], first: int, last: int) -> tuple[_Stretch, ...]:
    """What lies of these stretches between two samples, counted from the first."""
    return tuple(
        replace(one, start=max(one.start, first) - first, stop=min(one.stop, last) - first)
        for one in stretches
        if one.start < last and one.stop > first
    )


@dataclass(frozen=True, slots=True)
class Recording:
    """One ECG: digital samples as the file holds them, and what turns them into mV.

    Attributes:
        id: Unique in its dataset.
        patient: The unit of splitting and of positive pairs.
        leads: Names, in canonical spelling for the standard twelve.
        rate: In Hz.
        digital: (leads, samples) int16.
        gain: (leads,) ADC counts per unit.
        baseline: (leads,) the digital value of zero.
        unit: 'mV', 'adu' where the gain is unpublished, 'mixed' where not all leads are voltages.
        labels: Labels of the whole recording; empty where labels are per frame or unknown.
        episodes: Labeled stretches, where labels are per frame.
        age: In years, or None.
        sex: 'male', 'female' or None.
        recorded_at: ISO 8601 ('2018-01-11T15:51:15', or the day alone), or None.
        extra: Whatever else the file says, by name.
        gaps: Stretches of single leads that the file has no values for; `digital` is the lead's
            baseline there.
        fold: The part of an official split, such as '1' to '10' or 'test', or None.
        named: The patient as the file has it, where `patient` is a pseudonym; never in a store.
    """

    id: str
    patient: str
    leads: tuple[str, ...]
    rate: float
    digital: NDArray[np.int16]
    gain: NDArray[np.float64]
    baseline: NDArray[np.int32]
    unit: str = "mV"
    labels: tuple[str, ...] = ()
    episodes: tuple[Episode, ...] = ()
    age: float | None = None
    sex: str | None = None
    recorded_at: str | None = None
    extra: dict[str, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    fold: str | None = None
    named: str | None = None

    @property
    def signal(self) -> NDArray[np.float64]:
        """(leads, samples) in mV (or adu), exactly as wfdb computes it; nan in gaps."""
        signal = (self.digital.astype(np.float64) - self.baseline[:, None]) / self.gain[:, None]
        for gap in self.gaps:
            signal[self.leads.index(gap.lead), gap.start : gap.stop] = np.nan
        return signal

    @property
    def samples(self) -> int:
        return int(self.digital.shape[1])

    @property
    def seconds(self) -> float:
        return self.samples / self.rate

    def select(self, leads: Sequence[str]) -> Recording:
        """The same recording with these leads only, in this order.

        Limb leads that it lacks (III, aVR, aVL, aVF) are derived from I and II; see `with_derived`.
        """
        wanted = [canonical_lead(lead) for lead in leads]
        usable = with_derived(self.leads)
        missing = [lead for lead in wanted if lead not in usable]
        if missing:
            has = ", ".join(self.leads)
            raise SettingError(
                f"recording {self.id} has no lead {', '.join(missing)}; "
                + "; ".join(filter(None, (f"it has {has}", _how_to_name(self.leads))))
            )
        digital, gain, baseline = choose_leads(
            self.leads, wanted, self.digital, self.gain, self.baseline
        )
        gaps = [
            replace(gap, lead=lead)
            for gap in self.gaps
            for lead in leads_touched(gap.lead, self.leads)
            if lead in wanted
        ]
        for gap in gaps:
            if gap.lead not in self.leads:
                digital[wanted.index(gap.lead), gap.start : gap.stop] = 0
        earlier = self.extra.get(DERIVED, "").split(", ")
        derived = [lead for lead in wanted if lead in earlier or lead not in self.leads]
        return replace(
            self,
            leads=tuple(wanted),
            digital=digital,
            gain=gain,
            baseline=baseline.astype(np.int32, copy=False),
            gaps=tuple(gaps),
            extra=self.extra | ({DERIVED: ", ".join(derived)} if derived else {}),
        )

    def with_limb_leads(self, wanted: Iterable[str] = tuple(LIMB_LEADS)) -> Recording:
        """The same recording, and those of the wanted limb leads that follow from its I and II.

        Unchanged where it has them, or where I or II is flat, as a lead that is off is.
        """
        asked = set(wanted) - set(self.leads)
        added = [lead for lead in with_derived(self.leads) if lead in asked]
        if not added:
            return self
        sources = self.digital[[self.leads.index(lead) for lead in LIMB_SOURCES]]
        if self.unit == "mixed" or not np.ptp(sources, axis=1).all():
            return self
        return self.select((*self.leads, *added))

    def between(self, first: int, last: int) -> Recording:
        """The part of the recording from sample `first` up to `last`, exclusive."""
        return replace(
            self,
            digital=self.digital[:, first:last],
            gaps=stretches_between(self.gaps, first, last),
            episodes=stretches_between(self.episodes, first, last),
        )


def _is(value: object, kind: type) -> bool:
    """Whether it is such a number; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of whole recordings, without delay (forwards and backwards); by default none.

    Attributes:
        band_pass: Lowest and highest frequency to keep, in Hz.
        notch: The frequency of the mains to take out, 50 or 60 Hz.
        baseline: Whether to take out the wandering of the baseline, below 0.5 Hz.
    """

    band_pass: tuple[float, float] | None = None
    notch: int | None = None
    baseline: bool = False

    LOWEST: ClassVar = 0.01  # Hz
    HIGHEST_LOW: ClassVar = 20.0  # Hz, below half of any sampling rate
    HIGHEST: ClassVar = 5000.0  # Hz

    def __post_init__(self) -> None:
        if self.band_pass is not None:
            ends = self.band_pass
            fits = isinstance(ends, list | tuple) and len(ends) == 2
            if not fits or not all(_is(end, Real) for end in ends):
                raise SettingError(f"`band_pass` is two frequencies, not {ends!r:.50}")
            low, high = map(float, ends)
            if not (self.LOWEST <= low <= self.HIGHEST_LOW and low < high <= self.HIGHEST):
                raise SettingError(
                    f"`band_pass` is {low:g} to {high:g} Hz; it must begin at {self.LOWEST:g} to "
                    f"{self.HIGHEST_LOW:g} Hz, and end above that, at {self.HIGHEST:g} Hz at most"
                )
            object.__setattr__(self, "band_pass", (low, high))
        if self.notch is not None and self.notch not in MAINS:
            raise SettingError(f"`notch` is {self.notch!r:.50}; the mains have 50 or 60 Hz")
        if not isinstance(self.baseline, bool):
            raise SettingError(f"`baseline` is True or False, not {self.baseline!r:.50}")

    def __bool__(self) -> bool:
        return self != Filters()

    def __str__(self) -> str:
        words = ["baseline removed"] if self.baseline else []
        if self.band_pass:
            words.append("band-pass {:g} to {:g} Hz".format(*self.band_pass))
        words += [f"notch {self.notch} Hz"] if self.notch else []
        return ", ".join(words) or "none"


@dataclass(frozen=True, slots=True)
class FrameSpec:
    """What the encoder sees of a recording: `seconds` of it, as `samples` samples.

    Attributes:
        seconds: Of a frame.
        samples: Of a frame, after resampling.
        filters: Applied to whole recordings before they are resampled and cut.
    """

    seconds: float
    samples: int = 2500
    filters: Filters = field(default_factory=Filters)

    LONGEST: ClassVar = 1e6  # seconds, eleven days
    MAX_SAMPLES: ClassVar = 10_000_000

    def __post_init__(self) -> None:
        seconds, samples = self.seconds, self.samples
        if not (_is(seconds, Real) and 0 < seconds <= self.LONGEST):
            raise SettingError(
                f"the seconds of a frame must be a number above 0 and at most {self.LONGEST:,.0f}, "
                f"not {seconds!r:.50}"
            )
        if not (_is(samples, Integral) and 1 <= samples <= self.MAX_SAMPLES):
            raise SettingError(
                "the samples of a frame must be a whole number from 1 to "
                f"{self.MAX_SAMPLES:,}, not {samples!r:.50}"
            )

    @property
    def rate(self) -> float:
        """Samples per second, in Hz, as the encoder sees them."""
        return self.samples / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; without filters the two numbers alone, as in earlier versions."""
        facts = asdict(self)
        if not self.filters:
            del facts["filters"]
        return facts

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> FrameSpec:
        """What `to_dict` gave; TypeError or SettingError where it is something else."""
        filters = facts.get("filters")
        own = Filters() if filters is None else Filters(**filters)
        return cls(**{**facts, "filters": own})


def said_by_file(fields: Mapping[str, str]) -> dict[str, str]:
    """What a file says, without the names under which `Recording.extra` has notes of the reader."""
    return {key: text for key, text in fields.items() if key not in NOTES and key != DERIVED}


def noted(extra: Mapping[str, str], note: str) -> dict[str, str]:
    """`Recording.extra` with one more sentence on what was assumed, under 'notice'."""
    return {**extra, "notice": "; ".join(filter(None, (extra.get("notice"), note)))}


def notes_of(extra: Mapping[str, str]) -> tuple[str, ...]:
    """What the reader of a file says that it assumed or left out, one sentence each."""
    notes = {key: extra[key] for key in NOTES if extra.get(key)}
    texts = (text if key == "notice" else f"{key}: {text}" for key, text in notes.items())
    return tuple(note.rstrip(".") for text in texts for note in text.split("; ") if note)


def with_derived(leads: Iterable[str]) -> tuple[str, ...]:
    """These leads and, where I and II are among them, the limb leads that follow from those."""
    own = tuple(leads)
    if not set(LIMB_SOURCES) <= set(own):
        return own
    return (*own, *(lead for lead in LIMB_LEADS if lead not in own))


def leads_touched(lead: str, leads: Sequence[str]) -> list[str]:
    """A lead of a recording with these leads, and the leads that would be derived from it."""
    derived = [one for one in LIMB_LEADS if one not in leads] if lead in LIMB_SOURCES else []
    return [lead, *derived]


def choose_leads(
    leads: Sequence[str],
    wanted: Sequence[str],
    digital: NDArray[np.int16],
    gain: NDArray[np.float64],
    baseline: NDArray[np.integer],
) -> tuple[NDArray[np.int16], NDArray[np.float64], NDArray[np.integer]]:
    """Samples (leads, samples), gain and baseline of the wanted leads, in their order.

    A limb lead that is not among `leads` is derived from I and II. It has half the finer step of
    both, in which it is exact where both have the same step and it fits into 16 bits.
    """
    added = [lead for lead in wanted if lead not in leads]
    rows = [leads.index(lead) for lead in wanted if lead in leads]
    if not added:
        return digital[rows], gain[rows], baseline[rows]
    places = [leads.index(lead) for lead in LIMB_SOURCES]
    finest = 2 * gain[places].max()
    first, second = (digital[places] - baseline[places, None].astype(np.float64)) * (
        finest / gain[places, None]
    )
    steps = np.stack([a * first + b * second for a, b in (LIMB_LEADS[lead] for lead in added)])
    coarser = np.maximum(np.abs(steps).max(axis=1, initial=0.0) / 32767, 1.0)
    made = np.rint(steps / coarser[:, None]).astype(np.int16)
    order = np.argsort([lead in added for lead in wanted], kind="stable").argsort()
    return (
        np.concatenate([digital[rows], made])[order],
        np.concatenate([gain[rows], finest / coarser])[order],
        np.concatenate([baseline[rows], np.zeros(len(added), baseline.dtype)])[order],
    )


def how_to_choose(leads: Sequence[str]) -> str:
    """What to do with a file that has these leads and none that is wanted."""
    known = [lead for lead in leads if lead in _CANONICAL.values()]
    choice = f"choose from {', '.join(known)} with `leads`" if known else ""
    return "; ".join(filter(None, (choice, _how_to_name(leads))))


def _how_to_name(leads: Sequence[str]) -> str:
    """What to do where leads of other names may be those that are missing."""
    other = next((lead for lead in leads if lead not in _CANONICAL.values()), None)
    if other is None:
        return ""
    return f"if {other!r} is one of them, say so with `lead_names`, such as {other}=II"


def check_rate(rate: float, *, name: str) -> None:
    """Refuse a sampling rate that no ECG has; the message of the UnusableError contains `name`."""
    low, high = PLAUSIBLE_HZ
    if not low <= rate <= high:
        raise UnusableError(
            "implausible",
            f"{name} has a sampling rate of {rate:g} Hz; {low:g} to {high:,.0f} Hz is plausible",
        )


def check_plausible(recording: Recording) -> None:
    """UnusableError (implausible) where no ECG has such a rate, gain or amplitudes.

    Gains and amplitudes are compared only where the unit is mV; everywhere gains must be finite
    and positive.
    """
    gain, zero = recording.gain, recording.baseline
    if _surely_plausible(recording.rate, recording.unit, gain.tobytes(), zero.tobytes()):
        return
    name, in_mv = recording.id, recording.unit == "mV"
    check_rate(recording.rate, name=name)
    low, high = PLAUSIBLE_COUNTS_PER_MV if in_mv else (math.ulp(0.0), sys.float_info.max)
    for lead, counts in zip(recording.leads, gain.tolist(), strict=True):
        if not low <= counts <= high:
            expected = f"{low:g} to {high:,.0f} per mV" if in_mv else "more than 0"
            detail = f"{name} has a gain of {counts:g} in lead {lead}; {expected} is plausible"
            raise UnusableError("implausible", detail)
    if not in_mv or not recording.digital.size:
        return
    for extreme in (recording.digital.max(axis=1), recording.digital.min(axis=1)):
        size = float((np.abs(extreme - zero.astype(np.int64)) / gain).max())
        if size > LARGEST_MV:
            detail = (
                f"{name} reaches {size:,.4g} mV with the gain and baseline that it gives; "
                f"{LARGEST_MV:g} mV is the most that is plausible"
            )
            raise UnusableError("implausible", detail)


@lru_cache(maxsize=256)
def _surely_plausible(rate: float, unit: str, gain: bytes, baseline: bytes) -> bool:
    """Whether no int16 could exceed the limits; most recordings of a dataset share the answer."""
    steps, zero = np.frombuffer(gain), np.abs(np.frombuffer(baseline, np.int32).astype(np.int64))
    (slow, fast), (low, high) = PLAUSIBLE_HZ, PLAUSIBLE_COUNTS_PER_MV
    if unit != "mV" or not slow <= rate <= fast or steps.size != zero.size:
        return False
    fits = (steps >= low) & (steps <= high) & (zero + 32768 <= LARGEST_MV * steps)
    return bool(fits.all())


def quantize(
    signal: NDArray[np.floating], per_mv: float = 1.0
) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
    """(leads, samples), `per_mv` of its unit to the mV -> int16 samples, (leads,) counts per mV.

    The finest power of ten whose range holds the lead: 10,000 counts per mV (0.1 µV) for ordinary
    ECGs, fewer for larger ones. Values must be finite.
    """
    low, high = signal.min(axis=1, initial=0.0), signal.max(axis=1, initial=0.0)
    peak = np.maximum(high, -low).astype(np.float64) / per_mv
    if not np.isfinite(peak).all():  # a single NaN or infinity shows here
        raise UnusableError("nan", "values that are not finite cannot be stored")
    exponent = np.floor(np.log10(32767 / np.maximum(peak, 1e-300)))
    gain = 10.0 ** np.minimum(exponent, 4)
    steps = signal * (gain / per_mv)[:, None]
    return np.rint(steps, out=steps).astype(np.int16), gain


class Quantized(NamedTuple):
    """Samples as a `Recording` has them, of the leads that have a value at all."""

    leads: tuple[str, ...]
    digital: NDArray[np.int16]
    gain: NDArray[np.float64]
    gaps: tuple[Gap, ...]


def quantize_with_gaps(
    signal: NDArray[np.floating], leads: Sequence[str], *, name: str, per_mv: float = 1.0
) -> Quantized:
    """As `quantize`, where values that are not finite become gaps, with 0 as their sample.

    Leads without a single value are left out. UnusableError (nan) where there is no value at all or
    almost nothing but gaps.
    """
    try:  # most have a value everywhere, which `quantize` finds out on its way
        return Quantized(tuple(leads), *quantize(signal, per_mv), ())
    except UnusableError:
        missing = ~np.isfinite(signal)
    kept, gaps = find_gaps(missing, leads, name=name)
    digital, gain = quantize(np.where(missing[kept], 0.0, signal[kept]), per_mv)
    return Quantized(tuple(leads[i] for i in kept), digital, gain, gaps)


def find_gaps(
    missing: NDArray[np.bool_], leads: Sequence[str], *, name: str
) -> tuple[list[int], tuple[Gap, ...]]:
    """Rows of `missing` (leads, samples) with values, and the gaps in them, or UnusableError."""
    kept = [i for i, row in enumerate(missing) if not row.all()]
    if not kept:
        raise UnusableError("nan", f"{name} has no value in any lead")
    gaps: list[Gap] = []
    for i in kept:
        edges = np.flatnonzero(np.diff(missing[i], prepend=False, append=False))
        if len(gaps) + len(edges) // 2 > MAX_GAPS:
            raise UnusableError("nan", f"{name} has more than {MAX_GAPS:,} gaps")
        pairs = edges.reshape(-1, 2).tolist()
        gaps += [Gap(start, stop, leads[i]) for start, stop in pairs]
    return kept, tuple(gaps)


def flat_stretches(recording: Recording) -> tuple[Gap, ...]:
    """Stretches of at least a second over which a lead does not change by a single step."""
    least = max(2, round(SHORTEST_FLAT * recording.rate))
    found = []
    for lead, values in zip(recording.leads, recording.digital, strict=True):
        if not _may_be_flat(values, least):
            continue
        edges = np.concatenate(([0], np.flatnonzero(np.diff(values)) + 1, [len(values)]))
        for place in np.flatnonzero(np.diff(edges) >= least):
            found.append(Gap(int(edges[place]), int(edges[place + 1]), lead))
    return tuple(found)


def _may_be_flat(values: NDArray[np.int16], least: int) -> bool:
    """Whether some stretch of half that many samples is flat: nearly all recordings have none."""
    step = least // 2
    few = values[::step]  # a flat stretch holds two of them in a row
    for place in (np.flatnonzero(few[1:] == few[:-1]) * step).tolist():
        if (values[place : place + step + 1] == values[place]).all():
            return True
    return False


def check_signal(recording: Recording, *, frame: FrameSpec, known_leads: Collection[str]) -> None:
    """UnusableError where no lead is known, all are flat, or they are shorter than a frame."""
    if not any(lead in known_leads for lead in recording.leads):
        found = ", ".join(recording.leads)
        detail = f"{recording.id} has {found}; one of {', '.join(known_leads)} is needed"
        raise UnusableError("no known lead", detail)
    check_varies(recording)
    needed = round(frame.seconds * recording.rate)
    if recording.samples < needed:
        detail = (
            f"{recording.id} has {recording.samples} samples ({recording.seconds:.2f} s), "
            f"a frame needs {needed}"
        )
        raise UnusableError("too short", detail)


def check_varies(recording: Recording) -> None:
    """UnusableError where a recording is constant in every lead."""
    digital = recording.digital
    # Nearly every recording varies at its start: only the others are checked in full.
    if not (digital[:, :64] != digital[:, :1]).any() and (digital == digital[:, :1]).all():
        raise UnusableError("flat", f"{recording.id} is constant in every lead")

"""Long recordings cut into hours, and caps on the minutes of a patient and the hours of a store."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from clocs.datasets.base import Entry
from clocs.recording import Episode, Gap, Recording

HOUR = 3600.0
_LEAST = 60.0  # seconds of a stretch that a cap leaves


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a recording in time; all of it where `stop` is None."""

    entry: Entry  # of the whole recording
    start: float  # in seconds
    stop: float | None
    patient: str

    @property
    def seconds(self) -> float:
        return math.nan if self.stop is None else self.stop - self.start


def hours_of(entry: Entry, seconds: float | None, patient: str, *, cut: bool) -> Iterator[Stretch]:
    """The hours of a recording, or all of it where its duration is unknown or it is not cut."""
    if seconds is None or not cut or seconds <= HOUR:
        yield Stretch(entry, 0.0, seconds, patient)
        return
    for number in range(math.ceil(seconds / HOUR)):
        yield Stretch(entry, number * HOUR, min((number + 1) * HOUR, seconds), patient)


def capped(
    stretches: Iterable[Stretch], *, cap_minutes: float | None, most_hours: float | None
) -> list[Stretch]:
    """At most so many minutes of each patient, so that all together have at most so many hours.

    What is kept is spread evenly over a patient's time: the first minutes of each stretch, or,
    where those would be less than a minute, a minute of every so many. Of a recording whose
    duration only reading tells, the first minutes are kept.
    """
    of_patient: defaultdict[str, list[Stretch]] = defaultdict(list)
    for one in stretches:
        of_patient[one.patient].append(one)
    known = {
        who: sum(s.seconds for s in own if s.stop is not None) for who, own in of_patient.items()
    }
    most = math.inf if cap_minutes is None else 60 * cap_minutes
    if most_hours is not None:
        most = min(most, _level(list(known.values()), HOUR * most_hours))
    kept: list[Stretch] = []
    for who, own in of_patient.items():
        timed = [one for one in own if one.stop is not None]
        kept += timed if known[who] <= most else _spread(timed, most)
        limit = None if most == math.inf else most
        kept += [replace(one, stop=limit) for one in own if one.stop is None]
    return kept


def _level(amounts: Sequence[float], total: float) -> float:
    """The cap under which these amounts add up to `total`, or infinity where they are less."""
    left = total
    ordered = sorted(amounts)
    for number, amount in enumerate(ordered):
        share = left / (len(ordered) - number)
        if amount > share:
            return share
        left -= amount
    return math.inf


def _spread(own: Sequence[Stretch], most: float) -> list[Stretch]:
    """So many seconds of these stretches, whose durations are known."""
    share = most / sum(one.seconds for one in own)
    count = min(len(own), max(1, int(most // _LEAST)))
    if share * min(one.seconds for one in own) >= _LEAST:
        chosen = [(one, share * one.seconds) for one in own]
    else:
        places = [round(i * (len(own) - 1) / max(1, count - 1)) for i in range(count)]
        chosen = [(own[place], most / count) for place in dict.fromkeys(places)]
    return [
        replace(one, stop=min(one.start + length, one.stop or math.inf)) for one, length in chosen
    ]


def entry_of(stretch: Stretch, seconds: float | None) -> Entry:
    """The entry of a stretch; that of the whole recording where it is all of it."""
    whole = stretch.entry
    if stretch.stop is None or (stretch.start == 0 and stretch.stop == seconds):
        return replace(whole, patient=stretch.patient)
    info = {**whole.info, "start": repr(stretch.start), "stop": repr(stretch.stop), "of": whole.id}
    short = seconds is None or seconds <= HOUR
    name = whole.id if short else f"{whole.id}@{_clock(stretch.start)}"
    return replace(whole, id=name, patient=stretch.patient, info=info)


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def stretch_of(recording: Recording, start: float, stop: float | None) -> Recording:
    """The part of a recording between two moments in seconds, with its episodes and gaps."""
    first = round(start * recording.rate)
    last = (
        recording.samples if stop is None else min(round(stop * recording.rate), recording.samples)
    )
    if first == 0 and last == recording.samples:
        return recording
    cut = replace(recording, digital=recording.digital[:, first:last], episodes=(), gaps=())
    gaps = (
        Gap(max(gap.start, first) - first, min(gap.stop, last) - first, gap.lead)
        for gap in recording.gaps
        if gap.start < last and gap.stop > first
    )
    return replace(cut, gaps=tuple(gaps), episodes=episodes_within(recording.episodes, first, last))


def episodes_within(episodes: Sequence[Episode], first: int, last: int) -> tuple[Episode, ...]:
    """What lies of these episodes between two samples, counted from the first."""
    return tuple(
        replace(one, start=max(one.start, first) - first, stop=min(one.stop, last) - first)
        for one in episodes
        if one.start < last and one.stop > first
    )

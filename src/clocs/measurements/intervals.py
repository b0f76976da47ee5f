"""Heart rate, intervals, axes and amplitudes from the waves of all leads, or why there are none.

A beat is where at least half of the leads have a QRS complex. Its QRS begins at the second-earliest
onset of all leads and ends at the second-latest offset, so that one bad lead moves neither; P
begins likewise, and T ends in the median lead. Of fewer than four leads, the earliest onset and the
latest offset count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from clocs.measurements.waves import Waves
from clocs.recording import LIMB_LEADS, STANDARD_LEADS

Array = NDArray[np.float64]
UNITS = {
    "heart_rate": "1/min",
    **dict.fromkeys(("sdnn", "rmssd", "pr", "qrs", "qt"), "ms"),
    **dict.fromkeys(("qtc_bazett", "qtc_fridericia", "qtc_framingham"), "ms"),
    **dict.fromkeys(("qrs_axis", "t_axis"), "°"),
    **{f"r_{lead.lower()}": "mV" for lead in STANDARD_LEADS},
    "sokolow_lyon": "mV",
}
P, QRS, T = range(3)
ONSET, PEAK, OFFSET = range(3)
_TOGETHER = 0.12  # s between QRS peaks of one beat in different leads, one after the other
_LONGEST_PR = 0.5  # s
_OFTEN, _LEADS_WITH_P = 0.5, 1 / 3  # of beats, and of a beat's leads, that must have the wave
_VARIES = 0.1  # s between the quartiles of PR: atria and ventricles beat on their own
_FEWEST = 3  # beats
_SMALL = {"QRS complexes": 0.02, "T waves": 0.01}  # mV, a mean deflection without an axis
_BASE = (0.03, 0.005)  # s before the QRS complex, where the signal is at its zero


@dataclass(frozen=True)
class Measure:
    """A measured value: the median of beats, and its 95 % interval; or why there is none.

    Attributes:
        value: In the unit of `UNITS`; None where it cannot be measured.
        low: Lower end of the interval; of fewer than six beats, the least of them.
        high: Upper end.
        reason: Why there is no value.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Beats:
    """The beats of a recording.

    Attributes:
        leads: One per column.
        marks: (beats, leads, 3, 3) of P, QRS and T the onset, peak and offset in s; nan where a
            lead has none.
    """

    leads: tuple[str, ...]
    marks: Array

    @property
    def times(self) -> Array:
        """(beats,) s of the QRS complex: the median peak of the leads."""
        return np.asarray(np.nanmedian(self.marks[:, :, QRS, PEAK], axis=1))

    def edge(self, wave: int, point: int) -> Array:
        """(beats,) s of an onset or offset over all leads; nan where no lead has the wave."""
        own = self.marks[:, :, wave, point]
        if wave == T:
            return _quiet(np.nanmedian, own)
        ordered = np.sort(-own if point == OFFSET else own, axis=1)  # nan comes last
        count = np.isfinite(own).sum(axis=1)
        place = np.minimum(np.where(count > 3, 1, 0), len(self.leads) - 1)
        found = ordered[np.arange(len(own)), place]
        return np.asarray(-found if point == OFFSET else found)


def _quiet(what: Callable[..., Array], values: Array) -> Array:
    """Over leads; nan where all are, without a warning."""
    made = np.full(len(values), np.nan)
    some = np.isfinite(values).any(axis=1)
    if some.any():
        made[some] = what(values[some], axis=1)
    return made


def find_beats(waves: Mapping[str, Waves]) -> Beats:
    """Beats from the waves of all leads, each with its P before and its T after it."""
    leads = tuple(waves)
    usable = [place for place, lead in enumerate(leads) if len(waves[lead].qrs)]
    peaks = np.concatenate([waves[leads[place]].qrs[:, PEAK] for place in usable] or [np.zeros(0)])
    owner = np.repeat(usable, [len(waves[leads[place]].qrs) for place in usable]).astype(int)
    row = np.concatenate([np.arange(len(waves[leads[place]].qrs)) for place in usable] or [owner])
    order = np.argsort(peaks, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(peaks[order]) > _TOGETHER) + 1)
    marks = []
    for group in groups:
        if len(set(owner[group].tolist())) * 2 < max(1, len(usable)) or not len(group):
            continue
        beat = np.full((len(leads), 3, 3), np.nan)
        for one in group[::-1].tolist():  # the first of a lead counts
            beat[owner[one], QRS] = waves[leads[owner[one]]].qrs[row[one]]
        marks.append(beat)
    found = Beats(leads, np.array(marks).reshape(-1, len(leads), 3, 3))
    if marks:
        _attach(found, waves)
    return found


def _attach(beats: Beats, waves: Mapping[str, Waves]) -> None:
    """Put the last P before and the first T after each QRS complex into `beats.marks`."""
    onset, offset = beats.edge(QRS, ONSET), beats.edge(QRS, OFFSET)
    previous, following = np.append(-np.inf, offset[:-1]), np.append(onset[1:], np.inf)
    for place, lead in enumerate(beats.leads):
        p, t = waves[lead].p, waves[lead].t
        for beat in range(len(onset)):
            earliest = max(previous[beat], onset[beat] - _LONGEST_PR)
            before = p[(p[:, PEAK] > earliest) & (p[:, PEAK] < onset[beat])]
            after = t[(t[:, PEAK] > onset[beat]) & (t[:, PEAK] < following[beat])]
            if len(before):
                beats.marks[beat, place, P] = before[-1]
            if len(after):
                beats.marks[beat, place, T] = after[0]


def measure_beats(
    beats: Beats, signal: Array, rate: float, *, in_mv: bool = True
) -> dict[str, Measure]:
    """All of `UNITS`.

    Args:
        beats: Of these leads.
        signal: (leads, samples), in the order of `beats.leads`.
        rate: In Hz.
        in_mv: Whether it is in mV; else there are no amplitudes.
    """
    rr = _between(beats, signal, rate) if len(beats.marks) else np.zeros(0)
    if np.isfinite(rr).sum() < _FEWEST - 1:
        return dict.fromkeys(UNITS, Measure(reason=f"fewer than {_FEWEST} beats"))
    found = {"heart_rate": median_of(60 / rr)}
    found["sdnn"] = _root_mean_square(1000 * (rr - np.nanmean(rr)), lost=1)
    found["rmssd"] = _root_mean_square(1000 * np.diff(rr))
    begin, end = beats.edge(QRS, ONSET), beats.edge(QRS, OFFSET)
    found["pr"] = _pr(beats, begin)
    found["qrs"] = median_of(1000 * (end - begin))
    qt, typical = beats.edge(T, OFFSET) - begin, float(np.nanmedian(rr))
    corrected = {
        "qt": qt,
        "qtc_bazett": qt / np.sqrt(typical),
        "qtc_fridericia": qt / np.cbrt(typical),
        "qtc_framingham": qt + 0.154 * (1 - typical),
    }
    for name, values in corrected.items():
        found[name] = _if_often(1000 * values, "no T waves")
    found |= _of_voltage(beats, signal, rate, in_mv)
    return {name: found[name] for name in UNITS}


def _between(beats: Beats, signal: Array, rate: float) -> Array:
    """(beats - 1,) s from peak to peak in the median lead.

    It is nan where most leads that have beats have a gap, which may hide one.
    """
    peaks, times = beats.marks[:, :, QRS, PEAK], beats.times
    apart = np.diff(peaks, axis=0)
    none = np.isnan(apart).all(axis=1)
    apart[none] = np.diff(times)[none, None]
    hidden = np.cumsum(np.isnan(signal)[np.isfinite(peaks).any(axis=0)].mean(axis=0) > 1 / 2)
    at = (times * rate).astype(int).clip(0, len(hidden) - 1)
    return np.where(np.diff(hidden[at]) > 0, np.nan, np.nanmedian(apart, axis=1))


def median_of(values: Array) -> Measure:
    """The median of what is known, and its interval by the ranks around it."""
    own = np.sort(values[np.isfinite(values)])
    n = len(own)
    if not n:
        return Measure(reason="no beat has it")
    away = max(0, int((n - 1.96 * np.sqrt(n)) / 2))
    return Measure(float(np.median(own)), float(own[away]), float(own[n - 1 - away]))


def _if_often(values: Array, reason: str) -> Measure:
    known = np.isfinite(values).mean()
    return median_of(values) if known >= _OFTEN else Measure(reason=reason)


def _pr(beats: Beats, begin: Array) -> Measure:
    with_p = np.isfinite(beats.marks[:, :, P, ONSET]).sum(axis=1)
    with_qrs = np.isfinite(beats.marks[:, :, QRS, ONSET]).sum(axis=1)
    pr = np.where(with_p >= _LEADS_WITH_P * with_qrs, begin - beats.edge(P, ONSET), np.nan)
    found = _if_often(1000 * pr, "no P waves")
    if found.value is not None:
        low, high = np.nanpercentile(pr, (25, 75))
        if high - low > _VARIES:
            return Measure(reason="P waves at no constant distance from QRS complexes")
    return found


def _root_mean_square(values: Array, *, lost: int = 0) -> Measure:
    """Of what is known, and its interval if values are normal; lost: degrees of freedom."""
    own = values[np.isfinite(values)]
    if len(own) < _FEWEST:
        return Measure(reason="too few beats")
    freedom = len(own) - lost
    value = float(np.sqrt((own**2).sum() / freedom))
    low, high = (
        value * np.sqrt(freedom / (2 * gammaincinv(freedom / 2, p))) for p in (0.975, 0.025)
    )
    return Measure(value, float(low), float(high))


def _of_voltage(beats: Beats, signal: Array, rate: float, in_mv: bool) -> dict[str, Measure]:
    """Axes and amplitudes."""
    count, begin = len(beats.marks), beats.edge(QRS, ONSET)
    shape = (count, len(beats.leads))
    tall, deep, qrs, t = (np.full(shape, np.nan) for _ in range(4))
    first, last = (np.array(_BASE)[:, None] * -1 + begin).clip(0) * rate
    edges = {
        QRS: (begin, beats.edge(QRS, OFFSET)),
        T: (beats.edge(T, ONSET), beats.edge(T, OFFSET)),
    }
    for beat in range(count):
        base = signal[:, int(first[beat]) : int(last[beat]) + 1]
        zero = np.median(base, axis=1)
        for wave, area in ((QRS, qrs), (T, t)):
            ends = [edge[beat] * rate for edge in edges[wave]]
            if not np.isfinite(ends).all() or ends[1] - ends[0] < 1:
                continue
            own = signal[:, max(round(ends[0]), 0) : round(ends[1]) + 1] - zero[:, None]
            if not own.size:  # marked beyond the end
                continue
            area[beat] = own.mean(axis=1)
            if wave == QRS:
                tall[beat], deep[beat] = own.max(axis=1), -own.min(axis=1)
    found = {"qrs_axis": _axis(beats.leads, qrs, "QRS complexes")}
    found["t_axis"] = _axis(beats.leads, t, "T waves")
    why = None if in_mv else "the unit is not mV"
    for lead in STANDARD_LEADS:
        missing = why or (None if lead in beats.leads else f"no lead {lead}")
        found[f"r_{lead.lower()}"] = (
            Measure(reason=missing)
            if missing
            else median_of(tall[:, beats.leads.index(lead)].clip(0))
        )
    needed = {"V1", "V5", "V6"} & {*beats.leads}
    if why or "V1" not in needed or len(needed) < 2:
        found["sokolow_lyon"] = Measure(reason=why or "it needs V1, and V5 or V6")
    else:
        left = [tall[:, beats.leads.index(lead)] for lead in sorted(needed - {"V1"})]
        found["sokolow_lyon"] = median_of(deep[:, beats.leads.index("V1")] + np.max(left, axis=0))
    return found


def _axis(leads: tuple[str, ...], area: Array, what: str) -> Measure:
    """Degrees from I towards aVF, of (beats, leads) mean deflections."""
    limb = LIMB_LEADS | {"I": (1.0, 0.0), "II": (0.0, 1.0)}
    pair = [one for one in ("I", "aVF", "II", "III", "aVL", "aVR") if one in leads][:2]
    if len(pair) < 2:
        return Measure(reason="it needs two limb leads")
    own = area[:, [leads.index(one) for one in pair]].T
    x, second = np.linalg.inv([limb[one] for one in pair]) @ own
    y = (second - x / 2) * 2 / np.sqrt(3)
    if np.isfinite(x + y).mean() < _OFTEN:
        return Measure(reason=f"no {what}")
    usual = np.nanmedian(x), np.nanmedian(y)
    if np.hypot(*usual) < _SMALL[what]:
        return Measure(reason=f"{what} too small in I and aVF")
    middle = float(np.degrees(np.arctan2(usual[1], usual[0])))
    around = (np.degrees(np.arctan2(y, x)) - middle + 180) % 360 - 180
    made = median_of(around)
    assert made.value is not None and made.low is not None and made.high is not None
    value = (made.value + middle + 180) % 360 - 180
    return Measure(value, value + made.low - made.value, value + made.high - made.value)

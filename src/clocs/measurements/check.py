"""`clocs.check`: faults of electrodes and units, told by what an ECG must look like.

Limb leads obey equations, so that a lead that is inverted, scaled or wrongly named shows. The other
faults are told by what is usual: heights of beats, and their shapes. Limits were chosen on
validation patients (benchmarks/electrodes.py).

Swapped electrodes and inverted chest leads are told from the typical beat. A small network sees the
beat in I, II and V1 to V6 and how much every two of them resemble each other; one of its outputs is
on the limb electrodes, one on the chest leads. It was fitted on recordings that were swapped on
purpose.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from clocs.measurements.beats import TypicalBeat, typical_beat
from clocs.recording import LIMB_LEADS, LIMB_SOURCES, Recording, noted

Array = NDArray[np.float64]
LEADS = ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6")
CHEST = LEADS[2:]
# QRS, T and P: which of a beat's samples
_WAVES = np.array([[a <= k < b for k in range(100)] for a, b in ((30, 45), (45, 100), (10, 30))])
_SURE = 0.9  # probability of a fault from which it may be corrected
# "" for none; a fitted model tells these apart, in this order
LIMB_FAULTS = (
    "",
    "left and right arm may be swapped",
    "right arm and left leg may be swapped",
    "left arm and left leg may be swapped",
    "the electrodes of both arms and the left leg may be rotated",
    "the electrodes of both arms and the left leg may be rotated the other way",
    "right arm and right leg may be swapped",
    "left arm and right leg may be swapped",
    "the limb leads may be inverted",
)
CHEST_FAULTS = (
    "",
    *(f"{one} and {other} may be swapped" for one, other in combinations(CHEST, 2)),
    "the chest leads may be in reverse order, V6 to V1",
    "the chest leads may be shifted by one, V2 to V6 in place of V1",
    "the chest leads may be shifted by one, V1 in place of V2",
    *(f"{lead} may be inverted" for lead in CHEST),
    "the chest leads may be inverted",
)


def network_input(beats: Array, interval: Array) -> Array:
    """beats: (n, 8, 100) of LEADS at 125 Hz, interval: (n,) s between beats -> (n, inputs)."""
    scale = np.sqrt((beats**2).mean(axis=(1, 2), keepdims=True))
    beats = beats / np.maximum(scale, 1e-6)
    size = np.sqrt((beats**2).mean(axis=2))
    rest = (np.clip(interval, 0.2, 2.0) * 2 - 1.5)[:, None].astype(beats.dtype)
    waves = np.arcsinh(2 * beats).reshape(len(beats), -1)
    return np.concatenate([waves, np.log(size + 0.03), _alike(beats), rest], axis=1)


@cache
def pairs(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and second places of every two of so many leads."""
    return np.triu_indices(count, 1)


def _alike(beats: Array) -> Array:
    """(n, leads, 100) -> (n, 3 * pairs) correlations of leads in each of _WAVES."""
    inside = _WAVES[:, None].astype(beats.dtype)
    waves = beats[:, None] * inside
    waves = (waves - waves.sum(axis=3, keepdims=True) / inside.sum(axis=2, keepdims=True)) * inside
    norm = np.maximum(np.sqrt((waves**2).sum(axis=3)), 1e-3)
    made = waves @ waves.transpose(0, 1, 3, 2) / (norm[..., None] * norm[..., None, :])
    return np.asarray(made[..., *pairs(beats.shape[1])].reshape(len(beats), -1))


@dataclass(frozen=True)
class ElectrodeModel:
    """The network: three layers, and the least certainty at which each fault is reported."""

    weights: dict[str, NDArray[np.float32]]

    def __call__(self, inputs: Array) -> tuple[Array, Array]:
        """(n, inputs) -> (n, LIMB_FAULTS) and (n, CHEST_FAULTS) probabilities."""
        w = self.weights
        x = np.clip((inputs - w["mean"]) * w["scale"], -5, 5)
        for layer in ("first", "second"):
            x = np.maximum(x @ w[f"{layer}.weight"].T + w[f"{layer}.bias"], 0)
        limb, chest = (x @ w[f"{one}.weight"].T + w[f"{one}.bias"] for one in ("limb", "chest"))
        return _softmax(limb), _softmax(chest)


def _softmax(x: Array) -> Array:
    made = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(made / made.sum(axis=1, keepdims=True))


@cache
def fitted_electrodes() -> ElectrodeModel:
    """The network of the package."""
    return ElectrodeModel(load_file(Path(__file__).with_name("electrodes.safetensors")))


def swapped_electrodes(beat: TypicalBeat) -> list[tuple[str, str, float, bool]]:
    """The faults in a beat of LEADS.

    Returns:
        Of each: its kind, 'limb' or 'chest'; the sentence; the certainty that it is this one rather
        than none; and whether it is surely this one among all.
    """
    model, found = fitted_electrodes(), []
    halves = (beat.values[:, 0::2] + beat.values[:, 1::2]) / 2
    interval = np.array([median(np.diff(beat.peaks).tolist())])
    outputs = model(network_input(halves[None], interval))
    named = (("limb", LIMB_FAULTS), ("chest", CHEST_FAULTS))
    for (kind, sentences), chances in zip(named, outputs, strict=True):
        number = 1 + int(chances[0, 1:].argmax())
        certainty = float(chances[0, number] / (chances[0, 0] + chances[0, number]))
        if certainty > float(model.weights[f"{kind}.least"][number]):
            found.append((kind, sentences[number], certainty, bool(chances[0, number] > _SURE)))
    return found


_SECONDS = 30.0  # of a long recording
_STILL = 0.02  # mV, the height of a beat of a lead that is off
_SAME = 0.002  # the difference of two leads, of the larger
_LIMBS = {"I": (1.0, 0.0), "II": (0.0, 1.0), **LIMB_LEADS}
_FOLLOWS, _APART = 0.05, 0.2  # squared differences from the equations, of the whole
_CERTAIN = 0.95  # from which a lead is turned over, if asked for
_USUAL_MV, _SPREAD = 0.95, 0.33  # height of the median lead's beat; of its logarithm
_GAIN = 0.999  # certainty
# By how much the logarithm of a chest lead's height is off: standard deviations, and in all.
_CHEST_GAIN = 4.0, 1.6
_SPIKE_HZ = 240.0  # slower rates have no pacing spikes
_SPIKE_MV, _SPIKE_RATIO, _SPIKE_SHARE = 0.3, 0.8, 0.8
_SPIKE_MS = (6, 18)
_MOST_CORRECTIONS = 3


@dataclass(frozen=True)
class Correction:
    """What undoes a fault: each lead from one lead of the recording, times a factor.

    Attributes:
        sentence: What is done, such as 'left and right arm were swapped back'.
        taken: Leads by the leads that take their place; a lead that is not named stays.
        factors: Of leads by their corrected names; 1 for a lead that is not named.
    """

    sentence: str
    taken: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)

    def apply(self, recording: Recording) -> Recording:
        """The corrected recording, with a note that says so."""
        wanted = recording.leads
        if self.taken:
            moved = {new: old for old, new in self.taken.items()}
            whole = recording.with_limb_leads()
            gaps = tuple(replace(gap, lead=moved.get(gap.lead, gap.lead)) for gap in whole.gaps)
            recording = replace(
                whole, leads=tuple(moved.get(one, one) for one in whole.leads), gaps=gaps
            ).select(wanted)
        factors = np.array([self.factors.get(lead, 1.0) for lead in wanted])
        turned = factors < 0
        digital, baseline = recording.digital.copy(), recording.baseline.copy()
        digital[turned] = -np.maximum(digital[turned], -32767)
        baseline[turned] = -baseline[turned]
        return replace(
            recording,
            digital=digital,
            baseline=baseline,
            gain=recording.gain / np.abs(factors),
            extra=noted(recording.extra, f"corrected: {self.sentence}"),
        )


_ARMS = Correction(
    "left and right arm were swapped back",
    {"II": "III", "III": "II", "aVR": "aVL", "aVL": "aVR"},
    {"I": -1.0},
)


def _turned(lead: str) -> Correction:
    return Correction(f"{lead} was turned over", factors={lead: -1.0})


@dataclass(frozen=True)
class Finding:
    """Something in a recording that may be wrong.

    Attributes:
        kind: 'limb', 'chest', 'inverted', 'twice', 'equations', 'gain', 'flat' or 'paced'.
        sentence: What it may be, such as 'left and right arm may be swapped'.
        certainty: From 0 to 1, if half of all recordings had a fault.
        leads: Those that the fault is in.
        correction: What undoes it, where that is certain.
    """

    kind: str
    sentence: str
    certainty: float
    leads: tuple[str, ...] = ()
    correction: Correction | None = None


def examine(recording: Recording, *, correct: bool = False) -> tuple[Recording, list[Finding]]:
    """The recording, and what may be wrong with it; corrected where asked for and certain.

    A corrected recording has a note on each correction, and the findings are those that remain.
    """
    found = check(recording)
    for _ in range(_MOST_CORRECTIONS if correct else 0):
        fix = next((one.correction for one in found if one.correction), None)
        if fix is None:
            break
        recording = fix.apply(recording)
        found = check(recording)
    return recording, found


def doubt(
    findings: Collection[Finding], leads: Collection[str], *, in_mv: bool = False
) -> str | None:
    """Why what a model makes of these leads would not hold; None where it would.

    Models know of flat leads, and see frames of a fixed size, whatever the gain, unless they take
    mV (`in_mv`).
    """
    known = ("flat",) if in_mv else ("flat", "gain")
    words = [one.sentence for one in findings if one.kind not in known and {*one.leads} & {*leads}]
    return "; ".join(words) or None


def check(recording: Recording) -> list[Finding]:
    """What may be wrong with the electrodes and units of a recording, most certain first.

    Args:
        recording: With any leads. Swapped electrodes need I, II and V1 to V6, and equations three
            limb leads. The first 30 s are looked at.

    Returns:
        Nothing where nothing was found, or fewer than three beats.
    """
    part = recording.between(0, min(recording.samples, round(_SECONDS * recording.rate)))
    signal = _signal(part)
    beat = typical_beat(signal, part.rate)
    if beat is None:
        return []
    height = dict(zip(part.leads, np.ptp(beat.values, axis=1).tolist(), strict=True))
    rows = zip(part.leads, beat.values, strict=True)
    waves = {lead: wave for lead, wave in rows if height[lead] > _STILL}
    in_mv = part.unit == "mV"
    whole = _gain(height) if in_mv else []
    found = _twice(waves) + (_spikes(signal, part, beat) if in_mv and not whole else [])
    still = [lead for lead in part.leads if lead not in waves]
    found += _flat(still) if in_mv and waves and not whole else []
    limbs = _equations({lead: wave for lead, wave in waves.items() if lead in _LIMBS})
    logs = {lead: math.log(height[lead]) for lead in waves if lead in CHEST}
    chest = _chest_gain(logs) if in_mv and not whole else []
    found += whole + limbs + chest
    twice = any(one.kind == "twice" for one in found)  # shapes then say nothing of electrodes
    if not (limbs or chest or twice) and waves.keys() >= {*LEADS}:
        places = [part.leads.index(lead) for lead in LEADS]
        some = replace(beat, values=beat.values[places])
        found += [_electrodes(*one, part.leads) for one in swapped_electrodes(some)]
    return sorted(found, key=lambda one: -one.certainty)


def _signal(recording: Recording) -> Array:
    """(leads, samples) in its unit, 0 in gaps; of fewer digits than `Recording.signal`."""
    zero, step = recording.baseline[:, None], 1 / recording.gain[:, None]
    signal = (recording.digital - zero.astype(np.float32)) * step.astype(np.float32)
    for gap in recording.gaps:
        signal[recording.leads.index(gap.lead), gap.start : gap.stop] = 0
    return np.asarray(signal)


def _flat(leads: list[str]) -> list[Finding]:
    named = f"{', '.join(leads)} {'is' if len(leads) == 1 else 'are'} flat"
    return [Finding("flat", named, 1.0, tuple(leads))] if leads else []


def _electrodes(
    kind: str, sentence: str, certainty: float, sure: bool, leads: tuple[str, ...]
) -> Finding:
    """A finding of the network; `sure` if it is certain of this fault among all."""
    fix = None
    if sure and sentence.startswith("left and right arm"):
        fix = _ARMS
    elif sure and sentence in {f"{lead} may be inverted" for lead in CHEST}:
        fix = _turned(sentence[:2])
    limbs = tuple(lead for lead in leads if lead in _LIMBS)
    chest = tuple(lead for lead in CHEST if lead in sentence)
    if "right leg" in sentence:  # it is part of the chest leads' zero
        limbs, chest = leads, CHEST
    return Finding(kind, sentence, certainty, limbs if kind == "limb" else chest or CHEST, fix)


def _twice(waves: dict[str, Array]) -> list[Finding]:
    if len(waves) < 2:
        return []
    given, names = np.array(list(waves.values())), list(waves)
    size = np.sqrt((given**2).mean(axis=1))
    one, other = pairs(len(names))
    limit = _SAME * np.maximum(size[one], size[other])
    near = np.flatnonzero(np.abs(size[one] - size[other]) < limit)  # the rest differ by more
    apart = np.sqrt(((given[one[near]] - given[other[near]]) ** 2).mean(axis=1))
    near = near[apart < limit[near]]
    if len(near) > 3:
        same = {names[place] for place in (*one[near], *other[near])}
        return [Finding("twice", "many leads are the same", 1.0, tuple(same))]
    both = [(names[one[k]], names[other[k]]) for k in near]
    return [Finding("twice", f"{a} and {b} are the same lead", 1.0, (a, b)) for a, b in both]


def _equations(waves: dict[str, Array]) -> list[Finding]:
    """Whether limb leads follow from each other, and which one does not."""
    if len(waves) < 3:
        return []
    apart, _ = _residual(waves)
    if len(waves) > 3:
        left = {lead: _residual({k: waves[k] for k in waves if k != lead}) for lead in waves}
        lead = min(left, key=lambda one: left[one][0])  # without it, the others agree most
        rest, sources = left[lead]
        expected, own = np.array(_LIMBS[lead]) @ sources, waves[lead]
        power = max(float((expected**2).sum()), 1e-12)
        times = float((expected * own).sum()) / power
        alike = times**2 * power / max(float((own**2).sum()), 1e-12)
        clear = rest < _FOLLOWS and alike > 1 - _APART
        if clear and times < 0:
            fix = _turned(lead) if alike > _CERTAIN and -2 < times < -0.5 else None
            return [Finding("inverted", f"{lead} may be inverted", alike, (lead,), fix)]
        if clear and not 0.2 < times < 5:
            size = f"the other leads make it {_ratio(times)}"
            return [Finding("gain", f"{lead} may have a wrong gain: {size}", alike, (lead,))]
        if rest < _FOLLOWS < apart:
            return [_broken(f"{lead} does not follow from the other limb leads", apart, (lead,))]
    if apart < _FOLLOWS:
        return []
    sentence = "limb leads contradict each other: they may be wrongly named"
    if {"I", "II", "III"} <= waves.keys():
        sentence = "III is not II − I: leads may be wrongly named"
    return [_broken(sentence, apart, tuple(waves))]


def _broken(sentence: str, apart: float, leads: tuple[str, ...]) -> Finding:
    return Finding("equations", sentence, min(1.0, 0.5 + apart), leads)


def _residual(waves: dict[str, Array]) -> tuple[float, Array]:
    """What limb leads differ from the equations, of the whole; and I and II by least squares."""
    if len(waves) < len(LIMB_SOURCES):
        return 0.0, np.zeros((2, 0))
    basis, inverse = _limb_equations(tuple(waves))
    given = np.array(list(waves.values()))
    sources = inverse @ given
    apart = ((given - basis @ sources) ** 2).sum() / max(float((given**2).sum()), 1e-12)
    return float(apart), sources


@cache
def _limb_equations(leads: tuple[str, ...]) -> tuple[Array, Array]:
    """What makes these leads of I and II, and I and II of these leads by least squares."""
    basis = np.array([_LIMBS[lead] for lead in leads])
    return basis, np.linalg.pinv(basis)


def _ratio(times: float) -> str:
    return f"{times:.2g} times too large" if times > 1 else f"{1 / times:.2g} times too small"


def _gain(height: dict[str, float]) -> list[Finding]:
    """Whether beats are ten times or more as high or low as is usual."""
    alive = [mv for mv in height.values() if mv > 0]
    apart = math.log(median(alive) / _USUAL_MV) if alive else 0.0
    if abs(apart) < np.log(10) / 2:
        return []
    times = np.log(10) * np.arange(-4, 5)
    chance = np.exp(-0.5 * np.minimum(((apart - times) / _SPREAD) ** 2, 1400))
    certainty = 1 - chance[4] / max(chance.sum(), 1e-300)
    if certainty < _GAIN:
        return []
    power = max(1, round(abs(apart) / np.log(10)))
    size = f"{10**power:,} times too {'large' if apart > 0 else 'small'}"
    sentence = f"amplitudes are about {size}: the gain or unit may be wrong"
    factor = 10.0 ** (-power if apart > 0 else power)
    words = f"amplitudes were {'divided' if apart > 0 else 'multiplied'} by {10**power:,}"
    fix = Correction(words, factors=dict.fromkeys(height, factor))
    return [Finding("gain", sentence, float(certainty), tuple(height), fix)]


def _chest_gain(height: dict[str, float]) -> list[Finding]:
    """The chest lead whose height the others least explain, of logarithms of mV."""
    if len(height) < 4:
        return []
    usual, rows = fitted_electrodes().weights, [CHEST.index(lead) for lead in height]
    precision = np.linalg.inv(usual["height.covariance"][np.ix_(rows, rows)])
    apart = precision @ (np.array([*height.values()]) - usual["height.mean"][rows])
    unlikely = np.abs(apart) / np.sqrt(np.diag(precision))
    worst = int(unlikely.argmax())
    times, lead = float(apart[worst] / precision[worst, worst]), [*height][worst]
    if unlikely[worst] < _CHEST_GAIN[0] or abs(times) < _CHEST_GAIN[1]:
        return []
    size = f"beside other chest leads it is {_ratio(math.exp(times))}"
    return [Finding("gain", f"{lead} may have a wrong gain: {size}", 0.9, (lead,))]


def _spikes(signal: Array, recording: Recording, beat: TypicalBeat) -> list[Finding]:
    """Whether most beats have a spike of a pacemaker."""
    rate = recording.rate
    if rate < _SPIKE_HZ:
        return []
    narrow, wide = (max(1, round(ms * rate / 1000)) for ms in _SPIKE_MS)
    change = signal[:, narrow:] - signal[:, :-narrow]
    up, down = change > _SPIKE_MV, change < -_SPIKE_MV
    peaks = (up[:, :-narrow] & down[:, narrow:]) | (down[:, :-narrow] & up[:, narrow:])
    lead, at = np.divmod(np.flatnonzero(peaks), peaks.shape[1])
    inside = (at >= wide - narrow) & (at < peaks.shape[1] + narrow - wide)
    lead, at = lead[inside], at[inside] + narrow
    height, around = (_rise(signal, lead, at, width) for width in (narrow, wide))
    sharp = height > _SPIKE_RATIO * around
    lead, at, height = lead[sharp], at[sharp], height[sharp]
    if not len(at):
        return []
    noise = np.zeros(len(signal))
    for one in {*lead.tolist()}:
        noise[one] = 12 * np.median(np.abs(np.diff(signal[one])))
    count = np.bincount(at[height > noise[lead]], minlength=signal.shape[1])
    together = count >= min(2, len(signal))
    times = np.flatnonzero(np.diff(together, prepend=False) & together) / rate
    before = beat.peaks[:, None] - times
    near = ((before > -0.05) & (before < 0.35)).any(axis=1)
    share = float(np.mean(near))
    if share < _SPIKE_SHARE:
        return []
    sentence = "spikes before most beats: a pacemaker may be at work"
    return [Finding("paced", sentence, share, recording.leads)]


def _rise(signal: Array, lead: Any, at: Any, width: int) -> Array:
    """By how much these samples rise over, or fall below, both sides, `width` samples away."""
    left = signal[lead, at] - signal[lead, at - width]
    right = signal[lead, at] - signal[lead, at + width]
    return np.asarray(np.where(left * right > 0, np.minimum(abs(left), abs(right)), 0))

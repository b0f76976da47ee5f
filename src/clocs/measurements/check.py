"""`clocs.check`: faults of electrodes and units, told by what an ECG must look like.

Limb leads obey equations, so that a lead that is inverted, scaled or wrongly named shows. The other
faults are told by what is usual: heights of beats, and their shapes (`electrodes.py`). Limits were
chosen on validation patients (benchmarks/electrodes.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from clocs.measurements.beats import TypicalBeat, typical_beat
from clocs.measurements.electrodes import CHEST, LEADS, swapped_electrodes
from clocs.recording import LIMB_LEADS, LIMB_SOURCES, Recording

Array = NDArray[np.float64]
_SECONDS = 30.0  # of a long recording
_STILL = 0.02  # mV, the height of a beat of a lead that is off
_SAME = 0.002  # the difference of two leads, of the larger
_LIMBS = {"I": (1.0, 0.0), "II": (0.0, 1.0), **LIMB_LEADS}
_FOLLOWS, _APART = 0.05, 0.2  # squared differences from the equations, of the whole
_USUAL_MV, _SPREAD = 0.95, 0.33  # height of the median lead's beat; of its logarithm
_GAIN = 0.999  # certainty
# By how much the logarithm of a chest lead's height is below and above that of the others.
_CHEST_GAIN = {"V1": (-3.2, 1.8)}
_CHEST_GAIN_ELSE = (-2.2, 1.8)
_SPIKE_HZ = 240.0  # slower rates have no pacing spikes
_SPIKE_MV, _SPIKE_RATIO, _SPIKE_SHARE = 0.3, 0.8, 0.8
_SPIKE_MS = (6, 18)


@dataclass(frozen=True)
class Finding:
    """Something in a recording that may be wrong.

    Attributes:
        kind: 'limb', 'chest', 'inverted', 'twice', 'equations', 'gain' or 'paced'.
        sentence: What it may be, such as 'left and right arm may be swapped'.
        certainty: From 0 to 1, if half of all recordings had a fault.
    """

    kind: str
    sentence: str
    certainty: float


def check(recording: Recording) -> list[Finding]:
    """What may be wrong with the electrodes and units of a recording, most certain first.

    Args:
        recording: With any leads. Swapped electrodes need I, II and V1 to V6, and equations three
            limb leads. The first 30 s are looked at.

    Returns:
        Nothing where nothing was found, or fewer than three beats.
    """
    part = recording.between(0, min(recording.samples, round(_SECONDS * recording.rate)))
    signal = np.nan_to_num(part.signal)
    beat = typical_beat(signal, part.rate)
    if beat is None:
        return []
    height = np.ptp(beat.values, axis=1)
    alive = [lead for lead, mv in zip(part.leads, height, strict=True) if mv > _STILL]
    waves = {lead: beat.values[part.leads.index(lead)] for lead in alive}
    found = _twice(waves) + (_spikes(signal, part.rate, beat) if part.unit == "mV" else [])
    whole = _gain(height) if part.unit == "mV" else []
    limbs = _equations({lead: wave for lead, wave in waves.items() if lead in _LIMBS})
    chest = _chest_gain({lead: wave for lead, wave in waves.items() if lead in CHEST})
    found += whole + limbs + chest
    twice = any(one.kind == "twice" for one in found)  # shapes then say nothing of electrodes
    if not (limbs or chest or twice) and set(LEADS) <= {*part.leads}:
        places = [part.leads.index(lead) for lead in LEADS]
        some = TypicalBeat(beat.values[places], beat.peaks, beat.spread[places])
        found += [Finding(*one) for one in swapped_electrodes(some)]
    return sorted(found, key=lambda one: -one.certainty)


def _twice(waves: dict[str, Array]) -> list[Finding]:
    same = []
    for (one, a), (other, b) in combinations(waves.items(), 2):
        larger = max(np.sqrt((a**2).mean()), np.sqrt((b**2).mean()))
        if np.sqrt(((a - b) ** 2).mean()) < _SAME * larger:
            same.append(f"{one} and {other}")
    if len(same) > 3:
        return [Finding("twice", "many leads are the same", 1.0)]
    return [Finding("twice", f"{pair} are the same lead", 1.0) for pair in same]


def _equations(waves: dict[str, Array]) -> list[Finding]:
    """Whether limb leads follow from each other, and which one does not."""
    apart, _ = _residual(waves)
    if len(waves) < 3 or apart < _FOLLOWS:
        return []
    for lead in waves if len(waves) > 3 else ():
        others = {name: wave for name, wave in waves.items() if name != lead}
        rest, sources = _residual(others)
        if rest > _FOLLOWS:
            continue
        expected = np.array(_LIMBS[lead]) @ sources
        power, own = float((expected**2).sum()), waves[lead]
        times = float((expected * own).sum()) / max(power, 1e-12)
        alike = times**2 * power / max(float((own**2).sum()), 1e-12)
        if alike > 1 - _APART and times < 0:
            return [Finding("inverted", f"{lead} may be inverted", alike)]
        if alike > 1 - _APART and not 0.2 < times < 5:
            sentence = f"{lead} may have a wrong gain: the other leads make it {_ratio(times)}"
            return [Finding("gain", sentence, alike)]
        return [_broken(f"{lead} does not follow from the other limb leads", apart)]
    names = ("III", "II", "I") if {"I", "II", "III"} <= waves.keys() else tuple(waves)
    if names == ("III", "II", "I"):
        return [_broken("III is not II − I: leads may be wrongly named", apart)]
    return [_broken("limb leads contradict each other: they may be wrongly named", apart)]


def _broken(sentence: str, apart: float) -> Finding:
    return Finding("equations", sentence, min(1.0, 0.5 + apart))


def _residual(waves: dict[str, Array]) -> tuple[float, Array]:
    """What limb leads differ from the equations, of the whole; and I and II by least squares."""
    if len(waves) < len(LIMB_SOURCES):
        return 0.0, np.zeros((2, 0))
    basis, given = np.array([_LIMBS[lead] for lead in waves]), np.array(list(waves.values()))
    sources = np.linalg.lstsq(basis, given, rcond=None)[0]
    apart = ((given - basis @ sources) ** 2).sum() / max(float((given**2).sum()), 1e-12)
    return float(apart), sources


def _ratio(times: float) -> str:
    return f"{times:.2g} times too large" if times > 1 else f"{1 / times:.2g} times too small"


def _gain(height: Array) -> list[Finding]:
    """Whether beats are ten times or more as high or low as is usual."""
    alive = height[height > 0]
    if not len(alive):
        return []
    apart = np.log(float(np.median(alive)) / _USUAL_MV)
    times = np.array([0, *(k * np.log(10) for k in (-4, -3, -2, -1, 1, 2, 3, 4))])
    chance = np.exp(-0.5 * np.minimum(((apart - times) / _SPREAD) ** 2, 1400))
    certainty = 1 - chance[0] / max(chance.sum(), 1e-300)
    if abs(apart) < np.log(10) / 2 or certainty < _GAIN:
        return []
    power = max(1, round(abs(apart) / np.log(10)))
    size = f"{10**power:,} times too {'large' if apart > 0 else 'small'}"
    sentence = f"amplitudes are about {size}: the gain or unit may be wrong"
    return [Finding("gain", sentence, float(certainty))]


def _chest_gain(waves: dict[str, Array]) -> list[Finding]:
    if len(waves) < 4:
        return []
    height = {lead: float(np.log(np.ptp(wave))) for lead, wave in waves.items()}
    found = []
    for lead, own in height.items():
        apart = own - float(np.median([mv for name, mv in height.items() if name != lead]))
        low, high = _CHEST_GAIN.get(lead, _CHEST_GAIN_ELSE)
        if not low < apart < high:
            size = _ratio(float(np.exp(apart)))
            sentence = f"{lead} may have a wrong gain: beside other chest leads it is {size}"
            found.append(Finding("gain", sentence, 0.9))
    return found


def _spikes(signal: Array, rate: float, beat: TypicalBeat) -> list[Finding]:
    """Whether most beats have a spike of a pacemaker."""
    if rate < _SPIKE_HZ:
        return []
    narrow, wide = (_spike_height(signal, max(1, round(ms * rate / 1000))) for ms in _SPIKE_MS)
    noise = 12 * np.median(np.abs(np.diff(signal, axis=1)), axis=1)[:, None]
    is_spike = (narrow > np.maximum(_SPIKE_MV, noise)) & (narrow > _SPIKE_RATIO * wide)
    together = is_spike.sum(axis=0) >= min(2, len(signal))
    times = np.flatnonzero(np.diff(together, prepend=False) & together) / rate
    near = [bool(((t - times > -0.05) & (t - times < 0.35)).any()) for t in beat.peaks]
    share = float(np.mean(near))
    if share < _SPIKE_SHARE:
        return []
    return [Finding("paced", "spikes before most beats: a pacemaker may be at work", share)]


def _spike_height(signal: Array, width: int) -> Array:
    """(leads, samples) by how much each sample rises over both sides, `width` samples away."""
    made = np.zeros_like(signal)
    middle = signal[:, width:-width]
    left, right = middle - signal[:, : -2 * width], middle - signal[:, 2 * width :]
    made[:, width:-width] = np.where(left * right > 0, np.minimum(abs(left), abs(right)), 0)
    return made

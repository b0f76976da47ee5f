"""Swapped electrodes and inverted chest leads, told from the typical beat of a recording.

A small network sees the beat in I, II and V1 to V6 and how much every two of them resemble each
other; one of its outputs is on the limb electrodes, one on the chest leads. It was fitted on
recordings that were swapped on purpose (benchmarks/electrodes.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from clocs.measurements.beats import TypicalBeat

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
        Of each: its kind, 'limb' or 'chest'; the sentence; the certainty that there is one; and
        whether it is surely this one.
    """
    model = fitted_electrodes()
    halves = (beat.values[:, 0::2] + beat.values[:, 1::2]) / 2
    interval = np.array([median(np.diff(beat.peaks).tolist())])
    found = []
    outputs = model(network_input(halves[None], interval))
    named = (("limb", LIMB_FAULTS), ("chest", CHEST_FAULTS))
    for (kind, sentences), chances in zip(named, outputs, strict=True):
        certainty = 1 - float(chances[0, 0])
        number = 1 + int(chances[0, 1:].argmax())
        if certainty > float(model.weights[f"{kind}.least"][number]):
            sure = float(chances[0, number]) > _SURE
            found.append((kind, sentences[number], certainty, sure))
    return found

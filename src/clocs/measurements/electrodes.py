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

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from clocs.measurements.beats import TypicalBeat
from clocs.recording import LIMB_LEADS

Array = NDArray[np.float64]
LEADS = ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6")
CHEST = LEADS[2:]
_SURE = 0.9  # probability of a fault from which it may be corrected
_ARMS, _RIGHT, _LEFT = (-1, 0, -1, 1), (1, -1, 0, -1), (0, 1, 1, 0)
# What I and II become, in terms of I and II: as (I of I, II of I, I of II, II of II).
LIMB_FAULTS = {
    "": (1, 0, 0, 1),
    "left and right arm may be swapped": _ARMS,
    "right arm and left leg may be swapped": _RIGHT,
    "left arm and left leg may be swapped": _LEFT,
    "the electrodes of both arms and the left leg may be rotated": (-1, 1, -1, 0),
    "the electrodes of both arms and the left leg may be rotated the other way": (0, -1, 1, -1),
    "right arm and right leg may be swapped": (1, -1, 0, 0),
    "left arm and right leg may be swapped": (0, 1, 0, 1),
    "the limb leads may be inverted": (-1, 0, 0, -1),
}
# What is taken from each chest lead, in I and II, where the right leg replaces an arm.
_CENTRAL = {
    "right arm and right leg may be swapped": (0, 1 / 3),
    "left arm and right leg may be swapped": (-1 / 3, 1 / 3),
}


def _chest_faults() -> dict[str, Array]:
    """Sentence -> (6, 6): what V1 to V6 become."""
    right = np.eye(6)
    found = {"": right}
    for i, j in combinations(range(6), 2):
        swapped = right.copy()
        swapped[[i, j]] = right[[j, i]]
        found[f"V{i + 1} and V{j + 1} may be swapped"] = swapped
    found["the chest leads may be in reverse order, V6 to V1"] = right[::-1].copy()
    found["the chest leads may be shifted by one, V2 to V6 in place of V1"] = np.roll(right, -1, 0)
    found["the chest leads may be shifted by one, V1 in place of V2"] = np.roll(right, 1, 0)
    for i in range(6):
        inverted = right.copy()
        inverted[i] *= -1
        found[f"V{i + 1} may be inverted"] = inverted
    found["the chest leads may be inverted"] = -right
    return found


CHEST_FAULTS = _chest_faults()


def fault_matrix(limb: str, chest: str) -> Array:
    """(8, 8): what LEADS become with these faults; of the right leg, as if it were the left."""
    made = np.zeros((8, 8))
    made[:2, :2] = np.reshape(LIMB_FAULTS[limb], (2, 2))
    made[2:, 2:] = CHEST_FAULTS[chest]
    made[2:, :2] = -CHEST_FAULTS[chest] @ np.tile(_CENTRAL.get(limb, (0, 0)), (6, 1))
    return made


def with_fault(signal: Array, limb: str, chest: str) -> Array:
    """(12, samples) of the standard leads -> the same, recorded with these faults."""
    derived = np.array([(1, 0), (0, 1), *LIMB_LEADS.values()])
    eight = fault_matrix(limb, chest) @ signal[[0, 1, *range(6, 12)]]
    # what file leads hold beyond I and II, such as rounding, stays out: it would give swaps away
    return np.concatenate([derived @ eight[:2], eight[2:]])


def network_input(beats: Array, interval: Array) -> Array:
    """beats: (n, 8, 100) of LEADS at 125 Hz, interval: (n,) s between beats -> (n, inputs)."""
    scale = np.sqrt((beats**2).mean(axis=(1, 2), keepdims=True))
    beats = beats / np.maximum(scale, 1e-6)
    size = np.sqrt((beats**2).mean(axis=2))
    parts = [_alike(beats[:, :, some]) for some in (slice(30, 45), slice(45, 100), slice(10, 30))]
    rest = (np.clip(interval, 0.2, 2.0) * 2 - 1.5)[:, None].astype(beats.dtype)
    waves = np.arcsinh(2 * beats).reshape(len(beats), -1)
    return np.concatenate([waves, np.log(size + 0.03), *parts, rest], axis=1)


def _alike(waves: Array) -> Array:
    """(n, leads, samples) -> (n, pairs) correlations."""
    waves = waves - waves.mean(axis=2, keepdims=True)
    norm = np.maximum(np.sqrt((waves**2).sum(axis=2)), 1e-3)
    made = waves @ waves.transpose(0, 2, 1) / (norm[:, :, None] * norm[:, None])
    return np.asarray(made[:, *np.triu_indices(waves.shape[1], 1)])


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
    interval = np.array([np.median(np.diff(beat.peaks))])
    found = []
    outputs = model(network_input(halves[None], interval))
    named = (("limb", list(LIMB_FAULTS)), ("chest", list(CHEST_FAULTS)))
    for (kind, sentences), chances in zip(named, outputs, strict=True):
        certainty = 1 - float(chances[0, 0])
        number = 1 + int(chances[0, 1:].argmax())
        if certainty > float(model.weights[f"{kind}.least"][number]):
            sure = float(chances[0, number]) > _SURE
            found.append((kind, sentences[number], certainty, sure))
    return found

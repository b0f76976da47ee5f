"""The embedded dataset: simulated 12-lead ECGs, for demonstrations, tests and trying things out.

It has no source: a recording is a function of its options, its patient's number and its own.
This module draws the patients; `simulator` computes their signals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.random import Generator

from clocs.datasets.base import DatasetDefaults, DatasetRow, Entry, Listing
from clocs.datasets.simulator import (
    ATRIAL,
    DOWER,
    QRS,
    ST,
    N,
    P,
    Patient,
    Rhythm,
    rotation,
    simulate,
    stream,
)
from clocs.errors import SourceError
from clocs.recording import STANDARD_LEADS, FrameSpec, Recording
from clocs.registry import Option

GAIN = 1000.0  # steps per mV: 1 µV each, and a range of ±32 mV
_DATES = 2**31  # the random stream of a patient's visits, beyond those of recordings
_VERSION = 2  # raise it whenever the same options give other signals
OPTIONS = (
    Option("patients", 1000, "Number of simulated patients", minimum=1),
    Option("recordings", 2, "Recordings per simulated patient", minimum=1),
    Option("seed", 0, "Random seed of the simulation", minimum=0),
    Option("seconds", 10.0, "Seconds of a simulated recording", minimum=1, maximum=86_400),
    Option("rate", 500.0, "Sampling rate of the simulation in Hz", minimum=100, maximum=10_000),
)


RHYTHMS: Final = (
    Rhythm("SR", 0.35, mean=76, spread=10, slowest=60, fastest=100, age=55),
    Rhythm("SB", 0.25, mean=52, spread=4, slowest=38, fastest=60, age=57),
    Rhythm("SVT", 0.20, mean=178, spread=16, slowest=150, fastest=220, age=50),
    Rhythm("AFIB", 0.20, mean=98, spread=22, slowest=55, fastest=160, age=70),
)
# A typical heart, in the order of `WAVES`: amplitude x, y, z (mV), center after R and width (s).
_AMPLITUDE: Final = np.array(
    [
        [0.02, 0.085, -0.05],
        [0.06, 0.065, 0.04],
        [-0.15, 0.02, -0.26],
        [0.98, 0.64, -0.05],
        [0.52, 0.32, 0.72],
        [-0.24, -0.10, 0.42],
        [0.0, 0.0, 0.0],
        [0.010, 0.006, -0.008],
        [0.25, 0.17, -0.15],
    ]
)
_CENTER: Final = np.array([-0.155, -0.120, -0.024, 0.0, 0.014, 0.031, 0.0, 0.0, 0.0])
_WIDTH: Final = np.array([0.019, 0.021, 0.0075, 0.0090, 0.0095, 0.0090, 0.006, 0.040, 0.042])


@dataclass(frozen=True)
class Synthetic(DatasetDefaults):
    """Simulated patients with one of four rhythms each, which all their recordings share.

    Recording k of patient p depends on the seed, p, k, `seconds` and `rate` alone: neither the
    number of patients nor the order of reading changes it.

    Attributes:
        patients: How many, P00001 onwards.
        seed: Of all random numbers.
        recordings: Per patient.
        seconds: Per recording.
        rate: In Hz.
    """

    name = "synthetic"
    labels = tuple(rhythm.label for rhythm in RHYTHMS)
    frame = FrameSpec(5.0, 2500)
    segment_frame = FrameSpec(5.0, 2500)

    patients: int = 1000
    seed: int = 0
    recordings: int = 2
    seconds: float = 10.0
    rate: float = 500.0

    def __post_init__(self) -> None:
        for option in OPTIONS:
            option.checked(getattr(self, option.name))

    @property
    def settings(self) -> Mapping[str, str]:
        return {option.name: str(getattr(self, option.name)) for option in fields(self)}

    def list(self) -> Listing:
        """Every recording, patient by patient; nothing is simulated yet."""
        entries = tuple(
            Entry(id=f"{patient}-{k}", patient=patient, path=f"{p}/{k}")
            for p in range(1, self.patients + 1)
            for patient in (f"P{p:05d}",)
            for k in range(1, self.recordings + 1)
        )
        described = f"{self.name} {_VERSION} {sorted(self.settings.items())}"
        return Listing(entries, fingerprint=hashlib.sha256(described.encode()).hexdigest())

    def patient(self, number: int) -> Patient:
        """Patient `number`, from 1, with what the recordings do not show."""
        return _patient(self.seed, number)

    def read(self, entry: Entry) -> Recording:
        """Simulate one entry of `list()`."""
        p, k = self._numbers(entry)
        patient = self.patient(p)
        heart, noise = simulate(
            patient, stream(self.seed, p, k), seconds=self.seconds, rate=self.rate
        )
        noise += heart
        noise *= GAIN
        digital = np.rint(noise, out=noise).clip(-32767, 32767).astype(np.int16)
        return Recording(
            id=entry.id,
            patient=entry.patient,
            leads=STANDARD_LEADS,
            rate=self.rate,
            digital=digital,
            gain=np.full(len(STANDARD_LEADS), GAIN),
            baseline=np.zeros(len(STANDARD_LEADS), np.int32),
            labels=(patient.rhythm.label,),
            age=patient.age,
            sex=patient.sex,
            taken=_visit(self.seed, p, k).isoformat(),
        )

    def _numbers(self, entry: Entry) -> tuple[int, int]:
        """The patient's and the recording's number, from 1."""
        p, _, k = entry.path.partition("/")
        if not (p.isdecimal() and k.isdecimal() and int(p) >= 1 and int(k) >= 1):
            raise SourceError(
                f"{entry.path!r} is not a simulated recording; expected PATIENT/RECORDING, "
                "two numbers from 1, as list() gives them"
            )
        return int(p), int(k)


@lru_cache(maxsize=64)  # a patient's recordings are usually read one after the other
def _patient(seed: int, number: int) -> Patient:
    return draw_patient(stream(seed, number, 0))


def _visit(seed: int, patient: int, visit: int) -> datetime:
    """The date of a patient's recording: usually months apart, sometimes years."""
    rng = stream(seed, patient, _DATES)
    first = datetime(2015, 1, 1) + timedelta(minutes=int(rng.integers(3 * 365 * 24 * 60)))
    gaps = rng.lognormal(np.log(120), 1.2, size=visit - 1)  # days
    return first + timedelta(minutes=int(gaps.sum() * 24 * 60))


def draw_patient(rng: Generator) -> Patient:
    """A random patient: the rhythm by its share, the morphology mostly independent of it."""
    place = float(rng.random())
    shares = np.cumsum([rhythm.share for rhythm in RHYTHMS])
    rhythm = RHYTHMS[int(np.searchsorted(shares[:-1], place, "right"))]
    age = float(np.clip(np.rint(rng.normal(rhythm.age, 13)), 18, 95))
    female = bool(rng.random() < 0.48)
    margin = 0.03 * rhythm.mean  # so that a typical visit stays inside the class
    rate = rng.normal(rhythm.mean, rhythm.spread)
    rate = float(np.clip(rate, rhythm.slowest + margin, rhythm.fastest - margin))

    strength = rng.lognormal(0, [0.15, 0.15, 0.35, 0.1, 0.2, 0.35, 0, 0.8, 0.25])
    amplitude = _AMPLITUDE * strength[:, None]
    size = np.linalg.norm(amplitude, axis=1, keepdims=True)
    amplitude += 0.12 * size * rng.standard_normal(amplitude.shape)
    amplitude[QRS] *= rng.lognormal(-0.06 if female else 0.04, 0.2)
    amplitude[N] = rng.normal(0, 0.09, 3)
    frontal, horizontal = np.clip(rng.normal(0, [13, 13]), -26, 26)
    amplitude[QRS] @= rotation(frontal, horizontal).T
    # The T axis follows that of QRS loosely, the P axis hardly.
    amplitude[ST:] @= rotation(*(0.6 * np.array([frontal, horizontal]) + rng.normal(0, 9, 2))).T
    amplitude[P] @= rotation(*rng.normal(0, 9, 2)).T

    center = _CENTER + rng.normal(0, [0, 0, 0.002, 0, 0.002, 0.002, 0, 0, 0])
    center[P] += np.clip(rng.normal(0, 0.016), -0.035, 0.03) + rng.normal(0, [0.002, 0.004])
    center[N] = rng.uniform(-0.015, 0.040)
    width = _WIDTH * rng.lognormal(0, [0.1, 0.1, 0.1, 0.08, 0.1, 0.12, 0.15, 0.1, 0.12])
    if rhythm.label == "AFIB":
        amplitude[P] = 0.0
    elif rhythm.label == "SVT":  # a circuit through the node drives the atria from below
        amplitude[P] *= [0.6, -0.9, 0.6]
        hidden = rng.random() < 0.5
        center[P] = (0.015 if hidden else rng.uniform(0.075, 0.095)) + np.array([0.0, 0.022])
        width[P] *= 0.75

    field = DOWER * (1 + rng.normal(0, 0.07, DOWER.shape))
    atrial = ATRIAL * rng.lognormal(np.log(0.065), 0.3) * rng.lognormal(0, 0.15, ATRIAL.shape)
    return Patient(
        rhythm=rhythm,
        age=age,
        sex="female" if female else "male",
        rate=rate,
        amplitude=amplitude,
        center=center,
        width=width,
        skew=float(rng.uniform(1.2, 1.7)),
        qtc=float(np.clip(rng.normal(0.412 if female else 0.400, 0.016), 0.36, 0.45)),
        field=field,
        atrial=atrial,
        fibrillation=float(np.clip(rng.normal(6.2, 0.8), 4.5, 8.5)),
        variability=_variability(rhythm, age, rng),
    )


def _variability(rhythm: Rhythm, age: float, rng: Generator) -> float:
    if rhythm.label == "AFIB":
        return float(rng.uniform(0.18, 0.28))
    if rhythm.label == "SVT":
        return 0.004
    return float(np.clip(rng.lognormal(np.log(0.035 - 0.00025 * age), 0.35), 0.004, 0.06))


SYNTHETIC = DatasetRow(
    "synthetic",
    Synthetic,
    options=OPTIONS,
    has_source=False,
)

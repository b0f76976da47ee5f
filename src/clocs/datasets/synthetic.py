"""The embedded dataset: simulated 12-lead ECGs, for demonstrations, tests and trying things out.

It has no source: a recording is a function of its options, its patient's number and its own. A
beating dipole is seen by ten electrodes, in mV. The heart vector is a sum of Gaussian waves in
Frank's coordinates, projected on the leads by Dower's matrix; f-waves have a lead field of their
own, since the atria lie close under V1. A patient persists; a recording adds what changes from
visit to visit.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from typing import Final

import numpy as np
from numpy.random import SFC64, Generator, SeedSequence
from numpy.typing import NDArray

from clocs.datasets import base
from clocs.datasets.base import Dataset, DatasetRow, Entry, Listing
from clocs.recording import STANDARD_LEADS, FrameSpec, Recording

Array = NDArray[np.float32]

_DATA: Final = tomllib.loads((files("clocs.datasets") / "synthetic.toml").read_text("utf-8"))
# Frank's x, y, z, and two sources of f-waves -> I, II, V1 … V6.
DOWER, ATRIAL = np.array(_DATA["dower"]), np.array(_DATA["atrial"]).T
# I, II, V1 … V6 -> the twelve in the standard order; Einthoven's and Goldberger's laws.
_TWELVE: Final = np.zeros((12, 8))
_TWELVE[:6, 0] = 1, 0, -1, -0.5, 1, -0.5
_TWELVE[:6, 1] = 0, 1, 1, -0.5, -0.5, 1
_TWELVE[6:, 2:] = np.eye(6)
# Electrodes RA, LA, LL, V1 … V6 -> I, II, V1 … V6; the chest against Wilson's central terminal.
_ELECTRODES: Final = np.zeros((8, 9))
_ELECTRODES[:2, 0] = -1
_ELECTRODES[:2, 1:3] = np.eye(2)
_ELECTRODES[2:, :3] = -1 / 3
_ELECTRODES[2:, 3:] = np.eye(6)

# The waves of a beat. The two P are the right and the left atrium; Q the septum, R and R' the apex
# and the free wall, S the base; N notches the QRS. The QT interval places ST and T.
WAVES: Final = tuple(row["name"] for row in _DATA["waves"])
_AMPLITUDE, _CENTER, _WIDTH = (
    np.array([row[name] for row in _DATA["waves"]]) for name in ("amplitude", "center", "width")
)
P, QRS, N, ST, T = slice(0, 2), slice(2, 7), 6, 7, 8
_Q_ONSET = 0.042  # s before R: the QT interval starts here


@dataclass(frozen=True, slots=True)
class Rhythm:
    """A rhythm class: its share of the patients, their mean age, and its heart rates per minute."""

    label: str
    share: float
    mean: float
    spread: float
    slowest: float
    fastest: float
    age: float


@dataclass(frozen=True, slots=True)
class Patient:
    """What persists from one recording of a patient to the next.

    Attributes:
        rhythm: The class.
        rate: Resting heart rate, beats per minute.
        amplitude: (waves, 3) mV.
        center: (waves,) s after R.
        width: (waves,) s, of the falling side; the rising side of T is `skew` times wider.
        skew: Asymmetry of T, 1 for none.
        qtc: QT at one beat per second, s.
        field: (8, 3) lead field of I, II, V1 … V6.
        atrial: (8, 2) lead field of the f-waves, mV.
        fibrillation: Dominant frequency of the f-waves, Hz.
        variability: Relative size of the slow changes of RR (or of all of them in AFIB).
    """

    rhythm: Rhythm
    age: float
    sex: str
    rate: float
    amplitude: NDArray[np.float64]
    center: NDArray[np.float64]
    width: NDArray[np.float64]
    skew: float
    qtc: float
    field: NDArray[np.float64]
    atrial: NDArray[np.float64]
    fibrillation: float
    variability: float


GAIN = 1000.0  # ADC counts per mV: 1 µV each, and a range of ±32 mV
_DATES = 2**31  # the random stream of a patient's visits, beyond those of recordings
_VERSION = 2  # raise it whenever the same options give other signals


RHYTHMS: Final = tuple(Rhythm(**row) for row in _DATA["rhythms"])


@dataclass(frozen=True)
class Synthetic(Dataset):
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

    patients: int = base.option(1000, "Number of simulated patients", minimum=1)
    seed: int = base.option(0, "Random seed of the simulation", minimum=0)
    recordings: int = base.option(2, "Recordings per simulated patient", minimum=1)
    seconds: float = base.option(10.0, "Seconds of a recording", minimum=1, maximum=86_400)
    rate: float = base.option(500.0, "Rate of the simulation in Hz", minimum=100, maximum=10_000)

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
        p, k = map(int, entry.path.split("/"))
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
            recorded_at=_visit(self.seed, p, k).isoformat(),
        )


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


def stream(*key: int) -> Generator:
    """The random numbers of a key, independent of any drawn before."""
    return Generator(SFC64(SeedSequence(key)))


def simulate(
    patient: Patient, rng: Generator, *, seconds: float, rate: float
) -> tuple[Array, Array]:
    """The heart's signal and the noise, both (12, samples) in mV; the ECG is their sum.

    Args:
        patient: Whose heart.
        rng: The recording's own random numbers; another stream for each visit.
        seconds: Duration.
        rate: In Hz.
    """
    samples = round(seconds * rate)
    breath = rng.uniform(0.18, 0.33), rng.uniform(0, 2 * np.pi)  # Hz, rad
    field = patient.field * rng.normal(1, 0.02, (8, 1))
    # Chest electrodes are never stuck on the same spot twice: slide each along the row of six.
    slide = np.gradient(field[2:], axis=0) * rng.normal(0, 0.07, (6, 1))
    field[2:] += slide
    vector = _heart_vector(patient, rng, samples, rate, breath)
    heart = (_TWELVE @ field).astype(np.float32) @ vector
    if patient.rhythm.label == "AFIB":
        lead_field = (_TWELVE @ patient.atrial).astype(np.float32)
        heart += lead_field @ _f_waves(patient.fibrillation, rng, samples, rate)
    return heart, _noise(rng, samples, rate, breath)


def rotation(frontal: float, horizontal: float) -> NDArray[np.float64]:
    """(3, 3) rotation of the heart in the frontal and then the horizontal plane, degrees."""
    a, b = np.radians(frontal), np.radians(horizontal)
    front = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    flat = np.array([[np.cos(b), 0, -np.sin(b)], [0, 1, 0], [np.sin(b), 0, np.cos(b)]])
    return np.asarray(flat @ front)


def _intervals(
    patient: Patient, rng: Generator, seconds: float, breath: tuple[float, float]
) -> NDArray[np.float64]:
    """(beats,) RR intervals in s, enough to fill `seconds`."""
    rhythm = patient.rhythm
    visit = patient.rate * rng.lognormal(0, 0.04)
    mean = 60 / float(np.clip(visit, 1.02 * rhythm.slowest, 0.98 * rhythm.fastest))
    if rhythm.label == "AFIB":  # the node lets impulses through at random once it has recovered
        count = int(seconds / 0.28) + 2
        rest = max(0.28, 0.52 * mean)
        shape = ((mean - rest) / (patient.variability * mean)) ** 2
        return np.asarray(rest + rng.gamma(shape, (mean - rest) / shape, count))
    count = int(seconds * rhythm.fastest / 60) + 2
    time = mean * np.arange(count)
    slow = np.sin(2 * np.pi * breath[0] * time + breath[1] + 0.8)
    slow += 0.5 * np.sin(2 * np.pi * 0.1 * time + rng.uniform(0, 2 * np.pi))
    relative = patient.variability * slow + rng.normal(0, 0.006, count)
    rr = np.clip(mean * (1 + relative), 60 / rhythm.fastest, 60 / rhythm.slowest)
    return np.asarray(rr)


def _heart_vector(
    patient: Patient, rng: Generator, samples: int, rate: float, breath: tuple[float, float]
) -> Array:
    """(3, samples) the heart vector, mV."""
    lead_in = 1.6  # s: beats before the first sample reach into the recording, as do those after
    rr = _intervals(patient, rng, samples / rate + 2 * lead_in, breath)
    peak = np.cumsum(rr) - rr[0] * rng.random() - lead_in
    shown = np.flatnonzero(peak[:-1] < samples / rate + 0.5)
    peak, following = peak[shown], rr[shown + 1]
    beats = len(peak)

    # Fridericia: QT goes with the cube root of RR; it adapts slowly, so half with the mean. The
    # cap keeps T clear of a QRS that comes early.
    adapted = 0.5 * rr[shown] + 0.5 * rr.mean()
    qt = np.minimum(patient.qtc * np.cbrt(adapted), 0.93 * following)
    stretch = (qt / patient.qtc)[:, None]
    center = np.broadcast_to(patient.center, (beats, len(WAVES))).copy()
    width = np.broadcast_to(patient.width, center.shape).copy()
    width[:, ST:] *= stretch
    center[:, T] = qt - _Q_ONSET - 2.1 * width[:, T]
    center[:, ST] = 0.5 * (center[:, T] + 0.05)
    if patient.rhythm.label in ("SR", "SB"):  # PR shortens as the heart speeds up
        center[:, P] *= (0.88 + 0.12 * np.sqrt(adapted))[:, None]

    # Breathing turns the heart a little and changes its distance to the electrodes.
    sway = np.sin(2 * np.pi * breath[0] * peak + breath[1])[:, None, None]
    tilt = rotation(rng.uniform(1, 5), 0) * (1 + rng.uniform(0, 0.05))
    amplitude = patient.amplitude + sway * (patient.amplitude @ tilt.T - patient.amplitude)
    amplitude *= rng.normal(1, 0.012, (beats, len(WAVES), 1))

    pad = int(2 * lead_in * rate)
    vector = np.zeros((3, samples + 2 * pad), np.float32)
    for waves in (P, QRS, slice(ST, None)):  # apart, since their windows are
        part = amplitude[:, waves].astype(np.float32).transpose(0, 2, 1)
        skew = np.where(np.arange(len(WAVES))[waves] == T, patient.skew, 1.0)
        if part.any():
            _add_waves(
                vector, part, center[:, waves], width[:, waves], skew, peak=peak, rate=rate, pad=pad
            )
    return vector[:, pad : pad + samples]


def _add_waves(
    vector: Array,
    amplitude: Array,
    center: NDArray[np.float64],
    width: NDArray[np.float64],
    skew: NDArray[np.float64],
    *,
    peak: NDArray[np.float64],
    rate: float,
    pad: int,
) -> None:
    """Add (beats, 3, waves) amplitudes of Gaussian waves to (3, pad + samples + pad)."""
    # One window per beat, four widths beyond its outermost waves, on the grid of samples.
    reach = 4 * width * skew
    before = int(np.ceil((reach - center).max() * rate)) + 1
    after = int(np.ceil((center + reach).max() * rate)) + 1
    nearest = np.rint(peak * rate).astype(np.int64)
    grid = np.arange(-before, after + 1, dtype=np.float32) / np.float32(rate)
    offset = (center + (peak - nearest / rate)[:, None]).astype(np.float32)
    narrow = (np.sqrt(0.5) / width).astype(np.float32)
    bump = (grid - offset[:, :, None]) * narrow[:, :, None]
    for wave in np.flatnonzero(skew != 1):  # T rises slowly and falls fast
        bump[:, wave] *= np.where(bump[:, wave] < 0, np.float32(1 / skew[wave]), np.float32(1))
    np.square(bump, out=bump)
    np.exp(np.negative(bump, out=bump), out=bump)
    for window, at in zip(amplitude @ bump, nearest + pad - before, strict=True):
        vector[:, at : at + window.shape[1]] += window


def _f_waves(frequency: float, rng: Generator, samples: int, rate: float) -> Array:
    """(2, samples) fibrillation: sawtooth-like waves whose phase and size wander, about 1 high."""
    knots = int(np.ceil(samples / rate * 3)) + 2
    time = np.arange(samples) / rate
    at = np.arange(knots) / 3
    phase = 2 * np.pi * frequency * time + np.stack(
        [np.interp(time, at, np.cumsum(rng.normal(0, 0.9, knots))) for _ in range(2)]
    )
    size = np.stack([np.interp(time, at, rng.uniform(0.45, 1.25, knots)) for _ in range(2)])
    phase, size = phase.astype(np.float32), size.astype(np.float32)
    wave = np.sin(phase) + 0.35 * np.sin(2 * phase + 0.6) + 0.12 * np.sin(3 * phase + 1.1)
    return np.asarray(size * wave, np.float32)


def _noise(rng: Generator, samples: int, rate: float, breath: tuple[float, float]) -> Array:
    """(12, samples) mV: drift, muscle, breathing and mains, each picked up at the electrodes."""
    # Made in the frequency domain, where a band is a slice; longer than needed, because what an
    # inverse transform gives is periodic and a recording's two ends do not meet.
    from scipy.fft import irfft, next_fast_len  # not needed to list or read other datasets

    length = int(next_fast_len(int(1.25 * samples), real=True))
    step = rate / length
    spectrum = np.zeros((9, length // 2 + 1), np.complex64)
    contact = rng.lognormal(0, 0.25, (9, 1))

    def add_band(low: float, high: float, size: float, slope: float) -> None:
        """Noise of standard deviation `size` mV from `low` to `high` Hz, amplitude f^slope."""
        bins = np.arange(max(1, int(low / step)), min(int(high / step) + 2, length // 2))
        if len(bins) == 0:
            return
        shape = bins**slope
        shape *= size * length / np.sqrt(4 * np.square(shape).sum())
        # A sum of hundreds of waves is normal whatever their law; uniform is five times cheaper.
        noise = rng.random((9, 2 * len(bins)), np.float32)
        noise -= np.float32(0.5)
        band = spectrum[:, bins[0] : bins[-1] + 1]
        band += noise.view(np.complex64) * (contact * shape * np.sqrt(12)).astype(np.float32)

    add_band(0.05, 0.8, size=float(rng.lognormal(np.log(0.022), 0.5)), slope=-1.0)
    add_band(18.0, 140.0, size=float(rng.lognormal(np.log(0.006), 0.5)), slope=-0.3)
    mains = round(50.0 / step)  # the nearest bin will do: no grid keeps 50 Hz to the millihertz
    if mains < length // 2:
        hum = rng.lognormal(np.log(0.0015), 0.7) * rng.normal(0, length / 2, 9)
        spectrum[:, mains] += hum * np.exp(1j * rng.uniform(0, 2 * np.pi))

    sources = np.empty((10, samples), np.float32)
    sources[:9] = irfft(spectrum, length, overwrite_x=True)[:, :samples]
    turn = np.arange(samples, dtype=np.float32) * np.float32(2 * np.pi * breath[0] / rate)
    sources[9] = np.sin(turn + np.float32(breath[1]))
    swell = rng.lognormal(np.log(0.018), 0.5) * rng.normal(0.4, 1, 9)
    seen = _TWELVE @ _ELECTRODES @ np.column_stack([np.eye(9), swell])
    return seen.astype(np.float32) @ sources


SYNTHETIC = DatasetRow("synthetic", Synthetic, has_source=False)

"""Simulated ECGs obey the laws of the lead system, of their rhythm and of their seed."""

from __future__ import annotations

from functools import cache, partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import find_peaks

from clocs.datasets.base import Dataset, Entry
from clocs.datasets.synthetic import RHYTHMS, Patient, Synthetic, simulate, stream
from clocs.errors import SettingError
from clocs.recording import STANDARD_LEADS, Recording

RATE = 500.0
LEAD = {name: row for row, name in enumerate(STANDARD_LEADS)}
Signal = NDArray[np.floating]


@cache
def patients(label: str, count: int = 12) -> tuple[tuple[int, Patient], ...]:
    """The first patients of a class, with their numbers."""
    dataset = Synthetic(patients=300)
    all_of_them = ((n, dataset.patient(n)) for n in range(1, 301))
    return tuple((n, p) for n, p in all_of_them if p.rhythm.label == label)[:count]


@cache
def heart(number: int, visit: int = 1) -> Signal:
    """(12, samples) mV without noise."""
    patient = Synthetic(patients=1).patient(number)
    return simulate(patient, stream(0, number, visit), seconds=10.0, rate=RATE)[0]


def r_peaks(signal: Signal) -> NDArray[np.intp]:
    """Samples of the QRS complexes: where the leads together move fastest."""
    speed = np.abs(np.diff(signal, axis=1)).sum(axis=0)
    energy = np.convolve(speed, np.ones(40), "same")
    height = 0.5 * float(np.percentile(energy, 99))
    return np.asarray(find_peaks(energy, height=height, distance=int(0.22 * RATE))[0])


def average_beat(signal: Signal) -> Signal:
    """(12, samples) from 240 ms before to 400 ms after R, without its mean."""
    peaks = [k for k in r_peaks(signal) if 120 <= k < signal.shape[1] - 200]
    beat = np.mean([signal[:, k - 120 : k + 200] for k in peaks], axis=0)
    return np.asarray(beat - beat.mean(axis=1, keepdims=True))


def recording(entry_id: str, **options: float) -> Recording:
    dataset = Synthetic(patients=40, **options)  # type: ignore[arg-type]
    return dataset.read(next(entry for entry in dataset.list().entries if entry.id == entry_id))


def test_it_is_a_dataset_with_ids_and_options_for_the_manifest() -> None:
    dataset: Dataset = Synthetic(patients=3, seed=7, recordings=2)
    listing = dataset.list()
    assert [entry.id for entry in listing.entries][:3] == ["P00001-1", "P00001-2", "P00002-1"]
    assert len(listing.entries) == 6
    assert dataset.labels == ("SR", "SB", "SVT", "AFIB")
    assert dataset.settings["seed"] == "7"
    assert listing.fingerprint != Synthetic(patients=3, seed=8).list().fingerprint


def test_limb_leads_obey_einthoven_and_goldberger_before_noise() -> None:
    for number in range(1, 9):
        lead = dict(zip(STANDARD_LEADS, heart(number).astype(np.float64), strict=True))
        close = partial(np.testing.assert_allclose, rtol=0, atol=2e-6)
        close(lead["I"] + lead["III"], lead["II"])
        close(lead["aVR"], -(lead["I"] + lead["II"]) / 2)
        close(lead["aVL"], (lead["I"] - lead["III"]) / 2)
        close(lead["aVF"], (lead["II"] + lead["III"]) / 2)


@pytest.mark.parametrize("label", ["SR", "SB", "SVT"])
def test_measured_rr_intervals_lie_in_the_range_of_the_class(label: str) -> None:
    rhythm = next(rhythm for rhythm in RHYTHMS if rhythm.label == label)
    for number, _ in patients(label):
        rate = 60 / (np.diff(r_peaks(heart(number))) / RATE)
        assert len(rate) >= 5
        # Peaks are found to a few ms, which is some beats a minute when the heart races.
        assert rhythm.slowest * 0.96 < rate.min() <= rate.max() < rhythm.fastest * 1.04


def test_atrial_fibrillation_alone_is_irregular() -> None:
    def irregularity(label: str) -> list[float]:
        intervals = [np.diff(r_peaks(heart(number))) for number, _ in patients(label)]
        return [float(rr.std() / rr.mean()) for rr in intervals]

    regular = [value for label in ("SR", "SB", "SVT") for value in irregularity(label)]
    fibrillating = irregularity("AFIB")
    assert max(regular) < 0.08
    assert min(fibrillating) > 0.09
    assert np.mean(fibrillating) > 5 * np.mean(regular)


def test_sinus_beats_follow_an_upright_p_wave_in_ii_and_fibrillation_has_none() -> None:
    def p_wave(number: int, patient: Patient) -> float:
        """Its height in mV; averaging many beats cancels f-waves, long pauses keep T away."""
        long, _ = simulate(patient, stream(0, number, 1), seconds=120.0, rate=RATE)
        peaks = r_peaks(long)
        late = peaks[1:][np.diff(peaks) > 0.58 * RATE]
        before = np.mean([long[LEAD["II"], k - 110 : k - 25] for k in late if k >= 110], axis=0)
        return float(before.max() - np.median(before))

    sinus = [p_wave(*one) for label in ("SR", "SB") for one in patients(label)]
    fibrillating = [p_wave(*one) for one in patients("AFIB") if one[1].rate < 100]
    assert len(fibrillating) >= 3
    assert 0.07 < np.median(sinus) < 0.2
    assert max(fibrillating) < min(sinus)
    assert np.mean(fibrillating) < 0.2 * np.mean(sinus)


def test_fibrillatory_waves_beat_at_4_to_9_hz_and_show_best_in_v1() -> None:
    for number, patient in patients("AFIB", 6):
        silent = Patient(
            **{
                name: getattr(patient, name) * (0 if name == "amplitude" else 1)
                if isinstance(getattr(patient, name), np.ndarray)
                else getattr(patient, name)
                for name in patient.__slots__
            }
        )
        waves, _ = simulate(silent, stream(1, number), seconds=10.0, rate=RATE)
        power = np.abs(np.fft.rfft(waves[LEAD["V1"]])) ** 2
        assert 4 <= np.argmax(power) / 10.0 <= 9
        size = waves.std(axis=1)
        assert size[LEAD["V1"]] == size.max()
        assert 0.02 < size[LEAD["V1"]] < 0.2


def test_amplitudes_and_r_progression_are_those_of_hearts() -> None:
    beats = np.array([average_beat(heart(n)) for label in ("SR", "SB") for n, _ in patients(label)])
    top, bottom = beats[:, :, 90:150].max(axis=2), beats[:, :, 90:150].min(axis=2)
    assert 0.7 < np.median(top[:, LEAD["II"]]) < 1.4
    assert top.max() < 4
    assert np.median(top[:, LEAD["V1"]]) < np.median(top[:, LEAD["V3"]])
    assert np.median(top[:, LEAD["V3"]]) < np.median(top[:, LEAD["V4"]])
    assert np.median(bottom[:, LEAD["V1"]]) < -0.6  # S in V1
    assert np.median(bottom[:, LEAD["V6"]]) > -0.4  # and hardly any in V6
    assert (top[:, LEAD["aVR"]] + bottom[:, LEAD["aVR"]] < 0).all()  # aVR points away
    t_wave = beats[:, LEAD["V4"], 200:].max(axis=1)
    assert 0.2 < np.median(t_wave) < 0.6


def test_no_amplitude_of_a_lead_tells_the_class() -> None:
    size = {
        rhythm.label: np.array([np.ptp(heart(n), axis=1) for n, _ in patients(rhythm.label, 40)])
        for rhythm in RHYTHMS
    }
    for one, other in combinations(size, 2):
        # The chance that the first has the larger amplitude, lead by lead: the AUC of a threshold.
        auc = (size[one][:, None] > size[other][None]).mean(axis=(0, 1))
        assert (np.abs(auc - 0.5) < 0.25).all(), (one, other, auc)


def test_a_recording_depends_on_neither_the_number_of_patients_nor_the_order() -> None:
    few, many = Synthetic(patients=3, seed=5), Synthetic(patients=1000, seed=5, recordings=3)
    entries = {entry.id: entry for entry in many.list().entries}
    many.read(entries["P00900-3"])
    for entry in reversed(few.list().entries):
        one, other = few.read(entry), many.read(entries[entry.id])
        assert np.array_equal(one.digital, other.digital)
        assert (one.labels, one.age, one.sex) == (other.labels, other.age, other.sex)


def test_other_seeds_patients_and_visits_give_other_signals() -> None:
    base = recording("P00001-1").digital
    assert not np.array_equal(base, recording("P00001-1", seed=1).digital)
    assert not np.array_equal(base, recording("P00001-2").digital)
    assert not np.array_equal(base, recording("P00002-1").digital)


def test_two_recordings_of_a_patient_resemble_each_other_more_than_two_patients() -> None:
    dataset = Synthetic(patients=300)
    numbers = [number for label in ("SR", "SB") for number, _ in patients(label)]

    def beat(number: int, visit: int) -> Signal:
        entry = Entry(id=f"{number}-{visit}", patient=str(number), path=f"{number}/{visit}")
        return average_beat(dataset.read(entry).signal).ravel()

    first, second = (np.array([beat(n, visit) for n in numbers]) for visit in (1, 2))
    alike = np.corrcoef(first, second)[: len(numbers), len(numbers) :]
    within = np.diag(alike)
    between = alike[~np.eye(len(numbers), dtype=bool)]
    assert within.mean() > 0.93
    assert within.mean() > between.mean() + 0.1
    assert (alike.argmax(axis=1) == np.arange(len(numbers))).mean() > 0.7  # nearest is oneself


def test_every_class_comes_at_about_its_share() -> None:
    dataset = Synthetic(patients=1000, seed=3)
    labels = [dataset.patient(number).rhythm.label for number in range(1, 1001)]
    for rhythm in RHYTHMS:
        assert labels.count(rhythm.label) / 1000 == pytest.approx(rhythm.share, abs=0.05)


def test_all_recordings_of_a_patient_share_label_age_and_sex() -> None:
    dataset = Synthetic(patients=5, recordings=3)
    seen: dict[str, set[tuple[object, ...]]] = {}
    for entry in dataset.list().entries:
        read = dataset.read(entry)
        seen.setdefault(read.patient, set()).add((read.labels, read.age, read.sex))
    assert [len(values) for values in seen.values()] == [1] * 5


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    number=st.integers(1, 10**6),
    visit=st.integers(1, 50),
    rate=st.sampled_from([100.0, 250.0, 333.0, 500.0, 1000.0]),
    seconds=st.sampled_from([1.0, 2.5, 10.0, 31.0]),
)
def test_any_seed_gives_a_finite_ecg_well_inside_int16(
    seed: int, number: int, visit: int, rate: float, seconds: float
) -> None:
    dataset = Synthetic(patients=number, seed=seed, seconds=seconds, rate=rate)
    read = dataset.read(Entry(id="x", patient="y", path=f"{number}/{visit}"))
    assert read.digital.dtype == np.int16
    assert read.digital.shape == (12, round(seconds * rate))
    assert np.isfinite(read.signal).all()
    assert 0.2 < np.abs(read.signal).max() < 10
    assert (read.signal.std(axis=1) > 0).all()


@pytest.mark.parametrize(
    "options",
    [{"patients": 0}, {"seed": -1}, {"recordings": 0}, {"seconds": float("nan")}, {"rate": 20.0}],
)
def test_senseless_options_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(options))):
        Synthetic(**{"patients": 2, **options})  # type: ignore[arg-type]

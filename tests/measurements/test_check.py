"""Faults made on purpose in real twelve-lead recordings are found, and few where there is none."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import clocs
from clocs.datasets.synthetic import Synthetic
from clocs.measurements.beats import typical_beat
from clocs.measurements.check import CHEST_FAULTS, LIMB_FAULTS, Finding, doubt
from clocs.recording import STANDARD_LEADS, Recording, quantize

FAULTS = import_module("benchmarks.electrodes")
fault_matrix = FAULTS.fault_matrix
with_fault = FAULTS.with_fault
ARMS = "left and right arm may be swapped"
Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def recordings(real_data: Path) -> list[Recording]:
    """The recordings of 24 patients, 10 s each."""
    paths = sorted((real_data / "samples/physionet2020/Training_WFDB").glob("*.hea"))
    found = [clocs.read(path) for path in paths]
    return [one.between(0, 5000) for one in found]


def with_signal(recording: Recording, signal: Array) -> Recording:
    digital, gain = quantize(signal)
    zero = np.zeros(len(signal), np.int32)
    return replace(recording, digital=digital, gain=gain, baseline=zero)


def share_with(recordings: list[Recording], kind: str, sentence: str = "") -> float:
    """The share of recordings with such a finding."""
    return float(
        np.mean(
            [
                any(one.kind == kind and sentence in one.sentence for one in clocs.check(recording))
                for recording in recordings
            ]
        )
    )


def test_swapped_arms_invert_lead_i_and_exchange_the_others(recordings: list[Recording]) -> None:
    """As textbooks have it."""
    signal = recordings[0].signal
    i, ii, iii, avr, avl, avf = with_fault(signal, ARMS, "")[:6]
    assert np.allclose(i, -signal[0], atol=0.01) and np.allclose(ii, signal[2], atol=0.01)
    assert np.allclose(iii, signal[1], atol=0.01) and np.allclose(avr, signal[4], atol=0.01)
    assert np.allclose(avl, signal[3], atol=0.01) and np.allclose(avf, signal[5], atol=0.01)


def test_two_swaps_of_the_same_electrodes_change_nothing() -> None:
    for limb in LIMB_FAULTS:
        if "swapped" in limb and "right leg" not in limb:
            assert np.allclose(np.linalg.matrix_power(fault_matrix(limb, ""), 2), np.eye(8))
    for chest in CHEST_FAULTS:
        if "swapped" in chest or "inverted" in chest:
            assert np.allclose(np.linalg.matrix_power(fault_matrix("", chest), 2), np.eye(8))


def test_few_untouched_recordings_are_suspected(recordings: list[Recording]) -> None:
    assert sum(bool(clocs.check(one)) for one in recordings) <= 1


def test_swapped_arms_are_found(recordings: list[Recording]) -> None:
    swapped = [with_signal(one, with_fault(one.signal, ARMS, "")) for one in recordings]
    assert share_with(swapped, "limb") >= 0.9


def test_a_swapped_chest_lead_is_found_and_named(recordings: list[Recording]) -> None:
    name = "V1 and V5 may be swapped"
    swapped = [with_signal(one, with_fault(one.signal, "", name)) for one in recordings]
    assert share_with(swapped, "chest", name) >= 0.8


@pytest.mark.parametrize("lead", ["II", "aVR", "V4"])
def test_an_inverted_lead_is_found_and_named(recordings: list[Recording], lead: str) -> None:
    signs = np.where(np.array(STANDARD_LEADS) == lead, -1.0, 1.0)[:, None]
    inverted = [with_signal(one, one.signal * signs) for one in recordings]
    kind = "chest" if lead.startswith("V") else "inverted"
    assert share_with(inverted, kind, f"{lead} may be inverted") >= 0.9


def test_a_lead_given_twice_is_named(recordings: list[Recording]) -> None:
    twice = [with_signal(one, one.signal[[*range(11), 10]]) for one in recordings]
    assert share_with(twice, "twice", "V5 and V6 are the same lead") == 1


def test_leads_in_a_wrong_order_contradict_each_other(recordings: list[Recording]) -> None:
    turned = [with_signal(one, np.roll(one.signal, 1, axis=0)) for one in recordings]
    assert share_with(turned, "equations") >= 0.95
    three = [one.select(("I", "II", "III")) for one in turned]
    assert share_with(three, "equations", "III is not II − I") >= 0.95


@pytest.mark.parametrize(("factor", "word"), [(10, "10 times too large"), (0.01, "too small")])
def test_a_wrong_gain_is_found(recordings: list[Recording], factor: float, word: str) -> None:
    scaled = [replace(one, gain=one.gain / factor) for one in recordings]
    assert share_with(scaled, "gain", word) >= 0.9
    unknown = [replace(one, unit="adu") for one in scaled]
    assert share_with(unknown, "gain", word) == 0


@pytest.mark.parametrize("lead", ["I", "aVF", "V2", "V5"])
@pytest.mark.parametrize("factor", [10, 0.1])
def test_a_wrong_gain_of_one_lead_is_found_and_named(
    recordings: list[Recording], lead: str, factor: float
) -> None:
    times = np.where(np.array(STANDARD_LEADS) == lead, factor, 1.0)
    scaled = [replace(one, gain=one.gain / times) for one in recordings]
    assert share_with(scaled, "gain", f"{lead} may have a wrong gain") >= 0.9


def test_spikes_before_beats_are_found(recordings: list[Recording]) -> None:
    paced = []
    for one in recordings:
        signal = one.signal
        beat = typical_beat(signal, one.rate)
        assert beat is not None
        peaks = np.rint((beat.peaks - 0.12) * one.rate / 3).astype(int)
        signal[:, 3 * np.maximum(peaks, 0)] += 3.0
        paced.append(with_signal(one, signal))
    assert share_with(paced, "paced") >= 0.9
    assert share_with(recordings, "paced") == 0
    slow = [replace(one, digital=one.digital[:, ::3], rate=one.rate / 3) for one in paced]
    assert share_with(slow, "paced") == 0  # a single sample is no spike there


def test_nothing_is_said_about_a_recording_without_beats(recordings: list[Recording]) -> None:
    noise = np.random.default_rng(0).standard_normal((12, 400))
    assert clocs.check(with_signal(recordings[0], noise)) == []
    assert clocs.check(with_signal(recordings[0], np.zeros((12, 5000)))) == []


def test_a_wrong_gain_is_in_doubt_only_for_models_that_read_voltages() -> None:
    found = [Finding("gain", "amplitudes are about ten times too large", 1.0, ("I", "II"))]
    assert doubt(found, ("II",)) is None
    assert doubt(found, ("II",), in_mv=True) == "amplitudes are about ten times too large"
    assert doubt(found, ("V1",), in_mv=True) is None


def test_a_recording_at_100_hz_is_checked() -> None:
    dataset = Synthetic(patients=1, recordings=1, rate=100)
    one = dataset.read(dataset.list().entries[0])
    assert one.rate == 100 and isinstance(clocs.check(one), list)

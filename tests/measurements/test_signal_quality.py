"""Signal quality falls with what spoils a signal, names it, and agrees with people."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import clocs
from clocs.evaluation import metrics
from clocs.measurements.quality import READABLE
from clocs.recording import Recording, quantize

HALVES = ("hea", "dat")
Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def clean(real_data: Path) -> Recording:
    """A twelve-lead recording of a patient in sinus rhythm."""
    return clocs.read(next((real_data / "samples/physionet2020/Training_WFDB").glob("*.hea")))


def spoiled(recording: Recording, lead: str, change: Array) -> Recording:
    signal = recording.signal
    signal[recording.leads.index(lead)] += change
    digital, gain = quantize(signal)
    return replace(recording, digital=digital, gain=gain, baseline=np.zeros(12, np.int32))


def test_every_lead_of_a_clean_recording_can_be_read(clean: Recording) -> None:
    found = clocs.signal_quality(clean)
    assert found.value > 0.8 and min(found.leads.values()) > READABLE
    assert not found.reasons and found.reason is None


@pytest.mark.parametrize("reason", ["flat", "lead off", "mains", "wander", "noise", "clipped"])
def test_one_bad_lead_is_told_with_its_reason(clean: Recording, reason: str) -> None:
    numbers, own = np.random.default_rng(0), clean.signal[clean.leads.index("V2")]
    seconds = np.arange(clean.samples) / clean.rate
    height = float(np.ptp(own))
    changes = {
        "flat": -own,
        "lead off": -own + 80.0,
        "mains": 4 * height * np.sin(2 * np.pi * 50 * seconds),
        "wander": 20 * height * np.sin(2 * np.pi * 0.3 * seconds),
        "noise": 2 * height * numbers.standard_normal(clean.samples),
        "clipped": np.clip(3 * own, -0.2 * height, 0.2 * height) - own,
    }
    found = clocs.signal_quality(spoiled(clean, "V2", changes[reason]))
    assert found.reasons == {"V2": reason}
    assert found.leads["V2"] < READABLE
    assert found.value < clocs.signal_quality(clean).value


def test_a_wrong_unit_changes_little(clean: Recording) -> None:
    whole = clocs.signal_quality(clean).value
    unknown = clocs.signal_quality(replace(clean, unit="adu", gain=clean.gain / 700)).value
    assert unknown == pytest.approx(whole, abs=0.2)


def test_a_recording_without_a_second_of_signal_has_no_quality(clean: Recording) -> None:
    found = clocs.signal_quality(clean.between(0, 100))
    assert found.value == 0 and set(found.reasons.values()) == {"flat"}


def test_recordings_that_were_published_as_too_noisy_have_less(
    real_data: Path, tmp_path: Path
) -> None:
    folder = real_data / "physionet2017"
    rows = [line.split(",") for line in (folder / "REFERENCE.csv").read_text().split()]
    noisy = [name for name, label in rows if label == "~"][:25]
    others = [name for name, label in rows if label == "N"][:25]
    with zipfile.ZipFile(folder / "physionet2017.zip") as archive:
        archive.extractall(tmp_path, [f"{n}.{end}" for n in noisy + others for end in HALVES])
    found = [
        clocs.signal_quality(clocs.read(tmp_path / f"{name}.hea")).value for name in noisy + others
    ]
    marked = np.repeat([1, 0], 25)[:, None].astype(np.uint8)
    assert metrics.auc_per_class(-np.array(found)[:, None], marked)[0] > 0.85

"""Files of hours: read in stretches, with the answers of the whole file and little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import edfio
import numpy as np
import polars as pl
import pytest
import wfdb
from test_predict import classifier as classifier  # noqa: PLC0414 (a fixture)

import clocs
from clocs import Checkpoint
from clocs.formats.base import ReadOptions
from clocs.formats.read import read_several
from clocs.models.classifier import Classifier
from clocs.patients import sources
from clocs.patients.embeddings import Embeddings
from clocs.service.bodies import example_signal
from edf_files import write

RATE = 256


def wave(seconds: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """In µV, with a wandering baseline: what lies before a stretch matters to its filters."""
    time = np.arange(seconds * RATE) / RATE
    noise = np.random.default_rng(seed).normal(0, 15, len(time))
    return np.asarray(800 * example_signal(seconds, RATE) + 150 * np.sin(time / 5 + seed) + noise)


def holter(folder: Path, seconds: int) -> Path:
    """II and V2 of a Holter recorder; between 100 and 150 s both electrodes are off."""
    waves = [wave(seconds, 0), wave(seconds, 1)]
    for one in waves:
        one[100 * RATE : 150 * RATE] = -5000
    signals = [
        edfio.EdfSignal(
            one, RATE, label=name, physical_dimension="uV", physical_range=(-5000, 5000)
        )
        for name, one in zip(("ECG II", "ECG V2"), waves, strict=True)
    ]
    return write(folder, signals, "holter.edf", annotations=[edfio.EdfAnnotation(0, None, "on")])


@pytest.fixture(params=["edf", "wfdb"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "edf":
        return holter(tmp_path, 243)
    one = clocs.read(holter(tmp_path, 243))
    wfdb.wrsamp(
        "long", fs=RATE, units=["mV"] * 2, sig_name=["MLII", "V2"], fmt=["212"] * 2,
        d_signal=np.clip(one.digital.T // 32, -2047, 2047).astype(np.int64),
        adc_gain=[200.0] * 2, baseline=[0] * 2, write_dir=str(tmp_path),
    )  # fmt: skip
    return tmp_path / "long.hea"


@pytest.mark.filterwarnings("ignore::clocs.errors.ClocsWarning")
def test_stretches_give_the_answers_of_the_whole_file(
    file: Path, checkpoint: Checkpoint, classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers() -> tuple[Embeddings, pl.DataFrame, pl.DataFrame]:
        return (
            clocs.embed(checkpoint, file, level="frame"),
            clocs.predict(classifier, file),
            clocs.predict(classifier, file, over_time=30),
        )

    whole = answers()
    monkeypatch.setattr("clocs.patients.sources.LONGEST", 60.0)
    monkeypatch.setattr("clocs.patients.sources.STRETCH", 40.0)
    monkeypatch.setattr("clocs.formats.read._SMALL", 0)
    read = sources.read_files([file], ReadOptions(), checkpoint.card.frame)
    assert len(list(read[1])) == 6  # of 40 s, the last of 43 s without its last frame
    parts = answers()
    (a, *whole_tables), (b, *tables) = whole, parts
    assert a.rows.drop("digest").equals(b.rows.drop("digest"))
    cosine = (a.vectors * b.vectors).sum(axis=1) / (
        np.linalg.norm(a.vectors, axis=1) * np.linalg.norm(b.vectors, axis=1)
    )
    # resampling takes a signal as periodic, so that the two ends of a file touch each other
    assert cosine.min() > 0.9995 and np.median(cosine) > 0.99999
    for one, other in zip(whole_tables, tables, strict=True):
        numbers = [name for name, kind in one.schema.items() if kind == pl.Float64]
        assert one.drop(numbers).equals(other.drop(numbers))
        np.testing.assert_allclose(
            one.select(numbers).to_numpy(), other.select(numbers).to_numpy(), atol=2e-3
        )
    off = tables[1].filter((pl.col("start") >= 100) & (pl.col("end") <= 150))
    assert off["problem"].str.starts_with("no signal").all() and off.height == 1


def test_a_stretch_that_cannot_be_read_costs_the_whole_recording(
    checkpoint: Checkpoint,
    classifier: Classifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = wave(243, 0)[:, None] / 1000
    wfdb.wrsamp(
        "cut", fs=RATE, units=["mV"], sig_name=["II"], fmt=["16"], p_signal=record,
        adc_gain=[1000.0], baseline=[0], write_dir=str(tmp_path),
    )  # fmt: skip
    monkeypatch.setattr("clocs.patients.sources.LONGEST", 60.0)
    monkeypatch.setattr("clocs.patients.sources.STRETCH", 40.0)
    broken = clocs.errors.UnusableError("implausible", "cut reaches 900 mV")

    def fails_late(found: object, options: object) -> object:
        for number, one in enumerate(read_several(found, options)):  # type: ignore[arg-type]
            yield ("cut.hea", broken) if number == 4 else one

    monkeypatch.setattr(sources, "read_several", fails_late)
    made = clocs.predict(classifier, tmp_path / "cut.hea", over_time=30)
    assert made.height == 1 and "900 mV" in made["problem"][0]
    with pytest.warns(clocs.errors.ClocsWarning):
        embedded = clocs.embed(checkpoint, tmp_path / "cut.hea")
    assert len(embedded) == 0 and "900 mV" in embedded.problems[0][1]


_MEASURE = """
import pathlib, sys, warnings
warnings.simplefilter("ignore")
import clocs
made = clocs.predict(sys.argv[1], sys.argv[2], over_time=600)
assert made.height == 18 and made["predicted"].null_count() == 0, made
# not ru_maxrss, which a process has in part from the one that started it
(peak,) = [line for line in pathlib.Path("/proc/self/status").open() if line.startswith("VmHWM")]
print(int(peak.split()[1]) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_three_hours_are_predicted_in_the_memory_of_some_minutes(
    classifier: Classifier, tmp_path: Path
) -> None:
    seconds = 3 * 3600
    signal = edfio.EdfSignal(
        np.tile(wave(3600, 0), 3),
        RATE,
        label="ECG II",
        physical_dimension="uV",
        physical_range=(-5000, 5000),
    )
    path = write(tmp_path, [signal], "night.edf")
    assert path.stat().st_size > 2 * seconds * RATE
    classifier.save(tmp_path / "model.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, tmp_path / "model.safetensors", path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 700  # MB; read as a whole it takes more

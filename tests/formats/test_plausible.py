"""Rates, gains and amplitudes that no ECG has are refused by every way of reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clocs import read
from clocs.errors import SettingError, UnusableError
from clocs.formats.read import find_recordings, read_several
from clocs.recording import Recording, check_plausible
from clocs.store.prepare import prepare
from clocs.web.uploads import read_upload

SAMPLES = np.random.default_rng(0).integers(-900, 900, 12_000).astype("<i2")
RATES = ["0.1", "49.9", "10001", "1" + "0" * 300]
GAINS = ["1e300", "1e-300", "1e-9", "-200", "0.5"]


def header(rate: str = "500", gain: str = "200", baseline: int = 0) -> bytes:
    line = f"r.dat 16 {gain}({baseline})/mV 16 0 0 0 0 II"
    return f"r 1 {rate} {SAMPLES.size}\n{line}\n#Dx: 426783006\n".encode()


HEADERS = [
    *(header(rate=rate) for rate in RATES),
    *(header(gain=gain) for gain in GAINS),
    header(baseline=2_000_000_000),
    header(gain="1.1"),  # 800 mV
]


@pytest.mark.parametrize("text", HEADERS)
def test_an_implausible_recording_is_refused_by_every_reader(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "r.hea").write_bytes(text)
    (tmp_path / "r.dat").write_bytes(SAMPLES.tobytes())
    with pytest.raises(UnusableError, match="plausible") as error:
        read(tmp_path / "r.hea")
    assert error.value.reason == "implausible"
    with pytest.raises(UnusableError, match="plausible"):
        read_upload({"r.hea": text, "r.dat": SAMPLES.tobytes()})
    (result,) = read_several(find_recordings([tmp_path]))
    assert isinstance(result, tuple)
    assert isinstance(result[1], UnusableError)
    assert result[1].reason == "implausible"


def test_implausible_recordings_go_to_quarantine_and_the_dataset_goes_on(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number, text in enumerate([header(), *HEADERS]):
        name = f"A{number:04}".encode()
        lines = text.replace(b"r 1", name + b" 1", 1).replace(b"r.dat", name + b".dat")
        (source / f"A{number:04}.hea").write_bytes(lines)
        (source / f"A{number:04}.dat").write_bytes(SAMPLES.tobytes())
    store = prepare("physionet2020", source, out=tmp_path / "store")
    assert store.table["id"].to_list() == ["A0000"]
    assert store.quarantine["reason"].to_list() == ["implausible"] * len(HEADERS)


@pytest.mark.parametrize("gain", [0.0, np.nan, np.inf, -1.0])
@pytest.mark.parametrize("unit", ["mV", "adu"])
def test_a_gain_must_be_finite_and_positive_in_any_unit(gain: float, unit: str) -> None:
    recording = Recording(
        id="r",
        patient="r",
        leads=("II",),
        rate=500.0,
        digital=SAMPLES.reshape(1, -1),
        gain=np.array([gain]),
        baseline=np.zeros(1, np.int32),
        unit=unit,
    )
    with pytest.raises(UnusableError, match="gain"):
        check_plausible(recording)


@pytest.mark.parametrize("rate", [0.0, 0.1, 1e300, float("nan")])
def test_an_implausible_rate_of_a_table_is_a_wrong_setting(tmp_path: Path, rate: float) -> None:
    (tmp_path / "r.csv").write_text("II\n" + "1\n2\n" * 5000)
    with pytest.raises(SettingError, match="`rate`"):
        read(tmp_path / "r.csv", rate=rate)

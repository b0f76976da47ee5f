"""Exports of KardiaMobile and Polar are read without options.

The files are made here, byte by byte as these describe or show them: ATC by AliveCor's
specification (github.com/alivecor/ATCpy, docs/ATC Spec 1.7.md), whose own test files are read, too;
JSON by the example of the Kardia API (developers.kardia.com); Polar Sensor Logger's text by the
header and rows that github.com/phdiethelm/h10_ecg and others quote from it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import clinical_files
import clocs
from clocs.errors import UnusableError
from clocs.formats.read import format_of
from clocs.service.bodies import example_signal

POLAR = "Phone timestamp;sensor timestamp [ns];timestamp [ms];ecg [uV]"


def test_an_atc_file_says_leads_rate_unit_and_date(tmp_path: Path) -> None:
    file = tmp_path / "a.atc"
    steps = np.array([[995, -1055, 0], [1, 2, 3], [-4, 5, 6]], np.int16)
    file.write_bytes(clinical_files.atc(steps, ("I", "II", "V6")))
    made = clocs.read(file)
    assert made.leads == ("I", "II", "V6") and made.rate == 300 and made.unit == "mV"
    assert made.signal[0].tolist() == [0.4975, -0.5275, 0.0]
    assert made.recorded_at == "2016-06-01T18:15:25.777000"
    assert made.patient == "a" and made.extra == {"recorder": "19kHz 200Hz/mV"}


def _changed(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:-3], "truncated"),
        (lambda data: data[:14], "truncated"),
        (lambda data: data[:12], "truncated"),
        (_changed, "unreadable"),
    ],
)
def test_a_damaged_atc_file_is_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes], reason: str
) -> None:
    file = tmp_path / "a.atc"
    file.write_bytes(damage(clinical_files.atc(np.ones((1, 3), np.int16), ["I"])))
    with pytest.raises(UnusableError) as caught:
        clocs.read(file)
    assert caught.value.reason == reason


def test_the_json_of_the_kardia_service_is_read_in_its_raw_form(tmp_path: Path) -> None:
    pytest.importorskip("ecgdatakit")
    steps = np.array([[100, -200, 0, 4000], [200, -200, 0, 4000]], np.int16)
    file = tmp_path / "recording.json"
    file.write_text(clinical_files.kardia_json(steps, ("I", "II")))
    made = clocs.read(file)
    assert made.leads == ("I", "II") and made.rate == 300 and made.unit == "mV"
    assert made.signal[0].tolist() == [0.05, -0.1, 0.0, 2.0]
    assert format_of("other.json", b'{"recordedAt": "2021-01-01", "name": "x"}') is None


def polar(file: Path, *, lost: int = 0) -> np.ndarray:
    """Ten seconds; times of the phone are those of packets of 73 samples."""
    values = np.rint(900 * example_signal(10, 130)).astype(int)
    rows = [POLAR]
    for i, value in enumerate(values):
        if 0 < lost <= i < lost + 73:
            continue
        second, ms = divmod(15_270 + 561 * (i // 73), 1000)
        stamp = f"2026-04-24T14:10:{second:02}.{ms:03}"
        since = f"{i * 7.692308:.6f}".rstrip("0") if i else "0.0"
        rows.append(f"{stamp};{599616050941733632 + 7692308 * i};{since};{value}")
    file.write_text("\n".join(rows) + "\n")
    return values


def test_polar_sensor_logger_s_text_has_its_rate_and_unit_in_the_header(tmp_path: Path) -> None:
    file = tmp_path / "Polar_H10_16E0A933_20260424_141011_ECG.txt"
    values = polar(file)
    made = clocs.read(file)
    assert made.leads == ("ECG",) and made.rate == 130 and made.unit == "mV"
    np.testing.assert_allclose(made.signal[0], values / 1000, atol=1e-9)


def test_a_lost_packet_of_polar_s_is_no_silent_jump(tmp_path: Path) -> None:
    polar(tmp_path / "lost_ECG.txt", lost=292)
    with pytest.raises(UnusableError, match="times that jump in row 293"):
        clocs.read(tmp_path / "lost_ECG.txt")


def test_heart_rates_beside_an_ecg_are_no_leads(tmp_path: Path) -> None:
    """As the app ECGLogger writes them: nanoseconds since 1970, µV, and per beat its rate."""
    values = np.rint(900 * example_signal(10, 130)).astype(int)
    start = 1_600_000_000_000_000_000
    rows = [f"{start + 7692308 * i},{v},60,{1000 if i % 130 == 0 else ''}" for i, v in
            enumerate(values)]  # fmt: skip
    file = tmp_path / "log.csv"
    file.write_text("time,ecg,hr,rr\n" + "\n".join(rows) + "\n")
    made = clocs.read(file)
    assert made.leads == ("ECG",) and made.rate == 130
    np.testing.assert_allclose(made.signal[0], values / 1000, atol=1e-9)
    assert "no leads, left out: hr, rr" in made.extra["notice"]

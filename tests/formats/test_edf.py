"""EDF, EDF+ and BDF as edfio writes them."""

from __future__ import annotations

import datetime
import zipfile
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.errors import ClocsError, UnusableError
from clocs.formats.base import ReadOptions
from clocs.formats.edf import EDF, is_rhythm
from clocs.formats.read import read
from clocs.formats.source import hold_files, open_files, open_source
from clocs.recording import Episode, Gap
from edf_files import discontinuous, signal, write

BORN, TAKEN = datetime.date(1950, 6, 1), datetime.date(2020, 6, 1)


def in_mv(path: Path) -> np.ndarray[Any, Any]:
    return np.stack([one.data for one in edfio.read_edf(path).signals]) / 1000


def test_values_are_those_of_edfio_to_half_a_step(tmp_path: Path) -> None:
    path = write(tmp_path, [signal("ECG I"), signal("ECG II"), signal("EKG V5-ref")])
    ours = read(path)
    assert ours.leads == ("I", "II", "V5")
    assert (ours.rate, ours.unit, ours.samples) == (250.0, "mV", 5000)
    np.testing.assert_allclose(ours.signal, in_mv(path), atol=0.51 * 4 / 65535, rtol=0)
    assert np.array_equal(ours.digital[0], edfio.read_edf(path).signals[0].digital)


def test_what_the_header_says_is_kept(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [signal("II")],
        patient=edfio.Patient(code="P_17", sex="F", birthdate=BORN, name="Somebody"),
        recording=edfio.Recording(startdate=TAKEN, equipment_code="Recorder"),
        starttime=datetime.time(10, 30, 5),
    )
    ours = read(path)
    assert (ours.patient, ours.sex, ours.age) == ("P 17", "female", 70.0)
    assert ours.recorded_at == "2020-06-01T10:30:05"
    assert ours.extra == {"equipment": "Recorder", "filters": "HP:0.05Hz"}
    (part,) = EDF.parts(open_files(tmp_path), "r.edf", ReadOptions())
    assert (part.seconds, part.patient) == (20.0, "P 17")


def test_anonymised_fields_are_unknown(tmp_path: Path) -> None:
    edf = edfio.Edf([signal("II")])
    edf.anonymize()
    edf.write(tmp_path / "r.edf")
    ours = read(tmp_path / "r.edf")
    assert (ours.patient, ours.sex, ours.age, ours.recorded_at) == ("r", None, None, None)


def test_plain_edf_has_any_text_for_the_patient(tmp_path: Path) -> None:
    path = write(tmp_path, [signal("II")])
    data = bytearray(path.read_bytes())
    data[8:88] = b"Room 7, bed 2".ljust(80)
    data[88:168] = b"ward".ljust(80)
    data[168:184] = b"02.03.99bad time"
    data[192:236] = b" " * 44
    path.write_bytes(bytes(data))
    ours = read(path)
    assert (ours.patient, ours.recorded_at) == ("Room 7, bed 2", "1999-03-02T00:00:00")


def test_other_signals_and_rates_are_left_out_with_a_notice_unless_chosen(tmp_path: Path) -> None:
    others = [signal("EEG Fpz-Cz"), signal("Resp", 25.0), signal("SpO2", unit="%")]
    path = write(tmp_path, [signal("ECG", unit="mV"), *others])
    ours = read(path)
    assert ours.leads == ("ECG",)
    assert ours.extra["notice"] == (
        "Signals of another kind or rate are left out: EEG Fpz-Cz, Resp, SpO2."
    )
    assert read(path, leads=["ECG"], lead_names={"EEG Fpz-Cz": "V1"}).leads == ("ECG",)
    assert read(path, lead_names={"ECG": "II"}).leads == ("II",)
    with pytest.raises(UnusableError, match=r"r2\.edf: none of its signals is an ECG"):
        read(write(tmp_path, others[::2], "r2.edf"))


def test_rhythms_become_episodes_and_other_annotations_text(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [signal("II")],
        annotations=[
            edfio.EdfAnnotation(2.0, None, "(AFIB"),
            edfio.EdfAnnotation(10.0, 4.0, "Sinus rhythm"),
            edfio.EdfAnnotation(5.5, None, "patient coughs"),
            edfio.EdfAnnotation(1.0, None, "N"),
        ],
    )
    ours = read(path)
    assert ours.episodes == (Episode(500, 2500, "AFIB"), Episode(2500, 3500, "Sinus rhythm"))
    assert ours.extra["annotations"] == "1 s: N; 5.5 s: patient coughs"
    late = EDF.read(open_files(tmp_path), "r.edf", ReadOptions(start=4.0, stop=11.0))
    assert late.episodes == (Episode(0, 1500, "AFIB"), Episode(1500, 1750, "Sinus rhythm"))
    assert late.extra["annotations"] == "5.5 s: patient coughs"
    assert not is_rhythm("N") and is_rhythm("(N") and is_rhythm("AFib")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_stretch_equals_that_of_the_whole(tmp_path: Path, method: int) -> None:
    path = write(tmp_path, [signal("I"), signal("II"), signal("Resp", 10.0)])
    with zipfile.ZipFile(tmp_path / "all.zip", "w", method) as archive:
        archive.write(path, "r.edf")
    whole = read(path)
    for source in (open_files(tmp_path), open_source(tmp_path / "all.zip")):
        for start, stop in [(0.0, 3.0), (3.3, 7.77), (19.5, None), (4.0, 4.1)]:
            part = EDF.read(source, "r.edf", ReadOptions(start=start, stop=stop))
            first, last = round(start * 250), round((stop or 20.0) * 250)
            assert np.array_equal(part.digital, whole.digital[:, first:last])


def test_time_between_data_records_is_a_gap(tmp_path: Path) -> None:
    path = discontinuous(tmp_path)
    ours = read(path)
    assert ours.seconds == 7.5
    assert ours.gaps == (Gap(500, 1250, "II"), Gap(1500, 1625, "II"))
    kept = ours.signal[0][~np.isnan(ours.signal[0])]
    assert len(kept) == 1000
    (part,) = EDF.parts(open_files(tmp_path), "r.edf", ReadOptions())
    assert part.seconds == 7.5
    late = EDF.read(open_files(tmp_path), "r.edf", ReadOptions(start=4.5, stop=6.8))
    np.testing.assert_array_equal(late.signal, ours.signal[:, 1125:1700])
    with pytest.raises(UnusableError, match="nan: "):
        EDF.read(open_files(tmp_path), "r.edf", ReadOptions(start=2.5, stop=4.5))


def test_bdf_has_24_bits(tmp_path: Path) -> None:
    wave = 1500 * np.sin(np.arange(2000) / 30)
    one = edfio.BdfSignal(
        wave, 250.0, label="ECG V1", physical_dimension="uV", physical_range=(-262144, 262143)
    )
    edfio.Bdf([one]).write(tmp_path / "r.bdf")
    ours = read(tmp_path / "r.bdf")
    assert ours.leads == ("V1",)
    np.testing.assert_allclose(ours.signal[0], wave / 1000, atol=2e-4)


def test_a_signal_that_is_upside_down_in_the_file_is_turned(tmp_path: Path) -> None:
    path = write(tmp_path, [signal("II")])
    upright = read(path).signal
    data = bytearray(path.read_bytes())
    at = 256 + int(data[252:256]) * (16 + 80 + 8)  # physical minimum, then maximum
    step = int(data[252:256]) * 8
    low, high = data[at : at + 8], data[at + step : at + step + 8]
    data[at : at + 8], data[at + step : at + step + 8] = high, low
    path.write_bytes(bytes(data))
    np.testing.assert_allclose(read(path).signal, -upright, atol=2e-4)


def test_less_than_the_header_says_is_truncated_and_any_name_will_do(tmp_path: Path) -> None:
    path = write(tmp_path, [signal("II")])
    (tmp_path / "holter").write_bytes(path.read_bytes())
    assert read(tmp_path / "holter").leads == ("II",)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(UnusableError, match=r"truncated: r\.edf has 19 of 20 data records"):
        read(path)


def test_a_recording_that_is_still_written_has_what_is_there(tmp_path: Path) -> None:
    path = write(tmp_path, [signal("II")])
    data = bytearray(path.read_bytes())
    data[236:244] = b"-1      "
    path.write_bytes(bytes(data[:-300]))
    assert read(path).seconds == 19.0


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("edf")
    return discontinuous(folder).read_bytes()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1100), st.integers(0, 255)), max_size=5), st.integers(0, 900)
)
def test_no_mutation_of_a_file_escapes_as_another_error(
    valid: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(valid)
    for place, value in changes:
        data[place] = value
    source = hold_files({"r.edf": bytes(data[: len(data) - cut])})
    try:
        recording = EDF.read(source, "r.edf", ReadOptions())
    except ClocsError as error:
        assert "\n" not in str(error)
    else:
        assert recording.samples

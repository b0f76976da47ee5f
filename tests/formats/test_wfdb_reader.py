"""The WFDB reader equals wfdb, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from clocs.errors import SettingError
from clocs.formats.read import read
from clocs.formats.source import open_source
from clocs.formats.wfdb import read_wfdb
from wfdb_files import assert_equals_wfdb, signals, write, write_mat


@pytest.mark.parametrize("fmt", ["16", "80", "212", "24", "32"])
def test_every_layout_of_wrsamp_is_read_as_wfdb_reads_it(tmp_path: Path, fmt: str) -> None:
    digital = signals()
    digital = digital // 32 if fmt == "80" else digital // 2 if fmt == "212" else digital
    assert_equals_wfdb(write(tmp_path, digital, fmt))


@pytest.mark.parametrize("fmt", ["160", "61", "310"])
def test_layouts_that_only_wfdb_knows_are_read_as_wfdb_reads_them(tmp_path: Path, fmt: str) -> None:
    header = write(tmp_path, signals() % 100 + 1)
    header.write_text(header.read_text().replace(" 16 ", f" {fmt} "))
    assert_equals_wfdb(header)


@pytest.mark.parametrize("fmt", ["508", "516", "524"])
def test_flac_is_read_as_wfdb_reads_it(tmp_path: Path, fmt: str) -> None:
    digital = signals() // 32 if fmt == "508" else signals()
    assert_equals_wfdb(write(tmp_path, digital, fmt))


def test_flac_of_8_bits_in_format_516_is_read_as_wfdb_reads_it(tmp_path: Path) -> None:
    header = write(tmp_path, signals() // 32, "508")
    header.write_text(header.read_text().replace(" 508 ", " 516 "))
    assert_equals_wfdb(header)


def test_matlab_files_are_read_as_wfdb_reads_them(tmp_path: Path) -> None:
    header = write_mat(tmp_path, signals())
    assert_equals_wfdb(header)
    assert read(header).extra == {"Age": "74", "Sex": "Male", "Dx": "1,2"}
    assert read(tmp_path / "r.mat").leads == ("V1", "V2", "V3")


@settings(max_examples=40, deadline=None)
@given(
    digital=arrays.arrays(
        np.int16,
        st.tuples(st.integers(2, 40), st.integers(1, 5)),
        elements=st.integers(-32767, 32767),
    ),
    gain=st.sampled_from([1000.0, 200.0, 488.1, 150.1, 12345.678]),
    baseline=st.integers(-40000, 40000),
    fmt=st.sampled_from(["16", "516"]),
)
def test_digital_values_survive_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    digital: np.ndarray[Any, np.dtype[np.int16]],
    gain: float,
    baseline: int,
    fmt: str,
) -> None:
    leads = digital.shape[1]
    folder = tmp_path_factory.mktemp("trip")
    wide = digital.astype(np.int64)
    header = write(folder, wide, fmt, adc_gain=[gain] * leads, baseline=[baseline] * leads)
    assert np.array_equal(read(header).digital, digital.T)
    assert_equals_wfdb(header)


def test_multi_segment_records_go_through_wfdb(tmp_path: Path) -> None:
    for name in ("p1", "p2"):
        wfdb.wrsamp(
            name, fs=500, d_signal=signals(300, 2), fmt=["16"] * 2, units=["mV"] * 2,
            sig_name=["I", "II"], adc_gain=[500.0] * 2, baseline=[5] * 2, write_dir=str(tmp_path),
        )  # fmt: skip
    (tmp_path / "r.hea").write_text("r/2 2 500 600\np1 300\np2 300\n")
    assert_equals_wfdb(tmp_path / "r.hea")


def test_several_files_and_formats_are_read_as_wfdb_reads_them(tmp_path: Path) -> None:
    signal = signals(400, 2) // 2
    one, two = tmp_path / "one.dat", tmp_path / "two.dat"
    one.write_bytes(signal[:, 0].astype("<i2").tobytes())
    two.write_bytes((signal[:, 1] // 16 + 128).astype(np.uint8).tobytes())
    (tmp_path / "r.hea").write_text("r 2 500 400\none.dat 16 200 16 0\ntwo.dat 80 100 8 0\n")
    ours, theirs = read(tmp_path / "r.hea"), wfdb.rdrecord(str(tmp_path / "r"))
    assert np.array_equal(ours.signal, theirs.p_signal.T)
    assert ours.leads == ("signal 0", "signal 1")


def test_wide_samples_are_quantized_to_a_tenth_of_a_microvolt(tmp_path: Path) -> None:
    header = write(tmp_path, signals() * 3000, "32", adc_gain=[3e6] * 3)
    physical = wfdb.rdrecord(str(tmp_path / "r")).p_signal.T
    assert np.abs(read(header).signal - physical).max() <= 0.5e-4


@pytest.mark.parametrize(
    ("unit", "factor"), [("mV", 1.0), ("uV", 1e-3), ("µV", 1e-3), ("V", 1e3), ("nV", 1e-6)]
)
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("fmt", ["16", "212"])
def test_units_become_millivolts(
    tmp_path: Path, unit: str, factor: float, encoding: str, fmt: str
) -> None:
    digital = signals() // 2
    header = write(tmp_path, digital, fmt, adc_gain=[200 * factor] * 3)
    header.write_text(header.read_text().replace("/mV", f"/{unit}"), encoding=encoding)
    recording = read(header)
    assert recording.unit == "mV"
    np.testing.assert_allclose(recording.signal, digital.T / 200, rtol=1e-12)


def test_leads_are_chosen_by_name_in_the_order_asked_for(tmp_path: Path) -> None:
    header = write(tmp_path, signals())
    whole, chosen = read(header), read(header, leads=["avr", "I"])
    assert chosen.leads == ("aVR", "I")
    assert np.array_equal(chosen.signal, whole.signal[[2, 0]])
    with pytest.raises(SettingError, match="has no lead V6"):
        read(header, leads=["V6"])


def test_a_zip_gives_the_same_recording_as_the_folder(tmp_path: Path) -> None:
    import zipfile

    header = write(tmp_path, signals() // 2, "212")
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("r.hea", "r.dat"):
            archive.write(tmp_path / name, f"top/{name}")
    zipped = read_wfdb(open_source(tmp_path / "all.zip"), "top/r.hea")
    assert np.array_equal(zipped.signal, read(header).signal)


def test_soundfile_itself_decodes_what_the_fast_path_gives(tmp_path: Path) -> None:
    header = write(tmp_path, signals(), "516")
    decoded, _ = soundfile.read(tmp_path / "r.dat", dtype="int16", always_2d=True)
    assert np.array_equal(read(header).digital, decoded.T)


@pytest.mark.parametrize("name", ["physionet2020", "physionet2017"])
def test_every_published_sample_equals_wfdb_by_lead_name(real_data: Path, name: str) -> None:
    headers = sorted((real_data / "samples" / name).rglob("*.hea"))
    assert len(headers) >= 20
    for header in headers:
        theirs = wfdb.rdrecord(str(header.with_suffix("")))
        ours = read(header, leads=theirs.sig_name[::-1])
        assert ours.signal.tobytes() == np.ascontiguousarray(theirs.p_signal.T[::-1]).tobytes()


@pytest.mark.parametrize("name", ["chapman", "physionet2020", "physionet2017"])
def test_flac_of_the_real_zips_equals_wfdb(real_data: Path, tmp_path: Path, name: str) -> None:
    source = open_source(real_data / name)
    headers = [path for path in source.names if path.endswith(".hea")]
    for path in headers[:: len(headers) // 10]:
        record = path.rpartition("/")[2][:-4]
        for suffix in (".hea", ".dat"):
            (tmp_path / (record + suffix)).write_bytes(source.read(path[:-4] + suffix))
        theirs = wfdb.rdrecord(str(tmp_path / record))
        assert np.array_equal(read_wfdb(source, path).signal, theirs.p_signal.T)

"""The WFDB reader equals wfdb, bit for bit, and never lets a raw error out."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from clocs.errors import ClocsError, SettingError, UnusableError
from clocs.readers import read, read_wfdb
from clocs.readers.wfdb_header import parse_header
from clocs.sources import open_files, open_source

RNG = np.random.default_rng(0)


def write(folder: Path, digital: np.ndarray[Any, Any], fmt: str = "16", **fields: Any) -> Path:
    """Write (samples, leads) with wfdb as record r; return the header's path."""
    leads = digital.shape[1]
    options: dict[str, Any] = {
        "units": ["mV"] * leads,
        "sig_name": ["I", "II", "AVR", "V1", "V2"][:leads],
        "adc_gain": [1000.0] * leads,
        "baseline": [0] * leads,
        **fields,
    }
    wfdb.wrsamp("r", fs=500, d_signal=digital, fmt=[fmt] * leads, write_dir=str(folder), **options)
    return folder / "r.hea"


def write_mat(folder: Path, digital: np.ndarray[Any, Any]) -> Path:
    """A MATLAB v4 file as the PhysioNet challenges publish them: 24 bytes, then the samples."""
    leads = digital.shape[1]
    head = np.array([30, leads, len(digital), 0, 4], "<i4").tobytes() + b"val\0"
    (folder / "r.mat").write_bytes(head + digital.astype("<i2").tobytes())
    lines = [f"r {leads} 500 {len(digital)} 12-May-2020 12:33:59"]
    lines += [f"r.mat 16+24 1000/mV 16 0 0 0 0 V{i + 1}" for i in range(leads)]
    (folder / "r.hea").write_text("\n".join(lines) + "\n#Age: 74\n#Sex: Male\n#Dx: 1,2\n")
    return folder / "r.hea"


def signals(samples: int = 700, leads: int = 3) -> np.ndarray[Any, np.dtype[np.int64]]:
    return RNG.integers(-3000, 3000, (samples, leads))


def assert_equals_wfdb(header: Path) -> None:
    ours = read(header)
    theirs = wfdb.rdrecord(str(header.with_suffix("")))
    assert ours.signal.tobytes() == np.ascontiguousarray(theirs.p_signal.T).tobytes()
    assert [lead.lower() for lead in ours.leads] == [name.lower() for name in theirs.sig_name]
    assert ours.rate == theirs.fs
    assert ours.digital.dtype == np.int16
    assert ours.digital.flags.c_contiguous


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
    gain=st.sampled_from([1000.0, 200.0, 4.88, 0.1, 12345.678]),
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


def test_skewed_signals_lose_their_missing_end_as_nan(tmp_path: Path) -> None:
    header = write(tmp_path, signals())
    header.write_text(header.read_text().replace(" 16 ", " 16:2 ", 1))
    with pytest.raises(UnusableError, match=r"nan: .*marked as missing"):
        read(header)


def test_several_files_and_formats_are_read_as_wfdb_reads_them(tmp_path: Path) -> None:
    signal = signals(400, 2) // 2
    one, two = tmp_path / "one.dat", tmp_path / "two.dat"
    one.write_bytes(signal[:, 0].astype("<i2").tobytes())
    two.write_bytes((signal[:, 1] // 16 + 128).astype(np.uint8).tobytes())
    (tmp_path / "r.hea").write_text("r 2 500 400\none.dat 16 200 16 0\ntwo.dat 80 100 8 0\n")
    ours, theirs = read(tmp_path / "r.hea"), wfdb.rdrecord(str(tmp_path / "r"))
    assert np.array_equal(ours.signal, theirs.p_signal.T)
    assert ours.leads == ("signal 0", "signal 1")


def test_wide_samples_are_quantised_to_a_tenth_of_a_microvolt(tmp_path: Path) -> None:
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
    header = write(tmp_path, digital, fmt, adc_gain=[10.0] * 3)
    header.write_text(header.read_text().replace("/mV", f"/{unit}"), encoding=encoding)
    recording = read(header)
    assert recording.unit == "mV"
    np.testing.assert_allclose(recording.signal, digital.T / 10 * factor, rtol=1e-12)


def test_a_signal_that_is_no_voltage_is_refused_unless_left_out(tmp_path: Path) -> None:
    header = write(tmp_path, signals(), units=["mV", "mmHg", "mV"])
    with pytest.raises(UnusableError, match=r"lead II of r\.hea is in 'mmHg', which is no voltage"):
        read(header)
    assert read(header, leads=["aVR", "I"]).leads == ("aVR", "I")


def test_leads_are_chosen_by_name_in_the_order_asked_for(tmp_path: Path) -> None:
    header = write(tmp_path, signals())
    whole, chosen = read(header), read(header, leads=["avr", "I"])
    assert chosen.leads == ("aVR", "I")
    assert np.array_equal(chosen.signal, whole.signal[[2, 0]])
    with pytest.raises(SettingError, match="has no lead V6"):
        read(header, leads=["V6"])


@pytest.mark.parametrize("fmt", ["16", "516"])
def test_missing_samples_are_nan(tmp_path: Path, fmt: str) -> None:
    digital = signals()
    digital[5, 1] = -32768
    header = write(tmp_path, digital, fmt)
    with pytest.raises(UnusableError, match=r"nan: r\.hea has samples marked as missing"):
        read(header)


@pytest.mark.parametrize("fmt", ["16", "516", "212"])
def test_less_than_the_header_says_is_truncated(tmp_path: Path, fmt: str) -> None:
    header = write(tmp_path, signals() // 2, fmt)
    header.write_text(header.read_text().replace(" 700", " 701"))
    with pytest.raises(UnusableError) as caught:
        read(header)
    assert caught.value.reason == "truncated"


def test_more_than_the_header_says_is_cut_and_no_length_is_taken_from_the_file(
    tmp_path: Path,
) -> None:
    header = write(tmp_path, signals())
    text = header.read_text()
    header.write_text(text.replace(" 700", " 600"))
    assert_equals_wfdb(header)
    header.write_text(text.replace(" 700", ""))
    assert_equals_wfdb(header)
    assert read(header).samples == 700


def test_a_zip_gives_the_same_recording_as_the_folder(tmp_path: Path) -> None:
    import zipfile

    header = write(tmp_path, signals() // 2, "212")
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("r.hea", "r.dat"):
            archive.write(tmp_path / name, f"top/{name}")
    zipped = read_wfdb(open_source(tmp_path / "all.zip"), "top/r.hea")
    assert np.array_equal(zipped.signal, read(header).signal)


def test_a_header_without_its_signal_file_is_unreadable_by_name(tmp_path: Path) -> None:
    header = write(tmp_path, signals())
    (tmp_path / "r.dat").unlink()
    with pytest.raises(UnusableError, match=r"r\.hea names r\.dat, which is not beside it"):
        read(header)


HEADERS = [
    "A00001 1 300 9000 05:05:15 1/05/2000 \nA00001.mat 16+24 1000/mV 16 0 -127 0 0 ECG \n",
    "A0001 1 500 7500 12-May-2020 12:33:59\nA0001.mat 16+24 1000/mV 16 0 28 -1716 0 aVR\n#Age: 7\n",
    "r 1 500/250.5(3) 10\nr.dat 16 200(-5)/mV 12 7 0 0 0 II with words\n",
    "r 1 500\nr.dat 16 1000.0(0)/uV 16 0 0 0 0 V1",
    "r 1\nr.dat 16",
    "# first\n\nr 1 360.00000000001 5\nr.dat 212 0 12 1024 995 -22131 0 MLII\n#last: 1\n",
    "r 1 250 5\nr.dat 16x2:3+4 1e3/nV 12\n",
    "r 2 500 5\nr.dat 16\nr.dat 16 5 5 5 V1\n",
    "r 2 500 5\nr.dat 16  1000 16 0 5 6 I\nr.dat 16  1000 16 3 5 6 II\n",
    "r 2 500 5\nr.dat 16 200 (0)/mV 12 0 0 0 I\nr.dat 16 200 (0)/mV 12 0 0 0 II\n",
    "r 6 500 5\n"
    "r.mat 16+24 1000/mV 16 0 28 -1716 0 I\nr.mat 16+24 1000/mV 16 0 7 2029 0 II\n"
    "r.mat 16+24 1000/mV 16 0 -7 2029 x III\nr.mat 16+24 1000/mV 16 0 7 2029 0 a b \n"
    "r.mat 16+24 1000/mV 16 3 7 2029 0 V1\nr.mat 16+24 1000/mV 16 3 7 2029 V2\n",
]


def assert_header_equals_wfdb(folder: Path, text: str) -> None:
    (folder / "r.hea").write_text(text)
    theirs = wfdb.rdheader(str(folder / "r"))
    ours = parse_header(text.encode(), name="r.hea")
    assert (ours.name, ours.rate, ours.samples) == (theirs.record_name, theirs.fs, theirs.sig_len)
    assert list(ours.comments) == theirs.comments
    for i, signal in enumerate(ours.signals):
        assert signal.file == theirs.file_name[i]
        assert signal.format == theirs.fmt[i]
        assert signal.samples_per_frame == theirs.samps_per_frame[i]
        assert signal.skew == (theirs.skew[i] or 0)
        assert signal.offset == (theirs.byte_offset[i] or 0)
        assert signal.gain == theirs.adc_gain[i]
        assert signal.baseline == theirs.baseline[i]
        assert signal.unit == theirs.units[i]
        assert signal.name == (theirs.sig_name[i] or "")


@pytest.mark.parametrize("text", HEADERS)
def test_headers_of_the_wild_are_parsed_as_wfdb_parses_them(tmp_path: Path, text: str) -> None:
    assert_header_equals_wfdb(tmp_path, text)


NAMES = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=8)
GAINS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.floats(0.001, 1e5).map(lambda g: f"{g:.4f}"),
    st.sampled_from(["1e3", "2.5e-2", "-200"]),
)


@st.composite
def signal_lines(draw: st.DrawFn) -> str:
    """A signal line that breaks off anywhere the format allows."""
    form = draw(st.sampled_from(["16", "212", "516", "16+24", "16x2", "80:3", "16x2:1+8"]))
    gain = draw(GAINS) + draw(st.sampled_from(["", "(0)", "(-37)"]))
    gain += draw(st.sampled_from(["", "/mV", "/uV", "/mmHg", "/V"]))
    numbers = [str(draw(st.integers(low, 99))) for low in (0, -99, -99, -99, 0)]
    name = draw(st.sampled_from(["II", "aVR", "lead of words", "V1 "]))
    fields = [f"{draw(NAMES)}.dat", form, gain, *numbers, name]
    return draw(st.sampled_from([" ", "\t", "  "])).join(fields[: draw(st.integers(2, 9))])


@settings(max_examples=100, deadline=None)
@given(
    name=NAMES,
    rate=st.sampled_from(["", " 500", " 257.5", " 360/360(10)", " 100.0/4"]),
    samples=st.sampled_from(["", " 5000"]),
    lines=st.lists(signal_lines(), min_size=1, max_size=3).map(lambda lines: lines + lines[-1:]),
    comments=st.lists(st.sampled_from(["# Age: 5", "#", "#Dx: 1,2"]), max_size=2),
)
def test_generated_headers_are_parsed_as_wfdb_parses_them(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    rate: str,
    samples: str,
    lines: list[str],
    comments: list[str],
) -> None:
    first = f"{name} {len(lines)}{rate}{samples if rate else ''}"
    text = "\n".join([first, *lines, *comments])
    assert_header_equals_wfdb(tmp_path_factory.getbasetemp(), text)


@pytest.mark.parametrize(
    "text",
    ["", "#only a comment", "r", "r 2 500 5\nr.dat 16\n", "r 1 0 5\nr.dat 16", "r 0 500 5\n",
     "r 1 . 5\nr.dat 16", "r 1 500 5\nr.dat 16 -\n", "\0\0\0", "r 1 500 5\n../etc/x 16\n"],
)  # fmt: skip
def test_a_damaged_header_is_unreadable_in_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.hea").write_text(text)
    with pytest.raises(UnusableError, match=r"unreadable: .*r\.hea") as caught:
        read(tmp_path / "r.hea")
    assert "\n" not in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["16", "516", "212"]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6),
    st.integers(0, 40),
)
def test_no_mutation_of_a_record_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory,
    fmt: str,
    in_header: list[tuple[int, int]],
    in_signal: list[tuple[int, int]],
    cut: int,
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    write(folder, np.arange(600).reshape(300, 2) % 997, fmt)
    for name, changes in (("r.hea", in_header), ("r.dat", in_signal)):
        data = bytearray((folder / name).read_bytes())
        for place, value in changes:
            data[place % len(data)] = value
        (folder / name).write_bytes(bytes(data[: len(data) - cut]))
    try:
        recording = read_wfdb(open_files(folder), "r.hea")
    except ClocsError as error:
        assert "\n" not in str(error)
    else:
        assert np.isfinite(recording.signal).all()


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


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ("", None),
        (" 11:39:16 05/02/2020", "2020-02-05T11:39:16"),
        (" 05-Feb-2020 11:39:16", "2020-02-05T11:39:16"),
        (" 11:39 05/02/2020", "2020-02-05T11:39:00"),
        (" 31/01/1999", "1999-01-31"),
        (" 11:39:16", None),
        (" 31/02/2020", None),
    ],
)
def test_a_header_says_when_recording_began(words: str, taken: str | None) -> None:
    text = f"r 1 500 5000{words}\nr.dat 16 200/mV 16 0 0 0 0 II\n"
    assert parse_header(text.encode(), name="r.hea").taken == taken

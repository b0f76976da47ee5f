"""The CSV reader equals `float` on every number, and says what is wrong with a bad file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.errors import ClocsError, UnusableError
from clocs.formats.csv import _numbers_fast, _numbers_slowly, read_csv
from clocs.formats.read import read
from clocs.formats.source import open_source
from clocs.recording import STANDARD_LEADS


def text(values: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> bytes:
    return "".join(",".join(f"{v:.5g}" for v in row) + "\n" for row in values).encode()


VALUES = np.random.default_rng(0).normal(0, 200, (5000, 12))
PLAIN = text(VALUES)


def test_microvolts_become_millivolts_in_the_standard_order() -> None:
    recording = read_csv(PLAIN, name="x")
    assert recording.leads == STANDARD_LEADS
    assert recording.rate == 500
    assert recording.unit == "mV"
    rounded = np.array([[float(f"{v:.5g}") for v in row] for row in VALUES])
    np.testing.assert_allclose(recording.signal, rounded.T / 1000, rtol=0, atol=0.500001e-4)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.rstrip(b"\n"),
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data + b"\n\n",
        lambda data: data.replace(b",", b", "),
        lambda data: b"I,II,III,aVR,aVL,aVF,V1,V2,V3,V4,V5,V6\n" + data,
        lambda data: b'"I","II","III","AVR","AVL","AVF","V1","V2","V3","V4","V5","V6"\r\n' + data,
    ],
    ids=["no last newline", "crlf", "bom", "blank end", "spaces", "header", "quoted header"],
)
def test_variants_of_the_wild_give_the_same_recording(change: object) -> None:
    assert callable(change)
    recording, plain = read_csv(change(PLAIN), name="x"), read_csv(PLAIN, name="x")
    assert recording.leads == plain.leads
    assert np.array_equal(recording.digital, plain.digital)


def test_a_header_row_names_the_leads_whatever_their_order() -> None:
    recording = read_csv(b"V2,II\n" + b"1,2\n" * 5000, name="x")
    assert recording.leads == ("V2", "II")
    np.testing.assert_allclose(recording.signal[:, 0], [0.001, 0.002])


DECIMALS = st.one_of(
    st.floats(-1e5, 1e5).map(lambda v: f"{v:.5g}"),
    st.floats(-1e5, 1e5).map(repr),
    st.integers(-99999999, 99999999).map(str),
    st.sampled_from(["0", "-0", "-0.0", "1.", ".5", "-.5", "1e3", "2.3784e-209", "-1.1074e-09"]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(DECIMALS, min_size=3, max_size=3), min_size=1, max_size=6))
def test_the_fast_and_the_slow_parser_equal_float(rows: list[list[str]]) -> None:
    body = "".join(",".join(row) + "\n" for row in rows).encode()
    values = _numbers_fast(body, columns=3)
    expected = np.array([[float(field) for field in row] for row in rows]).T
    assert values is not None and np.array_equal(values, expected)
    assert np.array_equal(_numbers_slowly(body, columns=3, name="x"), expected)


def test_a_row_too_long_does_not_make_up_for_one_too_short() -> None:
    assert _numbers_fast(b"1,2\n1,2,3,4\n", columns=3) is None


def with_field(row: int, column: int, field: bytes) -> bytes:
    lines = PLAIN.split(b"\n")
    fields = lines[row].split(b",")
    fields[column] = field
    lines[row] = b",".join(fields)
    return b"\n".join(lines)


@pytest.mark.parametrize(
    ("data", "reason", "says"),
    [
        (PLAIN[: len(PLAIN) // 2], "truncated", "x breaks off in row"),
        (b"\n".join(PLAIN.split(b"\n")[:4999]) + b"\n", "unreadable", "x has 4,999 rows"),
        (with_field(4999, 11, b""), "truncated", "empty field in row 5000"),
        (with_field(17, 6, b"NaN"), "nan", "no finite value in row 18, lead V1"),
        (with_field(17, 6, b"inf"), "nan", "no finite value in row 18, lead V1"),
        (with_field(17, 6, b""), "nan", "empty field in row 18"),
        (with_field(17, 6, b"hello"), "unreadable", "b'hello' for a number in row 18"),
        (with_field(17, 6, b"1.2.3"), "unreadable", "b'1.2.3' for a number in row 18"),
        (with_field(17, 6, b"1,2"), "unreadable", "13 columns in row 18, 12 above"),
        (b"1,2,3\n" * 5000, "unreadable", "3 columns and no header row; 12 leads are expected"),
        (b"", "truncated", "empty"),
        (b"\x89PNG\r\n\x1a\n\0\0", "unreadable", "x"),
        (b"<html>,<html>\n", "unreadable", "neither numbers nor lead names"),
    ],
)
def test_a_bad_file_gets_its_reason_and_place(data: bytes, reason: str, says: str) -> None:
    with pytest.raises(UnusableError) as caught:
        read_csv(data, name="x")
    assert caught.value.reason == reason
    assert says in caught.value.detail


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 800), st.integers(0, 255)), max_size=6),
    st.integers(0, 60),
)
def test_no_mutation_of_a_file_escapes_as_another_error(
    changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(text(VALUES[:10]))
    for place, value in changes:
        data[place % len(data)] = value
    try:
        recording = read_csv(bytes(data[: len(data) - cut]), name="x", rows=5)
    except ClocsError as error:
        assert "\n" not in str(error)
    else:
        assert np.isfinite(recording.signal).all()


def test_read_takes_csv_files_by_suffix_and_leads_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(PLAIN)
    recording = read(tmp_path / "x.csv", leads=["V2", "II"])
    assert recording.id == "x"
    assert np.array_equal(recording.digital, read_csv(PLAIN, name="x").digital[[7, 1]])


def test_published_samples_equal_pandas_to_a_twentieth_of_a_microvolt(
    real_data: Path, tmp_path: Path
) -> None:
    source = open_source(real_data / "samples" / "chapman" / "ECGDataDenoised.zip")
    for name in source.names[:4]:
        (tmp_path / "x.csv").write_bytes(source.read(name))
        expected = pd.read_csv(tmp_path / "x.csv", header=None).to_numpy().T / 1000
        recording = read(tmp_path / "x.csv")
        step = 0.5 / recording.gain[:, None]
        assert (np.abs(recording.signal - expected) <= step * 1.0001).all()


def test_a_csv_in_millivolts_is_refused_by_the_strict_reader(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match=r"in µV, which is no ECG; .* as `unit`"):
        read_csv(text(VALUES / 1000), name="x")
    (tmp_path / "x.csv").write_bytes(text(VALUES / 1000))
    for right in (read(tmp_path / "x.csv", unit="mV"), read(tmp_path / "x.csv")):
        np.testing.assert_allclose(right.signal, VALUES.T / 1000, rtol=1e-4, atol=1e-4)
    (tmp_path / "y.csv").write_bytes(PLAIN)
    with pytest.raises(UnusableError, match="mV with the gain and baseline that it gives"):
        read(tmp_path / "y.csv", unit="mV")
    with pytest.raises(ClocsError, match="`unit` is 'volts'; give mV"):
        read(tmp_path / "y.csv", unit="volts")


def test_a_csv_of_another_length_is_refused_until_its_rate_is_given(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(text(VALUES[:2500]))
    with pytest.raises(UnusableError, match=r"2,500 rows, not the 5,000 .* as `rate`"):
        read(tmp_path / "x.csv")
    assert read(tmp_path / "x.csv", rate=250).seconds == 10.0
    with pytest.raises(ClocsError, match="`rate` is 0"):
        read(tmp_path / "x.csv", rate=0)

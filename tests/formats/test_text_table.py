"""Tables of numbers in text, as people and programs write them; most are written by pandas."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.errors import ClocsError, SettingError, UnusableError
from clocs.formats.base import ReadOptions
from clocs.formats.text_table import CSV, read_table
from clocs.recording import STANDARD_LEADS, Gap

RATE = 250.0
SIGNAL = np.random.default_rng(1).normal(0, 0.3, (12, 1000)).round(3)  # mV
WIDE = pd.DataFrame(SIGNAL.T, columns=list(STANDARD_LEADS))


def written(table: pd.DataFrame, **how: Any) -> bytes:
    return str(table.to_csv(**({"index": False} | how))).encode()


def check(data: bytes, **options: Any) -> None:
    recording = read_table(data, name="x", options=ReadOptions(**({"rate": RATE} | options)))
    assert recording.leads == STANDARD_LEADS
    assert recording.rate == RATE
    np.testing.assert_allclose(recording.signal, SIGNAL, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sep", [",", ";", "\t", "|", " "])
@pytest.mark.parametrize("header", [True, False], ids=["header", "no header"])
def test_every_separator_gives_the_same_recording(sep: str, header: bool) -> None:
    check(written(WIDE, sep=sep, header=header))


@pytest.mark.parametrize("sep", [";", "\t", "|", " "])
def test_a_decimal_comma_is_understood(sep: str) -> None:
    check(written(WIDE, sep=sep, decimal=","))
    check(written(WIDE, sep=sep, decimal=",", header=False))


@pytest.mark.parametrize("name", ["II", "ECG"])
def test_a_decimal_comma_below_one_name_is_no_separator(name: str) -> None:
    data = written(pd.DataFrame({name: SIGNAL[0]}), sep=";", decimal=",")
    recording = read_table(data, name="x", options=ReadOptions(rate=RATE))
    assert recording.leads == (name,)
    np.testing.assert_allclose(recording.signal[0], SIGNAL[0], atol=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: b"\xff\xfe" + data.decode().encode("utf-16-le"),
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b"\n", b"\r"),
        lambda data: b"# made by a device\n\n% Rate: 250 Hz\n" + data + b"# the end\n",
        lambda data: data.replace(b",", b" , "),
        lambda data: data.replace(b",", b" ,\t"),
        lambda data: data.replace(b"\n", b",\n"),
        lambda data: data.rstrip(b"\n") + b"\n\n\n",
        lambda data: b"".join(b"  " + line + b"\n" for line in data.splitlines()),
    ],
    ids=[
        "bom",
        "utf-16",
        "crlf",
        "cr",
        "comments",
        "spaces",
        "tabs",
        "trailing",
        "blank",
        "indent",
    ],
)
def test_variants_of_the_wild_give_the_same_recording(change: Any) -> None:
    check(change(written(WIDE)))


def test_every_field_may_be_quoted() -> None:
    check(written(WIDE, quoting=1))
    check(written(WIDE, quoting=1, sep=";", decimal=","))
    check(written(WIDE, quoting=1, quotechar="'"))


def test_columns_numbered_by_a_library_are_no_sample() -> None:
    check(written(pd.DataFrame(SIGNAL.T)))
    check(written(pd.DataFrame(SIGNAL.T), index=True))


@pytest.mark.parametrize("column", ["Zeit", "Zeit [s]", "Time", "t [s]", "Laufzeit"])
def test_times_of_a_german_spreadsheet_give_the_rate(column: str) -> None:
    """Semicolons, decimal commas, and a first column that rises by equal steps, however named."""
    table = WIDE.copy()
    table.insert(0, column, np.arange(1000) / RATE)
    check(written(table, sep=";", decimal=","), rate=None)


def test_a_counter_is_no_lead() -> None:
    check(written(WIDE, index=True))
    check(written(WIDE, index=True, index_label="sample"))
    check(written(WIDE, index=True, header=False))


@pytest.mark.parametrize(
    ("column", "times"),
    [
        ("time", np.arange(1000) / RATE),
        ("Time (s)", np.arange(1000) / RATE),
        ("t [ms]", np.arange(1000) / RATE * 1e3),
        ("time_ms", np.arange(1000) / RATE * 1e3),
        ("time", np.arange(1000) / RATE * 1e3),
        ("timestamp", 1.6e9 + np.arange(1000) / RATE),
        ("Elapsed time", [f"{i // 250 // 60}:{i / 250 % 60:06.3f}" for i in range(1000)]),
    ],
)
def test_a_column_of_times_gives_the_rate(column: str, times: Any) -> None:
    table = WIDE.copy()
    table.insert(0, column, times)
    recording = read_table(written(table), name="x")
    assert recording.rate == RATE
    assert recording.leads == STANDARD_LEADS
    assert "rate of 250 Hz" in recording.extra["notice"]


def test_times_rounded_to_milliseconds_give_the_rate_that_they_were_rounded_from() -> None:
    table = WIDE.copy()
    table.insert(0, "time (s)", (np.arange(1000) / 360).round(3))
    assert read_table(written(table), name="x").rate == 360


def test_times_that_jump_are_refused_until_the_rate_is_given() -> None:
    table = WIDE.copy()
    times = np.arange(1000) / RATE
    times[500:] += 1
    table.insert(0, "time", times)
    with pytest.raises(UnusableError, match=r"jump in row 501; give the sampling rate .* `rate`"):
        read_table(written(table), name="x")
    check(written(table))


def test_a_time_that_counts_by_one_gives_no_rate() -> None:
    table = WIDE.copy()
    table.insert(0, "time", range(1000))
    with pytest.raises(UnusableError, match="as `rate`"):
        read_table(written(table), name="x")
    check(written(table))


@pytest.mark.parametrize("order", ["by lead", "by sample", "shuffled"])
@pytest.mark.parametrize("key", ["sample", "time", "none"])
def test_a_long_table_gives_the_same_recording(order: str, key: str) -> None:
    table = WIDE.rename_axis("sample").reset_index()
    long = table.melt("sample", var_name="Lead", value_name="value (mV)")
    long["time"] = long["sample"] / RATE
    if order == "by sample":
        long = long.sort_values("sample", kind="stable")
    if order == "shuffled":
        if key == "none":
            return
        long = long.sample(frac=1, random_state=1)
        long = pd.concat([long[long["Lead"] == lead] for lead in STANDARD_LEADS])
    kept = ["Lead", "value (mV)", *([] if key == "none" else [key])]
    if key == "time":
        recording = read_table(written(long[kept]), name="x")
        assert recording.rate == RATE
    check(written(long[kept], sep=";"))


def test_a_lead_without_rows_for_some_samples_has_a_gap() -> None:
    long = WIDE[["I", "II"]].rename_axis("sample").reset_index().melt("sample", var_name="lead")
    long = long[~((long["lead"] == "II") & long["sample"].between(10, 19))]
    recording = read_table(written(long), name="x", options=ReadOptions(rate=RATE))
    assert recording.gaps == (Gap(10, 20, "II"),)


def test_leads_as_rows_are_told_by_the_shape() -> None:
    data = written(pd.DataFrame(SIGNAL), header=False)
    check(data)
    recording = read_table(data, name="x", options=ReadOptions(rate=RATE))
    assert "12 rows of 1,000 numbers are taken as leads" in recording.extra["notice"]
    named = written(pd.DataFrame(SIGNAL, index=list(STANDARD_LEADS)), header=False, index=True)
    check(named)
    check(named.replace(b",", b"\t"))


def test_the_unit_is_told_by_the_size_with_a_notice() -> None:
    for factor, unit in ((1.0, "mV"), (1000.0, "µV"), (0.001, "V")):
        recording = read_table(
            written((WIDE * factor).round(6)), name="x", options=ReadOptions(rate=RATE)
        )
        np.testing.assert_allclose(recording.signal, SIGNAL, atol=1e-9)
        assert f"values are assumed to be in {unit}" in recording.extra["notice"]
    with pytest.raises(UnusableError, match="fits no unit; give it as `unit`"):
        read_table(written(WIDE * 20), name="x", options=ReadOptions(rate=RATE))
    with pytest.raises(SettingError, match="`unit` is 'furlong'"):
        check(written(WIDE), unit="furlong")


def test_a_rate_is_for_files_that_do_not_say_theirs() -> None:
    table = WIDE.copy()
    table.insert(0, "time_ms", np.arange(len(table)) / RATE * 1e3)
    recording = read_table(written(table), name="x", options=ReadOptions(rate=2 * RATE))
    assert recording.rate == RATE
    assert f"not the {2 * RATE:g} Hz that were given" in recording.extra["notice"]
    table = table.rename(columns={"time_ms": "time"})  # whose unit would be a guess
    recording = read_table(written(table), name="x", options=ReadOptions(rate=2 * RATE))
    assert recording.rate == 2 * RATE


def test_a_unit_in_the_header_is_believed() -> None:
    small = WIDE / 100  # would be taken as V
    data = written(small.rename(columns=lambda lead: f"{lead} [mV]"))
    recording = read_table(data, name="x", options=ReadOptions(rate=RATE))
    assert recording.leads == STANDARD_LEADS
    np.testing.assert_allclose(recording.signal, SIGNAL / 100, atol=5e-5)
    assert "notice" not in recording.extra


def test_a_line_of_units_below_the_names_as_rdsamp_writes_it() -> None:
    lines = ["'Elapsed time','MLII','V5'", "'hh:mm:ss.mmm','mV','uV'"]
    lines += [f"'0:{i / 250:06.3f}',{SIGNAL[1, i]},{1000 * SIGNAL[10, i]}" for i in range(1000)]
    recording = read_table("\n".join(lines).encode(), name="x")
    assert recording.leads == ("II", "V5")
    assert recording.rate == RATE
    np.testing.assert_allclose(recording.signal, SIGNAL[[1, 10]], atol=1e-9)


def test_comments_give_rate_and_unit() -> None:
    data = b"# Sampling rate: 250 Hz\n# units = uV\n# device: abc\n" + written(WIDE * 30)
    recording = read_table(data, name="x")
    assert recording.rate == 250
    assert recording.extra["device"] == "abc"
    np.testing.assert_allclose(recording.signal, SIGNAL * 0.03, atol=5e-5)


def test_missing_values_are_gaps() -> None:
    table = WIDE.copy()
    table.loc[5:9, "V1"] = np.nan
    table["V6"] = np.nan
    for missing in ("", "NaN", "NA", "null", "?"):
        recording = read_table(
            written(table, na_rep=missing), name="x", options=ReadOptions(rate=RATE)
        )
        assert recording.leads == STANDARD_LEADS[:-1]
        assert recording.gaps == (Gap(5, 10, "V1"),)


def test_columns_that_are_no_signal_are_left_out() -> None:
    table = WIDE.assign(label=1, patient=7, note="quiet")
    recording = read_table(written(table), name="x", options=ReadOptions(rate=RATE))
    assert recording.leads == STANDARD_LEADS
    assert "left out: note" in recording.extra["notice"]


@pytest.mark.parametrize(
    ("data", "reason", "says"),
    [
        (b"", "truncated", "x is empty"),
        (b"hello world\n", "unreadable", "x is no table of numbers"),
        (b"\x89PNG\r\n\x1a\n\0\0", "unreadable", "x is no table of numbers"),
        (
            written(WIDE[["I", "II"]], header=False),
            "unreadable",
            "in order, with `lead_names`, such as 1=I,2=II",
        ),
        (written(WIDE)[:-30], "truncated", "breaks off in row 1,000"),
        (
            written(WIDE) + b"0," * 12 + b"0\n" + b"0," * 11 + b"0\n",
            "unreadable",
            "13 columns in row",
        ),
        (written(WIDE) + b"0," * 11 + b"x\n", "unreadable", "'x' for a number in row 1,001"),
        (written(WIDE[["I", "I"]]), "unreadable", "has several leads of one name: 'I', 'I'"),
    ],
)
def test_a_bad_table_gets_its_reason_and_place(data: bytes, reason: str, says: str) -> None:
    with pytest.raises(UnusableError) as caught:
        read_table(data, name="x", options=ReadOptions(rate=RATE))
    assert caught.value.reason == reason
    assert says in caught.value.detail


def test_leads_without_names_are_those_given() -> None:
    data = written(WIDE[["II", "V5"]], header=False)
    options = ReadOptions(rate=RATE, leads=("II", "V5"))
    assert read_table(data, name="x", options=options).leads == ("II", "V5")


def test_a_stretch_is_what_the_whole_has_there() -> None:
    whole = read_table(written(WIDE), name="x", options=ReadOptions(rate=RATE))
    options = ReadOptions(rate=RATE, start=1, stop=2)
    stretch = read_table(written(WIDE), name="x", options=options)
    np.testing.assert_array_equal(stretch.digital, whole.digital[:, 250:500])


def test_empty_rows_without_end_are_refused_before_memory_is_taken() -> None:
    data = written(WIDE) + b",\n" * 30_000_000
    with pytest.raises(UnusableError, match=r"exceeds limits: x has 30,001,\d+ rows"):
        read_table(data, name="x", options=ReadOptions(rate=RATE))


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (written(WIDE), True),
        (written(WIDE, header=False), True),
        (written(WIDE.rename_axis("sample").reset_index().melt("sample", var_name="lead")), True),
        (b"time,ecg\n0,0.1\n0.004,0.2\n", True),
        (b"file,patient,label\na,1,AF\nb,2,SR\n", False),
        (b"id,age,fold\n1,63,2\n2,50,1\n", False),
        (b"Dear reader,\nthis is text.\n", False),
        (b"100\n101\n102\n", False),
        (b"PK\x03\x04\0\0\0", False),
    ],
)
def test_tables_of_signals_are_told_from_other_tables(data: bytes, is_one: bool) -> None:
    assert CSV.recognise is not None
    assert CSV.recognise(data[:4096]) is is_one


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=8),
    st.integers(0, 500),
    st.sampled_from([",", ";", "\t", " "]),
)
def test_no_mutation_of_a_file_escapes_as_another_error(
    changes: list[tuple[int, int]], cut: int, sep: str
) -> None:
    data = bytearray(written(WIDE[:60], sep=sep))
    for place, value in changes:
        data[place % len(data)] = value
    try:
        read_table(bytes(data[: len(data) - cut]), name="x", options=ReadOptions(rate=RATE))
    except ClocsError as error:
        assert "\n" not in str(error)


def test_the_fast_path_of_one_dataset_and_this_reader_agree(real_data: Path) -> None:
    from clocs.formats.csv import read_csv
    from clocs.formats.source import open_source

    source = open_source(real_data / "samples" / "chapman" / "ECGDataDenoised.zip")
    for name in source.names[:4]:
        strict, general = (
            read_csv(source.read(name), name="x"),
            read_table(source.read(name), name="x"),
        )
        np.testing.assert_array_equal(strict.digital, general.digital)
        np.testing.assert_array_equal(strict.gain, general.gain)


@pytest.mark.parametrize(
    "data",
    [
        b"I II" + b" " * 300_000 + b"\n" + b"1 2" + b" " * 300_000 + b"x\n3 4\n",
        b"I;II\n" + b"1;2\n" * 30 + b"1 ;" + b" " * 300_000 + b"2 x\n",
        b"a" * 300_000 + b",",
        b"I,II\n" + b"9" * 300_000 + b"x,1\n" + b"1,2\n" * 30,
        b"(" * 500 + b" " * 300_000 + b"\n1\n2\n",
        b"(" * 190 + b",II\n" + b"1,2\n" * 30,
    ],
)
def test_long_runs_of_anything_are_read_in_linear_time(data: bytes) -> None:
    start = time.process_time()
    with contextlib.suppress(UnusableError):
        read_table(data, name="x", options=ReadOptions(rate=RATE))
    assert CSV.recognise is not None
    CSV.recognise(data[:4096])
    assert time.process_time() - start < 10  # in quadratic time, minutes


def test_text_among_the_values_of_a_long_table_is_unreadable() -> None:
    rows = "\n".join(f"{i},I,0.{i % 9}" for i in range(300)).replace("\n7,I,0.7", "\n7,I,/dev/zero")
    with pytest.raises(UnusableError, match="text in its column value"):
        read_table(f"sample,lead,value\n{rows}\n".encode(), name="x")

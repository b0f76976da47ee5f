"""Tables of numbers in text, as people and programs write them; most are written by pandas."""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.errors import ClocsError, SettingError, UnknownRateError, UnusableError
from clocs.formats.base import ReadOptions
from clocs.formats.source import open_source
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


STAMPS = pd.date_range("2024-01-01 11:59:59.5", periods=1000, freq="4ms").as_unit("ns")


@pytest.mark.parametrize(
    ("column", "times"),
    [
        ("time", STAMPS),
        ("datetime", STAMPS.strftime("%Y-%m-%dT%H:%M:%S.%fZ")),
        ("Zeitstempel", [str(one.to_pydatetime()) for one in STAMPS]),  # no zeros at the end
        ("Timestamp", STAMPS.strftime("%Y/%m/%d %H:%M:%S.%f+0100")),
        ("time", STAMPS.strftime("%Y-%m-%d %H:%M:%S.%f+01:00")),
        ("Uhrzeit", (STAMPS + pd.Timedelta("12h")).strftime("%H:%M:%S.%f")),  # past midnight
        ("timestamp", STAMPS.astype("int64") // 10**6),
        ("timestamp", STAMPS.astype("int64") // 10**3),
        ("sensor timestamp [ns]", STAMPS.astype("int64")),
    ],
)
def test_a_column_of_dates_gives_the_rate(column: str, times: Any) -> None:
    table = WIDE.copy()
    table.insert(0, column, times)
    for data in (written(table), written(table, sep=";", decimal=",")):
        recording = read_table(data, name="x")
        assert (recording.rate, recording.leads) == (RATE, STANDARD_LEADS)
        assert "rate of 250 Hz" in recording.extra["notice"]
        assert CSV.recognize is not None and CSV.recognize(data[:4096])


def test_dates_in_milliseconds_at_1000_hz_are_no_counter() -> None:
    table = WIDE.copy()
    table.insert(0, "time", 1_704_110_400_000 + np.arange(1000))
    assert read_table(written(table), name="x").rate == 1000


def test_dates_that_jump_or_are_too_coarse_are_refused_until_the_rate_is_given() -> None:
    jumps, coarse = WIDE.copy(), WIDE.copy()
    jumps.insert(0, "time", STAMPS + pd.to_timedelta(np.arange(1000) // 500, "s"))
    coarse.insert(0, "time", STAMPS.strftime("%Y-%m-%d %H:%M:%S"))
    for table, says in ((jumps, "jump in row 501"), (coarse, "steps of 1 s, too coarse")):
        with pytest.raises(UnusableError, match=rf"{says}.* give .* as `rate`"):
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
        dated = long[kept].assign(time=STAMPS[long["sample"]])
        assert read_table(written(dated), name="x").rate == RATE
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


def test_comments_give_rate_and_unit_and_no_name() -> None:
    said = b"# Sampling rate: 250 Hz\n# units = uV\n# device: abc\n# Patient name: Ann Doe\n"
    recording = read_table(said + b"# DOB: 1960-01-01\n" + written(WIDE * 30), name="x")
    assert recording.rate == 250
    assert recording.extra == {"sampling rate": "250 Hz", "device": "abc"}
    np.testing.assert_allclose(recording.signal, SIGNAL * 0.03, atol=5e-5)


@pytest.mark.parametrize("code", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("name", ["{} [µV]", "{} (µV)"])
def test_the_unit_in_a_header_is_read_in_every_encoding(code: str, name: str) -> None:
    table = (WIDE * 30).round(3).rename(columns=name.format)  # a size that would be taken for mV
    data = table.to_csv(index=False, sep=";", decimal=",", lineterminator="\r\n").encode(code)
    assert CSV.recognize is not None and CSV.recognize(data[:4096])
    recording = read_table(data, name="x", options=ReadOptions(rate=RATE))
    assert recording.leads == STANDARD_LEADS
    np.testing.assert_allclose(recording.signal, SIGNAL * 0.03, atol=5e-5)
    assert "notice" not in recording.extra


# The header lines of Apple's exports, as the watch's language and region have them.
APPLE = {
    "English": 'Name,Ann Doe\nDate of Birth,"Feb 5, 1952"\nRecorded Date,{}\nClassification,'
    'Sinus Rhythm\nSymptoms,\nSoftware Version,1.51\nDevice,"Watch5,4"\n'
    "Sample Rate,512.844 hertz\n\n\nLead,Lead I\nUnit,µV\n\n",
    "English, no name, decimal commas": 'Name\nDate of Birth,"4 Jan 1992"\nRecorded Date,{}\n'
    "Classification,Heart Rate Over 120\nSymptoms,Rapid, pounding or fluttering heartbeat\n"
    'Software Version,1.90\nDevice,"Watch7,11"\nSample Rate,512,844 hertz\n\n\n'
    "Lead,Lead I\nUnit,µV\n\n",
    "German": 'Name,Max Mustermann\nGeburtstag,"27.03.1987"\nAufzeichnungsdatum,{}\n'
    'Klassifizierung,Sinusrhythmus\nSymptome,\nSoftwareversion,1.13\nGerät,"Watch4,2"\n'
    "Messrate,512,844\xa0Hertz\n\n\nAbleitung,Ableitung I\nEinheit,µV\n\n",
    "Portuguese": 'Nome,João Silva\nData de Nascimento,"05/02/1952"\nData de Gravação,{}\n'
    'Classificação,Ritmo Sinusal\nSintomas,\nVersão do Software,2.0\nDispositivo,"Watch6,7"\n'
    "Taxa de Amostragem,512,844 Hz\n\n\nDerivação,Derivação I\nUnidade,µV\n\n",
    "French": "Nom,Jeanne Martin\nEnregistré le,{}\nClassification,Rythme sinusal\n"
    "Fréquence d'échantillonnage,512,844\xa0Hz\n\n\nDérivation,Dérivation I\nUnité,µV\n\n",
    "Spanish": "Nombre,Ana García\nFecha de grabación,{}\nClasificación,Ritmo sinusal\n"
    "Frecuencia de muestreo,512,844 Hz\n\n\nDerivación,Derivación I\nUnidad,µV\n\n",
    "Japanese": '名前,山田 太郎\n生年月日,"1990/01/01"\n記録日,{}\n分類,洞調律\n症状,\n'
    'ソフトウェアバージョン,1.90\nデバイス,"Watch6,7"\nサンプルレート,512.844ヘルツ\n\n\n'
    "リード,リードI\n単位,µV\n\n",
}


@pytest.mark.parametrize("language", APPLE)
@pytest.mark.parametrize("quoted", [False, True])
def test_an_export_of_an_apple_watch_is_read_without_its_owner(language: str, quoted: bool) -> None:
    microvolts = (SIGNAL[0] * 1000 / 7).round(3)
    comma = "512,844" in APPLE[language]
    lines = [f"{v:g}".replace(".", ",") if comma else f"{v:g}" for v in microvolts]
    lines = [f'"{line}"' for line in lines] if quoted else lines
    data = (APPLE[language].format("2020-02-05 09:14:40 -0400") + "\n".join(lines)).encode()
    assert CSV.recognize is not None and CSV.recognize(data[:4096])
    recording = read_table(data, name="ecg_2020-02-05")
    assert (recording.leads, recording.rate) == (("I",), 512.844)
    np.testing.assert_allclose(recording.signal[0], microvolts / 1000, atol=5e-5)
    assert recording.recorded_at == "2020-02-05T09:14:40"
    assert (recording.patient, recording.extra) == ("ecg_2020-02-05", {})


def test_the_settings_of_filters_are_no_rate() -> None:
    lines = "Patient Name;Ann Doe\nDOB;1960-01-01 00:00:00\nAC filter;50 Hz\nLow pass;150 Hz\n"
    data = (lines + "Unit;mV\n").encode() + written(WIDE, sep=";", decimal=",")
    with pytest.raises(UnknownRateError, match="x does not say its sampling rate"):
        read_table(data, name="x")
    check(data)
    said = read_table(data.replace(b"AC filter;50", b"Sampling rate;1,000"), name="x")
    assert (said.rate, said.recorded_at, said.extra) == (1000, None, {})


def test_a_table_of_a_contec_with_the_limb_leads_alone_is_read() -> None:
    """As contec-ecg2csv writes it: twelve columns without names, empty where no lead was on."""
    steps = (SIGNAL[:6].T * 1000).astype(int)
    for empty in ("", "None"):
        rows = "".join(",".join([*map(str, row), *[empty] * 6]) + "\n" for row in steps)
        assert CSV.recognize is not None and CSV.recognize(rows.encode()[:4096])
        recording = read_table(rows.encode(), name="x", options=ReadOptions(rate=800, unit="µV"))
        assert recording.leads == STANDARD_LEADS[:6]
        assert recording.extra["leads without values"] == "V1, V2, V3, V4, V5, V6"
        np.testing.assert_array_equal(recording.signal, steps.T / 1000)


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
        (b"time,mV\n0,1\n4,2\n", True),
        (b"I,II\n0,1\n4,2\n", True),
        (b"Ward report\nName,Ann\nRoom,3\nFloor,2\nBed,1\n\n" + b"36.5\n" * 20, False),
        (b"file,patient,label\na,1,AF\nb,2,SR\n", False),
        (b"id,age,fold\n1,63,2\n2,50,1\n", False),
        (b"Dear reader,\nthis is text.\n", False),
        (b"100\n101\n102\n", False),
        (b"PK\x03\x04\0\0\0", False),
    ],
)
def test_tables_of_signals_are_told_from_other_tables(data: bytes, is_one: bool) -> None:
    assert CSV.recognize is not None
    assert CSV.recognize(data[:4096]) is is_one


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


def test_published_samples_equal_pandas_to_a_twentieth_of_a_microvolt(real_data: Path) -> None:
    source = open_source(real_data / "samples" / "chapman" / "ECGDataDenoised.zip")
    for name in source.names[:4]:
        data = source.read(name)
        recording = read_table(data, name="x", options=ReadOptions(rate=500, unit="µV"))
        expected = pd.read_csv(io.BytesIO(data), header=None).to_numpy().T / 1000
        step = 0.5 / recording.gain[:, None]
        assert (np.abs(recording.signal - expected) <= step * 1.0001).all()


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
    assert CSV.recognize is not None
    CSV.recognize(data[:4096])
    assert time.process_time() - start < 10  # in quadratic time, minutes


def test_text_among_the_values_of_a_long_table_is_unreadable() -> None:
    rows = "\n".join(f"{i},I,0.{i % 9}" for i in range(300)).replace("\n7,I,0.7", "\n7,I,/dev/zero")
    with pytest.raises(UnusableError, match="text in its column value"):
        read_table(f"sample,lead,value\n{rows}\n".encode(), name="x")

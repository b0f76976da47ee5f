"""Parquet files, written by Polars: wide, long, and a row per recording with lists."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from clocs.errors import UnusableError
from clocs.formats.base import Part, ReadOptions
from clocs.formats.source import Source, hold_files, open_source
from clocs.formats.tables import PARQUET
from clocs.recording import STANDARD_LEADS, Gap, Recording

RATE = 250.0
ECG = np.random.default_rng(5).normal(0, 0.3, (3, 12, 1000))  # mV
WIDE = pl.DataFrame(dict(zip(STANDARD_LEADS, ECG[0], strict=True)))


def saved(table: pl.DataFrame, **how: Any) -> Source:
    file = io.BytesIO()
    table.write_parquet(file, **how)
    return hold_files({"x.parquet": file.getvalue()})


def read(source: Source, **options: Any) -> Recording:
    return PARQUET.read(source, "x.parquet", ReadOptions(**({"rate": RATE} | options)))


def parts(source: Source) -> list[Part]:
    return list(PARQUET.parts(source, "x.parquet", ReadOptions()))


def lists(**more: Any) -> pl.DataFrame:
    """A row per recording, a list per lead."""
    leads = {lead: ECG[:, i].tolist() for i, lead in enumerate(STANDARD_LEADS)}
    return pl.DataFrame(more | leads)


def test_a_column_per_lead(tmp_path: Path) -> None:
    WIDE.write_parquet(tmp_path / "x.parquet")
    for source in (saved(WIDE), open_source(tmp_path)):
        assert parts(source) == [Part("")]
        recording = read(source)
        assert recording.leads == STANDARD_LEADS
        assert (recording.id, recording.patient) == ("x", "x")
        np.testing.assert_allclose(recording.signal, ECG[0], atol=5.1e-5)


def test_a_column_of_times_gives_the_rate() -> None:
    table = WIDE.with_columns((pl.int_range(pl.len()) / 500).alias("time"))
    recording = read(saved(table), rate=None)
    assert recording.rate == 500
    assert recording.leads == STANDARD_LEADS


def test_recordings_told_apart_by_patients_are_numbered_not_named_after_them() -> None:
    tables = [WIDE.with_columns(patient=pl.lit(name)) for name in ("Doe, Jane", "Roe, Rick")]
    source = saved(pl.concat(tables))
    assert [part.name for part in parts(source)] == ["0", "1"]
    second = read(source, part="1")
    assert (second.id, second.patient) == ("x_1", "Roe, Rick")


def test_a_column_of_ids_divides_a_wide_table() -> None:
    tables = [WIDE.with_columns(ecg_id=pl.lit(i), patient=pl.lit(f"p{i}")) for i in (7, 9)]
    tables[1] = tables[1].with_columns(pl.col(lead) * 2 for lead in STANDARD_LEADS)
    source = saved(pl.concat(tables))
    assert [part.name for part in parts(source)] == ["7", "9"]
    recording = read(source, part="9")
    assert recording.patient == "p9"
    np.testing.assert_allclose(recording.signal, ECG[0] * 2, atol=5.1e-5)


def test_a_row_per_recording_with_a_list_per_lead() -> None:
    table = lists(
        id=["a", "b", "c"], patient_id=[1, 1, 2], fs=[500, 500, 250], sex=["M", "F", "F"]
    ).with_columns(labels=pl.Series([["AF"], ["SR", "PVC"], []]))
    source = saved(table, row_group_size=1)
    assert parts(source) == [Part("a", None, "1"), Part("b", None, "1"), Part("c", None, "2")]
    recording = read(source, part="b", rate=None)
    assert (recording.rate, recording.patient, recording.sex) == (500, "1", "female")
    assert recording.leads == STANDARD_LEADS
    np.testing.assert_allclose(recording.signal, ECG[1], atol=5.1e-5)
    assert read(source, part="c").rate == 250


@pytest.mark.parametrize("fixed", [False, True], ids=["list", "array"])
@pytest.mark.parametrize("across", [False, True], ids=["leads first", "samples first"])
def test_a_row_per_recording_with_a_list_of_lists(fixed: bool, across: bool) -> None:
    values = ECG.transpose(0, 2, 1) if across else ECG
    kind = pl.Array(pl.Float64, values.shape[1:]) if fixed else pl.List(pl.List(pl.Float64))
    table = pl.DataFrame({"signal": pl.Series(values.tolist(), dtype=kind)})
    source = saved(table)
    assert [part.name for part in parts(source)] == ["0", "1", "2"]
    recording = read(source, part="2")
    np.testing.assert_allclose(recording.signal, ECG[2], atol=5.1e-5)


def test_a_list_of_one_lead() -> None:
    table = pl.DataFrame({"id": ["a", "b"], "ecg": ECG[:2, 1].tolist()})
    recording = read(saved(table), part="b")
    assert recording.leads == ("ECG",)
    np.testing.assert_allclose(recording.signal[0], ECG[1, 1], atol=5.1e-5)


def test_a_long_table() -> None:
    long = WIDE.with_row_index("sample").unpivot(index="sample", variable_name="lead")
    recording = read(saved(long.sample(fraction=1, shuffle=True, seed=1).sort("lead")))
    assert set(recording.leads) == set(STANDARD_LEADS)
    chosen = recording.select(STANDARD_LEADS)
    np.testing.assert_allclose(chosen.signal, ECG[0], atol=5.1e-5)


def test_nulls_are_gaps_and_whole_numbers_stay_whole() -> None:
    whole = pl.DataFrame({"II (uV)": (ECG[0, 1] * 1000).astype(np.int16)})
    recording = read(saved(whole))
    np.testing.assert_array_equal(recording.digital[0], whole.to_series().to_numpy())
    assert "notice" not in recording.extra
    holes = WIDE.with_columns(V1=pl.when(pl.int_range(pl.len()) < 5).then(None).otherwise("V1"))
    assert read(saved(holes)).gaps == (Gap(0, 5, "V1"),)


def test_leads_of_different_lengths_are_refused() -> None:
    table = pl.DataFrame({"I": [[0.1] * 100], "II": [[0.1] * 99]})
    with pytest.raises(UnusableError, match="lists of different lengths"):
        read(saved(table))
    table = pl.DataFrame({"signal": [[[0.1] * 100, [0.1] * 98]]})
    with pytest.raises(UnusableError, match="lists of different lengths"):
        read(saved(table))


def test_a_table_without_numbers_is_refused() -> None:
    with pytest.raises(UnusableError, match="no column of numbers"):
        read(saved(pl.DataFrame({"file": ["a"], "label": ["AF"]})))


def test_every_cut_of_a_file_is_an_error_of_one_sentence() -> None:
    data = saved(lists(id=["a", "b", "c"])).read("x.parquet")
    for cut in range(0, len(data), len(data) // 40):
        with pytest.raises(UnusableError) as caught:
            read(hold_files({"x.parquet": data[:cut]}), part="a")
        assert "\n" not in str(caught.value)

"""Marks and intervals of real recordings agree with those of annotators.

`recorded/ludb.npz` holds 8 s of two recordings of LUDB (Kalyakulina et al. 2020, ODC-By 1.0): 1, of
a sinus rhythm, and 8, of atrial fibrillation. The shipped network has learned on them; how it marks
patients that it has not seen is in docs/measurements.md.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray

import clocs
from clocs import Recording, Store
from clocs.cli.main import Root
from clocs.errors import SettingError, StoreError, UnusableError
from clocs.measurements.intervals import find_beats, measure_beats
from clocs.measurements.waves import Waves
from clocs.models import delineator
from clocs.models import measure as measuring
from clocs.models.measure import kept_measurements, measure_table
from clocs.recording import STANDARD_LEADS, Gap, quantize

SCORED = import_module("benchmarks.delineation")
as_marks, ludb, scores = SCORED.as_marks, SCORED.ludb, SCORED.scores
RECORDED = Path(__file__).parent.parent / "recorded" / "ludb.npz"
EIGHT = ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6")
Array = NDArray[np.float64]
Marks = dict[str, dict[str, Array]]


def recording(name: str, signal: Array, leads: tuple[str, ...], rate: float = 500.0) -> Recording:
    digital, gain = quantize(signal)
    zero = np.zeros(len(signal), np.int32)
    return Recording(name, name, leads, rate, digital, gain, zero)


@pytest.fixture(scope="module")
def excerpts() -> dict[str, Recording]:
    with np.load(RECORDED) as file:
        return {name: recording(name, file[f"signal_{name}"] / 1000, EIGHT) for name in ("1", "8")}


def annotated(
    names: tuple[str, ...] = ("1", "8"), leads: tuple[str, ...] = STANDARD_LEADS
) -> Marks:
    """The annotators' marks within the 8 s."""
    found: Marks = {}
    with np.load(RECORDED) as file:
        for name in names:
            rows = file[f"marks_{name}"].astype(np.float64)
            rows = rows[np.nan_to_num(rows[:, 4]) < 7.9]
            found[name] = {
                lead: rows[rows[:, 0] == place, 1:]
                for place, lead in enumerate(STANDARD_LEADS)
                if lead in leads
            }
    return found


def expect_agreement(truth: Marks, found: Marks, f1: float, sd: dict[str, float]) -> None:
    for (wave, point), one in scores(truth, found).items():
        if one["waves"]:
            assert one["f1"] >= f1, (wave, point, one)
            if (wave, point) != (
                "QRS",
                "peak",
            ):  # of a wide complex, which one is a matter of taste
                assert max(abs(one["mean"]), one["sd"]) <= sd[wave], (wave, point, one)


SD = {"P": 16.0, "QRS": 14.0, "T": 24.0}  # ms


def test_marks_are_those_of_annotators_in_all_twelve_leads(excerpts: dict[str, Recording]) -> None:
    """Of eight leads: the others follow from I and II."""
    found = {name: as_marks(clocs.measure(one).waves.items()) for name, one in excerpts.items()}
    assert {*found["1"]} == {*STANDARD_LEADS}
    expect_agreement(annotated(), found, 0.97, SD)


def test_recordings_of_ludb_are_marked_where_annotators_marked_them(real_data: Path) -> None:
    folder = real_data / "ludb"
    if not (folder / "data").is_dir():
        pytest.skip("needs LUDB 1.0.1 as `ludb` in the folder of CLOCS_DATA")
    some = [one for number, one in enumerate(ludb(folder)) if number % 20 == 0]
    found = {}
    for one in some:
        whole = recording(one.name, one.signal, STANDARD_LEADS)
        found[one.name] = as_marks(clocs.measure(whole).waves.items())
    expect_agreement({one.name: one.marks for one in some}, found, 0.96, SD)


def test_intervals_are_those_of_the_annotators_marks(excerpts: dict[str, Recording]) -> None:
    for name, one in excerpts.items():
        own = clocs.measure(one).values
        marks = annotated((name,))[name]
        truth = {
            lead: Waves(*(rows[rows[:, 0] == kind][:, 1:] for kind in range(3)))
            for lead, rows in marks.items()
        }
        whole = one.with_limb_leads().select(STANDARD_LEADS)
        expected = measure_beats(find_beats(truth), whole.signal, whole.rate)
        for measured, near in (("heart_rate", 3), ("qrs", 20), ("qt", 25), ("qrs_axis", 15)):
            value = own[measured].value
            assert value is not None
            assert value == pytest.approx(expected[measured].value, abs=near), (name, measured)
        assert (own["pr"].value is None) == (expected["pr"].value is None) == (name == "8")
    assert own["pr"].reason == "no P waves"  # fibrillation


def test_neither_the_unit_nor_the_rate_moves_a_mark(excerpts: dict[str, Recording]) -> None:
    one = excerpts["1"]
    first = clocs.measure(one).waves["II"].qrs
    louder = clocs.measure(replace(one, gain=one.gain / 10)).waves["II"].qrs
    assert np.abs(louder - first).max() < 0.001
    slower = replace(one, digital=one.digital[:, ::2], rate=250.0)
    assert np.abs(clocs.measure(slower).waves["II"].qrs - first).max() < 0.01


@pytest.mark.parametrize("lead", ["II", "ECG"])
def test_a_single_lead_is_enough(excerpts: dict[str, Recording], lead: str) -> None:
    one = replace(excerpts["1"].select(["II"]), leads=(lead,))
    found = clocs.measure(one)
    truth = annotated(("1",), ("II",))
    expect_agreement(
        truth, {"1": {"II": as_marks(found.waves.items())[lead]}}, 0.9, dict.fromkeys(SD, 40.0)
    )
    assert found.values["qrs_axis"].reason and found.values["heart_rate"].value


def test_a_long_recording_has_the_beats_of_its_parts(excerpts: dict[str, Recording]) -> None:
    one = excerpts["1"].select(["II"])
    beat = clocs.measure(one).waves["II"].qrs[:, 1]
    period = beat[-2] - beat[1]  # cut where whole beats meet
    part = one.between(round(beat[1] * 500) - 300, round(beat[-2] * 500) - 300)
    long = replace(part, digital=np.tile(part.digital, 8))
    peaks = clocs.measure(long).waves["II"].qrs[:, 1]
    expected = (beat[1:-2] - beat[1] + 0.6)[None] + period * np.arange(8)[:, None]
    assert len(peaks) == expected.size
    assert np.abs(peaks - expected.ravel()).max() < 0.03


def test_gaps_and_flat_leads_have_no_waves(excerpts: dict[str, Recording]) -> None:
    one = excerpts["1"]
    flat = one.digital.copy()
    flat[EIGHT.index("V3")] = 5
    found = clocs.measure(replace(one, digital=flat, gaps=(Gap(1500, 2500, "V5"),)))
    assert not len(found.waves["V3"].qrs)
    own = found.waves["V5"]
    for wave in (own.p, own.qrs, own.t):
        assert not ((wave[:, 2] > 3.0) & (wave[:, 0] < 5.0)).any()
    assert len(own.qrs) < len(found.waves["V4"].qrs)


def test_what_cannot_be_measured_is_refused_with_a_sentence(excerpts: dict[str, Recording]) -> None:
    with pytest.raises(UnusableError, match=r"lasts 1.00 s; 2 s are needed"):
        clocs.measure(excerpts["1"].between(0, 500))
    with pytest.raises(UnusableError, match="constant"):
        clocs.measure(replace(excerpts["1"], digital=np.zeros((8, 4000), np.int16)))


def test_noise_has_no_beats() -> None:
    rng = np.random.default_rng(0)
    found = clocs.measure(recording("noise", 0.02 * rng.normal(size=(1, 5000)), ("II",)))
    assert found.values["qt"].value is None or len(found.beats.marks) < 12


def test_a_network_of_another_encoder_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts, arrays = delineator.FILE.read(delineator.WEIGHTS)
    other = tmp_path / "other.safetensors"
    delineator.FILE.write(other, facts | {"trunk_sha256": "0" * 64}, arrays)
    monkeypatch.setattr(delineator, "WEIGHTS", other)
    with pytest.raises(StoreError, match="another cmsmlc-many-leads"):
        delineator.shipped_delineator.__wrapped__()


# The command


def run(*words: object) -> Result:
    return CliRunner().invoke(Root(), ["measure", *map(str, words)], catch_exceptions=False)


@pytest.fixture
def file(excerpts: dict[str, Recording], tmp_path: Path) -> Path:
    path = tmp_path / "one.csv"
    names = ",".join(EIGHT)
    np.savetxt(path, excerpts["1"].signal.T, "%.3f", ",", header=names, comments="")
    return path


def test_the_table_is_shown_or_written_by_the_ending(file: Path, tmp_path: Path) -> None:
    done = run(file, "--rate", 500, "--unit", "mV")
    assert done.exit_code == 0 and "PR" in done.stdout and "1 recording measured" in done.stdout
    (tmp_path / "broken.hea").write_text("nonsense\n")
    for ending, read in ((".parquet", pl.read_parquet), (".csv", pl.read_csv)):
        out = tmp_path / f"made{ending}"
        done = run(file, tmp_path / "broken.hea", "--rate", 500, "--unit", "mV", "--out", out)
        assert done.exit_code == 1  # one of them cannot be read
        table = read(out)
        assert table["heart_rate"][0] == pytest.approx(46, abs=2)
        assert table["problem"][0] is None and "broken" in table["problem"][1]
    assert run(file, "--rate", 500, "--unit", "mV", "--out", tmp_path / "m.json").exit_code == 0
    rows = json.loads((tmp_path / "m.json").read_text())
    assert rows[0]["pr_low"] <= rows[0]["pr"] <= rows[0]["pr_high"]
    with pytest.raises(SettingError, match=r"ends in \.parquet or \.csv or \.json or \.fhir\.json"):
        run(file, "--out", tmp_path / "made.txt")
    alone = run(tmp_path / "broken.hea")
    assert alone.exit_code == 1 and alone.stdout == "0 recordings measured.\n"
    assert len(alone.stderr.splitlines()) == 1 and "broken" in alone.stderr


def test_both_inputs_of_the_network_are_of_one_length_whatever_the_recording_lasts() -> None:
    for rate in (500.0, 257.0):
        for samples in range(5000, 5044):
            slow, fast = delineator.network_inputs(np.zeros((1, samples)), rate)
            assert fast.shape[1] == 4 * slow.shape[1] and slow.shape[1] % 8 == 0, (samples, rate)


def test_waves_are_one_row_each(file: Path) -> None:
    table = measure_table(file, waves=True, rate=500, unit="mV")
    beats = table.filter(pl.col("lead") == "V2", pl.col("wave") == "QRS")
    assert 5 <= beats.height <= 8
    assert (table["onset"] <= table["peak"]).all() and (table["peak"] <= table["offset"]).all()


def test_a_drawing_is_of_one_recording(file: Path, small_store: Store, tmp_path: Path) -> None:
    out = tmp_path / "marks.svg"
    done = run(file, "--rate", 500, "--unit", "mV", "--out", out)
    assert done.exit_code == 0 and "waves qrs" in out.read_text("utf-8")
    with pytest.raises(SettingError, match="of one recording; name it with `recording`"):
        run(small_store.path, "--out", out)
    name = small_store.table["id"][3]
    assert run(small_store.path, "--recording", name, "--out", out).exit_code == 0
    with pytest.raises(SettingError, match="there is no recording 'nobody'"):
        run(small_store.path, "--recording", "nobody")


def test_a_store_has_one_row_per_recording(small_store: Store) -> None:
    table = measure_table(small_store, recording=small_store.table["id"][0])
    assert table.height == 1 and table["dataset"][0] == "synthetic"


def test_a_store_is_measured_once_and_a_stopped_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = clocs.prepare("synthetic", out=tmp_path / "store", patients=4)
    monkeypatch.setattr(measuring, "_STEP", 4)
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_table(store, progress=stop)
    first = kept_measurements(store).read()
    assert first is not None and first.height == 4
    table = measure_table(store, progress=lambda done, total: seen.append(done))
    assert seen == [*range(1, 7), *range(5, len(store) + 1)]
    assert table["recording"].to_list() == store.table["id"].to_list()
    assert table.head(4).equals(first)
    row = table.row(0, named=True)
    own = clocs.measure(store.recording(0)).values
    assert row["qt"] == pytest.approx(own["qt"].value)  # threads round differently
    assert row["pr_reason"] == own["pr"].reason
    assert row["quality"] == clocs.signal_quality(store.recording(0)).value
    monkeypatch.setattr(measuring, "measure", None)  # nothing is measured again
    assert measure_table(store.path).equals(table)


def test_what_was_assumed_and_what_may_be_wrong_is_said(
    excerpts: dict[str, Recording], tmp_path: Path
) -> None:
    file, table = tmp_path / "a.csv", tmp_path / "found.csv"
    names = f"# rate: 500\n{','.join(EIGHT)}"
    np.savetxt(file, excerpts["1"].signal.T / 10, "%.5f", ",", header=names, comments="")
    shown = run(file, "--out", table).stdout
    notes = ("are assumed to be in mV", "amplitudes are about 10 times too small")
    assert all(note in shown for note in notes)
    (row,) = pl.read_csv(table).to_dicts()
    assert all(note in row["notes"] for note in notes)
    found = clocs.measure(clocs.read(file))
    assert "; ".join(found.notes) == row["notes"]
    assert found.to_dict()["notes"] == list(found.notes)


def test_a_table_is_replaced_and_a_recording_or_other_tables_are_not(
    file: Path, tmp_path: Path
) -> None:
    vectors = tmp_path / "embeddings.parquet"
    clocs.embed("cmsmlc-many-leads", file, rate=500).save(vectors)
    for mine in (file, vectors):
        before = mine.read_bytes()
        for call in (measure_table, partial(clocs.predict, "rhythm-chapman")):
            with pytest.raises(SettingError, match="exists and is no such table"):
                call(file, rate=500, out=mine)
        assert mine.read_bytes() == before
    for ending in ("csv", "parquet", "json", "fhir.json"):
        out = tmp_path / f"found.{ending}"
        for _ in range(2):
            measure_table(file, rate=500, out=out)
        out.write_bytes(b"")
        measure_table(file, rate=500, out=out)

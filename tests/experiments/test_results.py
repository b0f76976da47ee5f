"""Results are read from runs and from reports, joined where they agree, and written again."""

from __future__ import annotations

import json
import lzma
import struct
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clocs.errors import SettingError, StoreError
from clocs.experiments.grid import Cell, Pretraining, grid, only, run_name
from clocs.experiments.ledger import Draws, Ledger, Run, pack_draws, unpack_draws
from clocs.experiments.report import report
from clocs.experiments.results import (
    DRAWS,
    RUNS,
    Results,
    not_known,
    open_results,
    read_draws,
    set_apart,
    write_draws,
    write_results,
)
from clocs.recording import PAPER_LEADS, STANDARD_LEADS

from . import test_report
from .test_report import fill, result_of

FOUR = Cell(Pretraining("cmsc", "chapman"), "chapman", "linear")
TWELVE = Cell(Pretraining("cmsc", "chapman", leads=12), "chapman", "linear")


def never(cell: Cell) -> bool:
    return False


@pytest.fixture
def halves(tmp_path: Path) -> tuple[Path, Path]:
    """Figure 3 in two ledgers: SimCLR's in one, where one cell failed, CMSC's in another."""
    simclr, cmsc = (only(grid("perturbations"), [f"method={m}"]) for m in ("simclr", "cmsc"))
    fill(tmp_path / "simclr", simclr, lambda cell: cell == simclr[3])
    fill(tmp_path / "cmsc", cmsc, never)
    return tmp_path / "simclr", tmp_path / "cmsc"


def packed_runs(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress((folder / RUNS).read_bytes()))
    return found


def table(page: Path) -> str:
    return (page.parent / "perturbations.md").read_text(encoding="utf-8")


def test_a_report_includes_an_earlier_one(halves: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = halves
    assert "10 of 19" in table(report(second, tmp_path / "earlier"))
    out = tmp_path / "both"
    report(first, out, earlier=[tmp_path / "earlier"])
    both = (out / "perturbations.md").read_text(encoding="utf-8")
    assert "18 of 19" in both and "failed: RuntimeError" in both
    rows = [r for r in packed_runs(out)["runs"] if r["kind"] != "pretrain" and r["result"]]
    encoders = [row["settings"]["pretraining"] for row in rows]
    assert len({(one["method"], one["perturb"]) for one in encoders}) == 18
    ledgers = table(report(first, tmp_path / "ledgers", earlier=[second]))
    assert ledgers == both


def test_a_report_made_again_from_its_own_folder_is_the_same(
    halves: tuple[Path, Path], tmp_path: Path
) -> None:
    first = report(halves[0], tmp_path / "first")
    again = report(tmp_path / "first", tmp_path / "again")
    names = sorted(path.name for path in first.parent.iterdir())
    assert names == sorted(path.name for path in again.parent.iterdir())
    for name in names:
        assert (again.parent / name).read_bytes() == (first.parent / name).read_bytes(), name


def test_a_report_of_seven_digits_agrees_with_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = grid("perturbations")[0]
    exact = result_of(cell) | {"auc_mean": 2 / 3}
    monkeypatch.setattr(test_report, "result_of", lambda cell: exact)
    fill(tmp_path / "runs", [cell], never)
    write_results(open_results(tmp_path / "runs"), tmp_path)
    for order in ((tmp_path, tmp_path / "runs"), (tmp_path / "runs", tmp_path)):
        result = open_results(*order).result(cell)
        assert result is not None
        assert result["auc_mean"] == pytest.approx(2 / 3, rel=1e-7)
    assert packed_runs(tmp_path)["runs"][1]["result"]["auc_mean"] == 0.6666667


def test_a_failed_run_gives_way_to_one_that_is_done(
    halves: tuple[Path, Path], tmp_path: Path
) -> None:
    cell = only(grid("perturbations"), ["method=simclr"])[3]
    fill(tmp_path / "retried", [cell], never)
    for order in ((halves[0], tmp_path / "retried"), (tmp_path / "retried", halves[0])):
        assert open_results(*order).result(cell) == result_of(cell)


def test_two_results_of_one_cell_are_refused(halves: tuple[Path, Path], tmp_path: Path) -> None:
    results = open_results(halves[1])
    cell = grid("perturbations")[0]
    name = run_name(cell, 5)
    other = replace(results.runs[name], result=result_of(cell) | {"auc_mean": 0.1})
    write_results(replace(results, runs={**results.runs, name: other}), tmp_path)
    with pytest.raises(SettingError) as refused:
        open_results(halves[1], tmp_path)
    for part in (str(halves[1]), str(tmp_path), name):
        assert part in str(refused.value)
    assert cell not in not_known(grid("perturbations"), [halves[1], tmp_path])
    assert open_results(halves[1], halves[1]) == results


def test_runs_on_other_data_are_refused(halves: tuple[Path, Path], tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "other")
    ledger.require_fact("data of chapman", "fedcba9876543210")
    ledger.close()
    with pytest.raises(SettingError, match="differ in the data of chapman"):
        open_results(halves[0], tmp_path / "other")


def test_a_folder_with_damaged_results_is_refused_in_words(tmp_path: Path) -> None:
    for name, content in ((RUNS, b"{}"), (RUNS, lzma.compress(b"[]"))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SettingError, match="holds no results that can be read"):
            open_results(tmp_path)


def test_draws_are_kept_but_for_results_that_no_test_compares(
    halves: tuple[Path, Path], tmp_path: Path
) -> None:
    few = only(grid("label-efficiency"), ["cmsc", "patients=10"])[0]
    tested = only(grid("perturbations"), ["method=cmsc"])[0]
    fill(tmp_path / "few", [few], never)
    results = open_results(halves[1], tmp_path / "few")
    drawn = {run_name(cell, 5): np.linspace(0.5, 0.6, 100) for cell in (few, tested)}
    write_results(replace(results, draws=drawn), tmp_path)
    assert set(open_results(tmp_path).draws) == {run_name(tested, 5)}


def results_of(auc: float, cells: list[Cell], leads: tuple[str, ...], content: str) -> Results:
    runs = {}
    for cell in cells:
        name, result = run_name(cell, 2), {"auc": [auc], "auc_mean": auc, "auc_std": None}
        runs[name] = Run(
            name, cell.task, asdict(cell), 2, "done", result, None, None, 1.0, {}, 1, None, None
        )
    facts: dict[str, Any] = {"leads of chapman": list(leads), "data of chapman": content}
    return Results(runs, facts | {"data of cardiology": "c", "leads of cardiology": ["ECG"]})


def test_two_stores_of_one_dataset_are_joined_by_their_leads(tmp_path: Path) -> None:
    four = results_of(0.7, [FOUR], PAPER_LEADS, "four")
    # from the twelve-lead store, a result on four leads is of other data: it is left out
    twelve = results_of(0.8, [FOUR, TWELVE], STANDARD_LEADS, "twelve")
    for name, one in (("four", four), ("twelve", twelve)):
        (tmp_path / name).mkdir()
        write_results(one, tmp_path / name)
    for order in (("four", "twelve"), ("twelve", "four")):
        both = open_results(*(tmp_path / name for name in order))
        assert [(both.result(cell) or {})["auc_mean"] for cell in (FOUR, TWELVE)] == [0.7, 0.8]
        assert both.facts["data of chapman"] == "four"
        assert both.facts["data of chapman, twelve leads"] == "twelve"
        (tmp_path / "-".join(order)).mkdir()
        write_results(both, tmp_path / "-".join(order))
        again = open_results(tmp_path / "twelve", tmp_path / "-".join(order))
        assert again.facts == both.facts and again.runs.keys() == both.runs.keys()


def test_what_needs_twelve_leads_is_said_to_need_them_until_they_are_there() -> None:
    cell = only(grid("table-1-12"), ["cmlc", "chapman"])[0]
    four = results_of(0.7, [], PAPER_LEADS, "four")
    twelve = set_apart(results_of(0.8, [], STANDARD_LEADS, "twelve"), four)
    assert four.why_not(cell) == "needs a 12-lead store"
    assert Results({}, {**four.facts, **twelve.facts}).why_not(cell) == "not run"


@pytest.mark.parametrize("leads", [PAPER_LEADS, STANDARD_LEADS])
def test_stores_of_the_same_leads_are_left_as_they_are(leads: tuple[str, ...]) -> None:
    one = results_of(0.7, [FOUR], leads, "a")
    assert set_apart(one, results_of(0.7, [FOUR], leads, "b")) == one


def some(seed: int = 0, size: int = 2000, missing: int = 3) -> Draws:
    draw = np.random.default_rng(seed)
    auc: Draws = 0.9 + 0.02 * draw.standard_t(4, size)
    auc[:missing] = np.nan
    return auc


def same(a: Draws, b: Draws, near: float = 1e-5) -> bool:
    return bool(np.allclose(a, b, rtol=0, atol=near, equal_nan=True))


def test_packed_draws_come_back() -> None:
    packed = pack_draws(some())
    assert len(packed) == 8 + 16 + 4000
    assert same(unpack_draws(packed), some())


def test_draws_of_earlier_versions_have_those_of_logits_behind_them() -> None:
    first, second = (pack_draws(some(seed)) for seed in (0, 1))
    both = struct.pack("<II", 2, 2000) + first[8:] + second[8:]
    assert same(unpack_draws(both), some(0))


def test_draws_that_were_read_are_written_alike() -> None:
    for seed in range(50):
        once = unpack_draws(pack_draws(some(seed, size=200)))
        again = unpack_draws(pack_draws(once))
        assert again.tobytes() == once.tobytes()


def test_draws_that_are_all_equal_or_all_missing_come_back() -> None:
    for values in (np.full(5, 0.123), np.full(5, np.nan), np.zeros(0)):
        back = unpack_draws(pack_draws(values))
        assert np.allclose(back, values, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("content", [b"", b"abc", pack_draws(some())[:-1], b"\xff" * 40])
def test_damaged_draws_are_refused(content: bytes) -> None:
    with pytest.raises(StoreError, match="run it again"):
        unpack_draws(content)


def test_a_file_of_draws_holds_every_run_whatever_its_length(tmp_path: Path) -> None:
    draws = {"b": some(1), "a": some(2), "short": some(3, size=50)}
    write_draws(draws, tmp_path / DRAWS)
    back = read_draws(tmp_path / DRAWS)
    assert back.keys() == draws.keys()
    for name, own in draws.items():
        assert same(back[name][: len(own)], own, near=8e-4)
        assert np.isnan(back[name][len(own) :]).all()
    write_draws(back, tmp_path / "again")
    for name, own in read_draws(tmp_path / "again").items():
        np.testing.assert_array_equal(own, back[name])
    assert read_draws(tmp_path / "nowhere") == {}


def test_a_damaged_file_of_draws_is_refused(tmp_path: Path) -> None:
    path = tmp_path / DRAWS
    write_draws({"a": some()}, path)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        read_draws(path)

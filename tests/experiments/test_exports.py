"""Reports include runs made elsewhere, and can be made again from their own JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from clocs.cli.main import root_command
from clocs.errors import ClocsWarning, SettingError
from clocs.experiments.draws import Draws
from clocs.experiments.exports import not_known, open_results, write_exports
from clocs.experiments.grid import Cell, grid, only
from clocs.experiments.ledger import Ledger
from clocs.experiments.report import report
from clocs.experiments.runner import run_name

from .test_report import fill, result_of


def never(cell: Cell) -> bool:
    return False


@pytest.fixture
def halves(tmp_path: Path) -> tuple[Path, Path]:
    """Figure 3 in two ledgers: SimCLR's in one, where one cell failed, CMSC's in another."""
    simclr, cmsc = (only(grid("perturbations"), [f"method={m}"]) for m in ("simclr", "cmsc"))
    fill(tmp_path / "simclr", simclr, lambda cell: cell == simclr[3])
    fill(tmp_path / "cmsc", cmsc, never)
    return tmp_path / "simclr", tmp_path / "cmsc"


def table(page: Path) -> str:
    return (page.parent / "perturbations.md").read_text(encoding="utf-8")


def test_a_report_includes_an_earlier_one(halves: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = halves
    assert "10 of 19" in table(report(second, tmp_path / "earlier"))
    out = tmp_path / "both"
    arguments = ["report", str(first), "--with", str(tmp_path / "earlier"), "--out", str(out)]
    done = CliRunner().invoke(root_command(), arguments, catch_exceptions=False)
    assert done.exit_code == 0
    both = (out / "perturbations.md").read_text(encoding="utf-8")
    assert "18 of 19" in both and "failed: RuntimeError" in both
    rows = json.loads((out / "perturbations.json").read_text(encoding="utf-8"))
    assert len({(r["pretraining"]["method"], r["pretraining"]["perturb"]) for r in rows}) == 18
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


def test_a_failed_run_gives_way_to_one_that_is_done(
    halves: tuple[Path, Path], tmp_path: Path
) -> None:
    cell = only(grid("perturbations"), ["method=simclr"])[3]
    fill(tmp_path / "retried", [cell], never)
    for order in ((halves[0], tmp_path / "retried"), (tmp_path / "retried", halves[0])):
        assert open_results(*order).result(cell) == result_of(cell)


def test_two_results_of_one_cell_are_refused_unless_one_is_chosen(
    halves: tuple[Path, Path], tmp_path: Path
) -> None:
    results = open_results(halves[1])
    cell = grid("perturbations")[0]
    name = run_name(cell, 5)
    other = replace(results.runs[name], result=result_of(cell) | {"auc_mean": 0.1})
    write_exports(replace(results, runs={**results.runs, name: other}), tmp_path)
    with pytest.raises(SettingError) as refused:
        open_results(halves[1], tmp_path)
    for part in (str(halves[1]), str(tmp_path), name):
        assert part in str(refused.value)
    assert cell not in not_known(grid("perturbations"), [halves[1], tmp_path])
    assert open_results(halves[1], halves[1]) == results
    with pytest.warns(ClocsWarning, match="kept those of"):
        kept = open_results(halves[1], tmp_path, keep_earlier=True)
    assert (kept.result(cell) or {})["auc_mean"] == 0.1


def test_results_of_mtssl_from_before_its_input_was_right_are_left_out(tmp_path: Path) -> None:
    """Their rows do not name the input; they were scored on frames from 0 to 1."""
    cells = only(grid("table-1"), ["method=mtssl,cmsc"])
    fill(tmp_path / "runs", cells, never)
    report(tmp_path / "runs", tmp_path / "now")
    assert all(open_results(tmp_path / "now").result(cell) for cell in cells)
    path = tmp_path / "now" / "table-1.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps([{k: v for k, v in row.items() if k != "input"} for row in rows]))
    old = open_results(tmp_path / "now")
    assert [c.pretraining.method for c in cells if old.result(c)] == ["cmsc"] * 2
    again = open_results(tmp_path / "runs", tmp_path / "now", keep_earlier=True)
    assert all(again.result(cell) for cell in cells)


def test_runs_on_other_data_are_refused(halves: tuple[Path, Path], tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "other")
    ledger.settle("data of chapman", "fedcba9876543210", "")
    ledger.close()
    with pytest.raises(SettingError, match="differ in the data of chapman"):
        open_results(halves[0], tmp_path / "other")


def test_a_folder_with_damaged_results_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text("{}")
    with pytest.raises(SettingError, match="holds no results that can be read"):
        open_results(tmp_path)


def test_a_result_with_draws_takes_the_place_of_an_earlier_one_without(
    halves: tuple[Path, Path], tmp_path: Path
) -> None:
    """Differences can be tested only between results that have draws."""
    new = open_results(halves[1])
    cells = only(grid("perturbations"), ["method=cmsc"])[:2]
    earlier = dict(new.runs)
    for cell in cells:
        name = run_name(cell, 5)
        changed = result_of(cell) | {"auc_mean": 0.1}
        earlier[name] = replace(new.runs[name], result=changed)
    for name in ("earlier", "new"):
        (tmp_path / name).mkdir()
    write_exports(replace(new, runs=earlier), tmp_path / "earlier")
    drawn = {run_name(cells[0], 5): Draws(np.linspace(0.5, 0.6, 100))}
    write_exports(replace(new, draws=drawn), tmp_path / "new")
    with pytest.warns(ClocsWarning, match="kept those of"):
        both = open_results(tmp_path / "new", tmp_path / "earlier", keep_earlier=True)
    assert [(both.result(cell) or {})["auc_mean"] == 0.1 for cell in cells] == [False, True]
    assert set(both.draws) == set(drawn)

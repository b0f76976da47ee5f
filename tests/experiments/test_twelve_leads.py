"""Results of twelve-lead stores are reported beside those of four leads."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from clocs.experiments.exports import open_results, write_exports
from clocs.experiments.grid import Cell, Pretraining, grid, only
from clocs.experiments.ledger import Run
from clocs.experiments.results import Results
from clocs.experiments.runner import run_name
from clocs.experiments.twelve_leads import set_apart
from clocs.recording import PAPER_LEADS, STANDARD_LEADS

FOUR = Cell(Pretraining("cmsc", "chapman"), "chapman", "linear")
TWELVE = Cell(Pretraining("cmsc", "chapman", leads=12), "chapman", "linear")


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
        write_exports(one, tmp_path / name)
    for order in (("four", "twelve"), ("twelve", "four")):
        both = open_results(*(tmp_path / name for name in order))
        assert [(both.result(cell) or {})["auc_mean"] for cell in (FOUR, TWELVE)] == [0.7, 0.8]
        assert both.facts["data of chapman"] == "four"
        assert both.facts["data of chapman, twelve leads"] == "twelve"
        (tmp_path / "-".join(order)).mkdir()
        write_exports(both, tmp_path / "-".join(order))
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

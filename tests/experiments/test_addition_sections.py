"""The report's sections of experiments that the paper does not have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from clocs.experiments import paper
from clocs.experiments.addition_sections import (
    IMAGE,
    TITLES,
    content,
    efficiency_image,
    efficiency_panels,
)
from clocs.experiments.cells import Cell
from clocs.experiments.grid import grid
from clocs.experiments.ledger import Run
from clocs.experiments.results import Results
from clocs.experiments.runner import run_name
from clocs.experiments.tables import markdown

STRENGTH = {m: 0.55 + 0.03 * i for i, m in enumerate(paper.METHOD_TITLES)}


def score_of(cell: Cell) -> dict[str, Any]:
    """A result that is better with more labels, on better encoders."""
    mean = STRENGTH[cell.pretraining.method] + 0.01 * cell.split_seed
    mean += 0 if cell.patients is None else -0.25 / cell.patients**0.5
    mean -= 0.1 if cell.pretraining.variant else 0.0
    epochs = cell.pretraining.epochs
    auc = [mean - 0.01, mean + 0.01]
    return {
        "auc": auc,
        "auc_mean": mean,
        "auc_std": 0.014,
        "auc_validation": [0.7 + (0.1 if epochs == 100 else 0.0)] * 2,
        "auc_recording": auc,
        "ap_recording": [mean / 2, mean / 2 + 0.01],
    }


@pytest.fixture(scope="module")
def results() -> Results:
    runs = {}
    for name in (*TITLES, "table-1", "table-2"):
        for cell in grid(name):
            run = run_name(cell, 2)
            runs[run] = Run(
                run, cell.task, {}, 2, "done", score_of(cell), None, None, 1.0, {}, 1, None, None
            )
    counts = {"chapman": 6300, "physionet2020": 4100, "physionet2017": 5100, "cardiology": 188}
    facts = {f"counts of {d}": {"patients_by_part": [n, 0, 0]} for d, n in counts.items()}
    return Results(runs, facts)


@pytest.mark.parametrize("name", list(TITLES))
def test_every_section_shows_its_results_and_none_without_them(results: Results, name: str) -> None:
    full = content(results, name, grid(name))
    shown = [*full.tables, *full.folded]
    assert shown and all(table.filled for table in shown)
    assert all(entry.ours or entry.why_not for table in shown for entry in table.entries)
    empty = content(Results({}, {}), name, grid(name))
    assert not any(table.filled for table in (*empty.tables, *empty.folded))
    assert empty.figure is None


def test_tables_over_splits_have_all_columns_and_the_sd_over_splits(results: Results) -> None:
    (linear,) = content(results, "table-1-splits", ()).tables
    (transfer,) = content(results, "table-2-splits", ()).tables
    assert len(linear.columns) == 2 and len(transfer.columns) == 6
    cmsc = dict(linear.rows)["CMSC"][0]
    assert cmsc is not None and cmsc.ours is not None
    assert cmsc.ours.mean == pytest.approx(STRENGTH["cmsc"] + 0.02)
    assert cmsc.ours.std == pytest.approx(0.0158, abs=1e-4)  # of 0, 0.01 … 0.04


def test_the_chosen_schedule_of_byol_is_marked(results: Results) -> None:
    linear, transfer = content(results, "byol-fixed", ()).tables
    marked = [label for label, _ in linear.rows if "chosen" in label]
    assert marked == ["100 epochs (chosen on Chapman and PhysioNet 2020)"]
    assert [label for label, _ in transfer.rows if "chosen" in label] == marked
    assert linear.rows[0][0] == "early stopping, as in the paper"


def test_the_ablations_are_one_table_with_a_row_for_each_change(results: Results) -> None:
    (table,) = content(results, "ablations", grid("ablations")).tables
    filled = {label: [entry is not None for entry in row] for label, row in table.rows}
    assert filled == {
        "CMSC": [True, True],
        "positives: pairs of segments alone": [True, True],
        "batch norm per view": [True, True],
        "signals in mV, not normalized": [True, True],
        "three segments": [False, True],
        "four segments": [False, True],
        "5 s throughout": [True, False],
    }
    assert "| three segments |  | 0." in markdown(table)


def test_label_efficiency_is_one_figure_of_eight_panels(results: Results, tmp_path: Path) -> None:
    panels = efficiency_panels(results)
    assert {(panel.row, panel.column) for panel in panels} == {
        (row, column) for row in range(2) for column in range(4)
    }
    assert {len(panel.lines) for panel in panels} == {len(paper.METHOD_TITLES)}
    cardiology = panels[3].lines[0]
    assert list(cardiology.patients) == [10, 30, 100, 188]  # there are no 300
    figure = content(results, "label-efficiency", ()).figure
    assert figure is not None and figure.svg.count("<polyline") == 8 * 9
    assert len(re.findall(r"<polygon", figure.svg)) == 8 * 9  # a band around each line
    efficiency_image(results, tmp_path / IMAGE)
    assert (tmp_path / IMAGE).read_bytes().startswith(b"\x89PNG")
    efficiency_image(Results({}, {}), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()

"""Experiments that the paper does not have: ablations and label efficiency, small."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from clocs.experiments import paper
from clocs.experiments.data import Library
from clocs.experiments.estimate import estimate
from clocs.experiments.grid import (
    ABLATIONS,
    LABELED,
    SHOWN,
    VARIANTS,
    cells_of,
    grid,
    only,
    run_name,
)
from clocs.experiments.ledger import Ledger
from clocs.pretraining.plan import Plan
from clocs.training.checkpoint import load_checkpoints

from .small import small_library, work


@pytest.fixture(scope="module")
def library() -> Library:
    return small_library("chapman", "physionet2020", "cardiology", patients=40)


def test_every_variant_is_a_plan_and_a_row_of_the_ablations() -> None:
    for variant in ABLATIONS:
        Plan("cmsc", **VARIANTS[variant][1])
    cells = grid("ablations")
    by_dataset = Counter(cell.downstream for cell in cells)
    # three and four segments need longer recordings than Chapman's, 5 s frames need Chapman
    assert by_dataset == {"chapman": 5, "physionet2020": 6}
    assert [c.downstream for c in cells if c.segment_frame] == ["chapman"]
    assert len({c.pretraining for c in cells}) == len(cells) - 1  # it needs no training of its own


def test_the_ablations_run_and_each_encoder_differs_in_what_its_row_says(
    library: Library, tmp_path: Path
) -> None:
    cells = grid("ablations")
    outcome = work(tmp_path, cells, library)
    assert (outcome.failed, outcome.left, outcome.unavailable) == (0, 0, 2)
    ledger = Ledger(tmp_path)
    runs = ledger.runs()
    ledger.close()
    trained = {}
    for cell in cells:
        if cell.downstream == "chapman":
            folder = runs[run_name(cell.pretraining, 1)].checkpoint
            card = load_checkpoints(tmp_path / (folder or ""))[0].card
            trained[cell.pretraining.variant] = card.training
    assert trained[None]["positives"] == "patient"
    assert trained["instance-pairs"]["positives"] == "instance"
    assert trained["norm-per-view"]["batch_norm"] == "view"
    assert trained["unnormalised"]["normalization"] == "none"
    missing = [library.why_not(cell) for cell in cells if library.why_not(cell)]
    assert missing == ["needs recordings of 3 segments", "needs recordings of 4 segments"]


def test_label_efficiency_has_every_method_on_the_four_datasets_both_ways() -> None:
    cells = grid("label-efficiency")
    shown = [
        c
        for c in cells
        if (c.pretraining.dataset, c.downstream) in SHOWN or c.pretraining.method == "random"
    ]
    for dataset in paper.DATASET_TITLES:
        levels = [count for count in LABELED if dataset != "cardiology" or count <= 100]
        for task in ("linear-converged", "finetune"):
            own = [c for c in shown if (c.downstream, c.task) == (dataset, task)]
            assert {c.pretraining.method for c in own} == set(paper.METHOD_TITLES)
            assert {c.patients for c in own} == {*levels, None}
    # an encoder that was trained on the labels of a dataset says nothing about few of them
    assert not [
        c
        for c in cells
        if c.pretraining.method == "supervised" and c.pretraining.dataset == c.downstream
    ]


def test_so_many_patients_are_labeled_and_more_than_there_are_is_said_to_be_missing(
    library: Library, tmp_path: Path
) -> None:
    names = ["pretrain=chapman", "downstream=cardiology", "cmsc", "patients=10,30,100,all"]
    cells = cells_of(["label-efficiency"], names)
    assert len(cells) == 14
    outcome = work(tmp_path, cells, library)
    assert (outcome.done, outcome.failed, outcome.unavailable) == (6, 0, 8)  # of 24 patients
    ledger = Ledger(tmp_path)
    runs = ledger.runs()
    ledger.close()
    for cell in only(cells, ["patients=10"]):
        result = runs[run_name(cell, 1)].result or {}
        assert (result["labels_count"], result["by"]) == (10, "patient")
        assert result["validation_labels"] == cell.validation_labels
        assert 0 <= result["ap_recording_mean"] <= 1
        if cell.task == "finetune":
            assert result["settings"]["batch_size"] == 16
    assert library.why_not(only(cells, ["patients=100"])[0]) == "needs 100 labeled patients"


@pytest.mark.parametrize(
    ("name", "results", "trainings", "jobs", "shared"),
    [
        ("table-1-splits", 64, 58, 8, 2),
        ("table-2-splits", 208, 20, 16, 20),
        ("ablations", 11, 10, 3, 2),
        ("forms", 324, 144, 30, 12),
        ("label-efficiency", 1162, 20, 80, 20),
    ],
)
def test_a_dry_run_counts_what_the_documentation_says(
    tmp_path: Path, name: str, results: int, trainings: int, jobs: int, shared: int
) -> None:
    found = estimate([name], out=tmp_path)
    kinds = Counter(unit.kind for unit in found.units)
    assert (found.cells(), kinds["pretrain"], kinds["score"]) == (results, trainings, jobs)
    in_tables = {cell.pretraining for cell in cells_of(["table-1", "table-2"])}
    assert len({cell.pretraining for cell in grid(name)} & in_tables) == shared
    docs = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    row = next(line for line in docs.splitlines() if line.startswith(f"| `{name}` | {results:,}"))
    assert row.endswith(f"| {trainings} | {shared} |")

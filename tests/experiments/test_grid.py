"""The grid against the paper's own numbers."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clocs.errors import SettingError
from clocs.experiments import paper
from clocs.experiments.claims import claims
from clocs.experiments.grid import (
    FORMS,
    NAMES,
    SPLIT_SEEDS,
    Cell,
    Pretraining,
    at_best,
    cell_of,
    grid,
    on_split,
    only,
    paper_values,
    run_name,
)
from clocs.experiments.ledger import Run
from clocs.experiments.results import RUNS, Results
from clocs.pretraining.methods import METHODS

RESULTS = Path(__file__).parents[2] / "docs" / "results"
UNTRAINED = ("random", "random-bn")


def test_every_printed_number_has_its_run() -> None:
    every = set(grid("all"))
    assert len(paper.printed()) == 1428
    settings = {replace(row, table="") for row in paper.printed()}
    assert len(settings) == 1280
    # 32 of a random encoder on one lead stand in the tables of 4 and of 12 leads
    assert len(paper_values()) == 1280 - 32
    assert all(cell_of(row) in every for row in paper.printed())


def test_a_number_printed_in_two_tables_is_the_same_in_both() -> None:
    values: dict[object, set[tuple[float, float]]] = {}
    for row in paper.printed():
        values.setdefault(cell_of(row), set()).add((row.mean, row.std))
    assert Counter(len(found) for found in values.values()) == {1: 1280 - 32}


def test_the_counts_of_trainings_are_the_papers() -> None:
    encoders = {cell.pretraining for cell in paper_values()}
    learned = [encoder for encoder in encoders if encoder.method != "random"]
    assert 5 * len(learned) == 370
    assert 5 * (len(paper_values()) + 32) == 6400
    assert sum(row.leads == 12 for row in paper.printed()) == 608


def test_tables_1_and_2_take_70_pretrainings_and_about_300_downstream_trainings() -> None:
    cells = [cell for name in ("table-1", "table-2") for cell in grid(name)]
    learned = {c.pretraining for c in cells if c.pretraining.method not in UNTRAINED}
    assert 5 * len(learned) == 70
    once = [c for c in cells if c.split_seed == 0 and c.pretraining.method != "random-bn"]
    assert 5 * len(once) == 300


def test_both_random_encoders_are_in_tables_1_and_2() -> None:
    for name in ("table-1", "table-2"):
        methods = Counter(c.pretraining.method for c in grid(name) if c.split_seed == 0)
        assert methods["random"] and methods["random-bn"]


def test_cardiology_is_scored_over_five_splits() -> None:
    splits = Counter(c.split_seed for c in grid("table-2") if c.downstream == "cardiology")
    assert len(splits) == 5 and len(set(splits.values())) == 1


def test_different_cells_have_different_runs_and_folders() -> None:
    cells = grid("all")
    assert len({run_name(cell, 5) for cell in cells}) == len(cells)
    encoders = {cell.pretraining for cell in cells}
    assert len({encoder.name for encoder in encoders}) == len(encoders)


def test_a_setting_shared_by_two_experiments_is_one_run() -> None:
    assert set(grid("embedding-dim")) < set(grid("appendix-transfer"))
    table_1, figure_3 = set(grid("table-1")), set(grid("perturbations"))
    shared = {cell.pretraining for cell in table_1 & figure_3}
    assert shared == {Pretraining("cmsc", "physionet2020"), Pretraining("simclr", "physionet2020")}


def test_figure_3_has_nine_perturbations_of_each_method() -> None:
    perturbed = Counter(c.pretraining.method for c in grid("perturbations"))
    assert perturbed == {"simclr": 9, "cmsc": 10}  # and CMSC without any, to compare with


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_uses_known_methods_and_datasets(name: str) -> None:
    for cell in grid(name):
        assert cell.pretraining.method in METHODS
        assert {cell.pretraining.dataset, cell.downstream} <= set(paper.DATASET_TITLES)


def test_filters_narrow_a_grid() -> None:
    cells = only(grid("table-2"), ["method=cmsc,simclr", "cardiology", "split=0"])
    assert {c.pretraining.method for c in cells} == {"cmsc", "simclr"}
    assert {c.downstream for c in cells} == {"cardiology"}
    with pytest.raises(SettingError, match="no cell passes"):
        only(grid("table-1"), ["cmscc"])
    with pytest.raises(SettingError, match="accepts method"):
        only(grid("table-1"), ["methods=cmsc"])
    with pytest.raises(SettingError, match="no experiment 'table-3'"):
        grid("table-3")


def test_the_recount_of_the_papers_tables_can_be_repeated() -> None:
    found = {claim.about: claim for claim in claims(Results({}, {}))}
    transfer = [c.recount for about, c in found.items() if "4 leads" in about]
    twelve = [c.recount for about, c in found.items() if "12 leads" in about]
    assert transfer == ["18 of 24", "21 of 24", "21 of 24", "17 of 24"]
    assert twelve == ["24 of 24", "23 of 24", "23 of 24", "23 of 24"]
    linear = next(c for about, c in found.items() if "all beat SimCLR" in about)
    assert linear.recount == "52 of 64"  # of the 64 settings, CMLC fails in twelve
    assert all(claim.ours == claim.verdict == "not run" for claim in found.values())


def test_tables_1_and_2_are_on_five_splits_and_no_encoder_has_seen_its_test_patients() -> None:
    for name in ("table-1", "table-2"):
        first = {cell for cell in grid(name) if not cell.split_seed}
        others = grid(f"{name}-splits")
        assert Counter(cell.split_seed for cell in others) == dict.fromkeys(
            (1, 2, 3, 4), len(first)
        )
        for cell in others:
            p = cell.pretraining
            trained_here = p.dataset == cell.downstream and p.method != "random"
            assert p.split_seed == (cell.split_seed if trained_here else 0)
    assert not {c.pretraining for c in grid("table-2-splits")} - {
        c.pretraining for c in grid("table-2")
    }  # its encoders are those of table 2


def test_results_keep_the_names_they_had_before_settings_were_added() -> None:
    encoder = Pretraining("cmsc", "chapman")
    assert run_name(encoder, 5) == "pretrain/chapman-4leads-e128-cmsc/seeds5"
    cell = Cell(encoder, "chapman", "linear")
    assert run_name(cell, 5) == (
        "score/linear-chapman-4leads-e128-f0.5-split0/chapman-4leads-e128-cmsc/seeds5"
    )
    recorded = json.loads(lzma.decompress((RESULTS / RUNS).read_bytes()))["runs"]
    every = grid("all")
    known = {run_name(cell, seeds) for cell in every for seeds in {r["seeds"] for r in recorded}}
    scores = [r["name"] for r in recorded if r["state"] == "done" and r["kind"] != "pretrain"]
    assert len(scores) > 500 and set(scores) <= known


def test_few_labels_are_scored_with_all_validation_labels_and_with_few() -> None:
    for name, count in (("label-efficiency", 522), ("labelled-fraction", 15)):
        cells = grid(name)
        few = [cell for cell in cells if cell.validation_labels == "share"]
        assert len(few) == count  # as docs/reproduce.md says
        assert all(replace(cell, validation_labels="all") in cells for cell in few)
        assert all(cell.patients is not None or cell.fraction < 1 for cell in few)
        assert only(cells, ["validation_labels=share"]) == few
    # there, validation patients measure
    assert {cell.validation_labels for cell in grid("more-with-less")} == {"all"}


def test_twelve_leads_have_the_columns_of_tables_1_and_2() -> None:
    for name in ("table-1", "table-2"):
        cells = grid(f"{name}-12")
        four = {(c.task, c.downstream) for c in grid(name) if not c.split_seed}
        assert {(c.task, c.downstream) for c in cells} == four
        assert {c.pretraining.method for c in cells} == {
            *("random", "random-bn", "simclr", "cmsc", "cmlc", "cmsmlc")
        }
        assert {
            c.pretraining.leads for c in cells if c.pretraining.dataset not in paper.SINGLE_LEAD
        } == {12}
        printed = set(grid(f"appendix-{'linear' if name == 'table-1' else 'transfer'}"))
        ours = {c for c in cells if c.pretraining.method not in UNTRAINED}
        assert ours < printed


def test_the_best_forms_are_scored_in_tables_1_and_2_on_all_splits() -> None:
    cells = grid("forms")
    for cell in (*grid("table-1"), *grid("table-2")):
        if cell.pretraining.method in FORMS:
            best = at_best(cell)
            assert best.pretraining.method == cell.pretraining.method
            assert {on_split(best, seed) for seed in SPLIT_SEEDS} | {best} <= set(cells)
    untrained = Cell(Pretraining("random", "chapman"), "chapman", "linear")
    assert at_best(untrained) == untrained


def finished(name: str, result: dict[str, Any]) -> Run:
    return Run(name, "linear", {}, 2, "done", result, None, None, 1.0, {}, 1, None, None)

"""The runner: nothing is done twice, no failure stops the rest, an interruption costs little."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import warm
from clocs.errors import ClocsError, SettingError
from clocs.evaluation.evaluate import score_against_untrained
from clocs.experiments import runner
from clocs.experiments.data import Library
from clocs.experiments.grid import Cell, Pretraining, grid, only, run_name
from clocs.experiments.ledger import Ledger, Run
from clocs.experiments.runner import Runner
from clocs.training.checkpoint import load_checkpoints

from .small import TINY, process_cells, small_cells, small_library, work

SCRIPT = Path(__file__).with_name("small.py")


@pytest.fixture(scope="module")
def library() -> Library:
    return small_library("chapman", "physionet2020", "cardiology", patients=40)


def start(folder: Path) -> warm.Process:
    return warm.Process(SCRIPT, folder, stdout=subprocess.PIPE)


def runs_of(folder: Path) -> dict[str, Run]:
    ledger = Ledger(folder)
    try:
        return ledger.runs()
    finally:
        ledger.close()


def test_a_killed_grid_loses_at_most_the_current_run_and_two_processes_never_do_the_same(
    tmp_path: Path,
) -> None:
    process = start(tmp_path)
    assert process.stdout is not None
    first = process.stdout.readline()
    process.kill()
    process.wait()
    assert "trained" in first
    before = {name for name, run in runs_of(tmp_path).items() if run.state == "done"}
    assert before
    processes = [start(tmp_path) for _ in range(2)]
    outputs = [one.communicate(timeout=600)[0] for one in processes]
    assert [one.returncode for one in processes] == [0, 0]
    runs = runs_of(tmp_path)
    assert {run.state for run in runs.values()} == {"done"}
    attempts = Counter(run.attempts for run in runs.values())
    assert attempts[1] >= len(runs) - 1 and attempts[2] <= 1  # one was in hand, or none
    learned = [
        line.split()[1] for text in outputs for line in text.splitlines() if "trained" in line
    ]
    assert len(learned) == len(set(learned)) <= len(process_cells()) - len(before)


def test_what_is_done_is_not_done_again(library: Library, tmp_path: Path) -> None:
    cells = only(small_cells(), ["cmsc", "downstream=chapman"])
    assert work(tmp_path, cells, library).done == 1
    more = cells + [replace(cell, task="distances") for cell in cells]  # the same encoder
    outcome = work(tmp_path, more, library)
    assert outcome.complete and outcome.done == 2
    runs = runs_of(tmp_path)
    assert len(runs) == 3 and {run.attempts for run in runs.values()} == {1}
    distances = runs[run_name(more[1], 1)].result
    assert distances is not None and 0 <= distances["separability"][0] <= 1


def test_encoders_of_finished_cells_are_not_trained(library: Library, tmp_path: Path) -> None:
    cells = only(small_cells(), ["cmsc", "downstream=chapman"])
    with closing(Ledger(tmp_path)) as ledger:
        name = run_name(cells[0], TINY.seeds)
        ledger.add(name, cells[0].task, {}, TINY.seeds)
        ledger.finish(name, {}, seconds=0.0, versions={})
    assert work(tmp_path, cells, library).done == 1
    assert list(runs_of(tmp_path)) == [name]


def test_a_lost_encoder_is_trained_again_when_it_is_needed(
    library: Library, tmp_path: Path
) -> None:
    cells = only(small_cells(), ["cmsc", "downstream=chapman"])
    assert work(tmp_path, cells, library).done == 1
    shutil.rmtree(tmp_path / "pretrained")
    assert work(tmp_path, cells, library).done == 1  # its number is there: nothing needs it
    assert not (tmp_path / "pretrained").exists()
    more = cells + [replace(cell, task="distances") for cell in cells]
    assert work(tmp_path, more, library).done == 2
    assert runs_of(tmp_path)[run_name(cells[0].pretraining, TINY.seeds)].attempts == 2


def test_trainings_that_diverged_are_failures_not_results(library: Library, tmp_path: Path) -> None:
    """Both of them: the encoder's, and the classifier's on an encoder that needs none."""
    cells = only(small_cells(), ["random,cmsc", "downstream=chapman"])
    ledger = Ledger(tmp_path)
    status = Runner(ledger, library, replace(TINY, lr=float("inf"))).work(cells)
    ledger.close()
    assert status.failed == 2 and status.done == 0
    errors = {name: run.error or "" for name, run in runs_of(tmp_path).items()}
    by_method = {cell.pretraining.method: cell for cell in cells}
    learned, scored = by_method["cmsc"].pretraining, by_method["random"]
    assert "the training of seed 0 diverged" in errors[run_name(learned, 1)]
    assert "the training of a classifier on random, seed 0" in errors[run_name(scored, 1)]
    assert not list(tmp_path.rglob("*cmsc*/**/seed-*"))


def test_a_failed_run_keeps_its_error_and_the_others_continue(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = only(small_cells(), ["random,cmsc,cmlc", "downstream=chapman"])
    real = score_against_untrained

    def refuses_cmlc(groups: object, *rest: object, **options: object) -> object:
        if any(group[0].card.method == "cmlc" for group in groups):  # type: ignore[attr-defined]
            raise SettingError("cmlc is not welcome")
        return real(groups, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "score_against_untrained", refuses_cmlc)
    outcome = work(tmp_path, cells, library)
    assert (outcome.done, outcome.failed, outcome.left) == (len(cells) - 1, 1, 0)
    failed = [run for run in runs_of(tmp_path).values() if run.state == "failed"]
    assert [run.error for run in failed] == ["cmlc is not welcome"]
    monkeypatch.undo()
    assert work(tmp_path, cells, library).failed == 1  # until someone asks for it
    ledger = Ledger(tmp_path)
    ledger.forget_failures()
    assert work(tmp_path, cells, library).complete


def test_a_failed_pretraining_fails_its_cells_alone(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = only(small_cells(), ["random,cmsc", "downstream=chapman"])

    def breaks(*arguments: object, **options: object) -> object:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("clocs.pretraining.pretrain.fit", breaks)
    outcome = work(tmp_path, cells, library)
    assert outcome.failed == 1 and outcome.done == len(cells) - 1
    failed = next(run for run in runs_of(tmp_path).values() if run.state == "failed")
    assert failed.kind == "pretrain" and "RuntimeError: out of memory" in (failed.error or "")


def test_all_tasks_run_with_twelve_leads(library: Library, tmp_path: Path) -> None:
    encoder = Pretraining("cmsmlc", "chapman", leads=12, embedding_dim=32)
    cells = [
        Cell(encoder, "chapman", "linear", 0.25),
        Cell(encoder, "chapman", "linear-converged", 0.25, validation_labels="share"),
        Cell(encoder, "cardiology", "finetune", 1.0),
        Cell(encoder, "cardiology", "curve", 0.25),
    ]
    assert work(tmp_path, cells, library).done == 4
    runs = runs_of(tmp_path)
    results = [runs[run_name(cell, 1)].result or {} for cell in cells]
    assert [result["protocol"] for result in results] == [
        "linear",
        "linear-converged",
        "finetune",
        "finetune",
    ]
    assert [result["validation_labels"] for result in results] == ["all", "share", "all", "all"]
    few, every = results[1]["labeled_validation"], results[0]["labeled_validation"]
    assert few == [round(0.25 * every[0])]
    assert len(results[0]["leads"]) == 12
    assert len(results[3]["curve"][0]) == TINY.curve_epochs  # every epoch, without stopping
    assert all(0 <= result["auc_mean"] <= 1 for result in results)


def test_an_encoder_scored_on_another_split_of_its_dataset_is_trained_on_that_split(
    library: Library, tmp_path: Path
) -> None:
    cells = only(grid("table-1-splits"), ["cmlc,random-bn", "downstream=chapman", "split=1,2"])
    assert work(tmp_path, cells, library).done == len(cells) == 4
    cards = [load_checkpoints(path.parent)[0].card for path in tmp_path.rglob("seed-0.json")]
    assert sorted((card.method, card.split_seed) for card in cards) == [
        ("cmlc", 1),
        ("cmlc", 2),
        ("random-bn", 1),
        ("random-bn", 2),
    ]
    runs = runs_of(tmp_path)
    assert {(runs[run_name(c, 1)].result or {})["split_seed"] for c in cells} == {1, 2}


def test_a_fixed_schedule_trains_to_its_end_and_keeps_the_last_weights(
    library: Library, tmp_path: Path
) -> None:
    profile = replace(TINY, epochs=3)
    encoders = [Pretraining("byol", "chapman", epochs=epochs) for epochs in (2, 3, 400)]
    cells = [Cell(encoder, "chapman", "linear") for encoder in encoders]
    ledger = Ledger(tmp_path)
    assert Runner(ledger, library, profile).work(cells).done == 3
    runs = ledger.runs()
    found = [runs[run_name(encoder, 1)].result or {} for encoder in encoders]
    assert [result["epochs"] for result in found] == [[2], [3], [3]]
    assert [result["best_epoch"] for result in found] == [[2], [3], [3]]
    cards = [
        load_checkpoints(tmp_path / (runs[run_name(e, 1)].checkpoint or ""))[0].card
        for e in encoders
    ]
    assert {card.training["keep"] for card in cards} == {"last"}
    assert all((runs[run_name(cell, 1)].result or {})["auc_validation"] for cell in cells)
    ledger.close()


def test_cells_without_data_stay_in_the_grid(tmp_path: Path) -> None:
    library = small_library("chapman")
    cells = only(grid("table-1"), ["random"])
    outcome = work(tmp_path, cells, library)
    assert (outcome.done, outcome.unavailable) == (1, 1)


def test_after_a_time_limit_the_next_call_resumes(library: Library, tmp_path: Path) -> None:
    cells = only(small_cells(), ["cmsc"])
    none = work(tmp_path, cells, library, seconds=0.0)
    assert none.left == len(cells) and not none.complete
    assert {run.state for run in runs_of(tmp_path).values()} == {"waiting"}
    assert work(tmp_path, cells, library).complete


def test_other_data_or_settings_need_another_folder(library: Library, tmp_path: Path) -> None:
    cells = only(small_cells(), ["random", "downstream=chapman"])
    work(tmp_path, cells, library)
    with pytest.raises(ClocsError, match="differ in the data of chapman"):
        work(tmp_path, cells, small_library("chapman", patients=20))

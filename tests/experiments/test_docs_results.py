"""The published results: rows that explain themselves, and documents that agree with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clocs.experiments.additions import CHOSEN_SCHEDULES, chosen_schedule
from clocs.experiments.claims import claims
from clocs.experiments.coverage import coverage
from clocs.experiments.exports import open_results
from clocs.experiments.grid import GRIDS
from clocs.experiments.marked import filled
from clocs.experiments.report import generated_parts
from clocs.experiments.results import Results

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
SETTINGS = (
    "pretraining", "task", "method", "pretrain", "downstream", "embedding_dim", "fraction",
    "split_seed", "seeds", "leads", "tau_d", "perturb", "tasks", "frame", "encoder_frame", "input",
    "metric", "version",
)  # fmt: skip


@pytest.fixture(scope="module")
def results() -> Results:
    return open_results(RESULTS)


@pytest.mark.parametrize("name", [name for name in GRIDS if (RESULTS / f"{name}.json").is_file()])
def test_no_two_rows_have_the_same_settings(name: str) -> None:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert rows
    for row in rows:
        assert set(SETTINGS) <= row.keys(), row["run"]
        assert row["frame"].keys() == row["encoder_frame"].keys() == {"seconds", "samples"}
        assert row["version"] and row["metric"] and row["leads"] and row["seeds"]
        assert (row["tau_d"] is not None) == (row["method"] == "byol")
        assert (row["tasks"] is not None) == (row["method"] == "mtssl")
    told_apart = {json.dumps([row[key] for key in SETTINGS]) for row in rows}
    assert len(told_apart) == len(rows)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("retrieval-*.json")), ids=lambda p: p.stem)
def test_scores_of_the_search_have_all_their_settings(path: Path) -> None:
    keys = (
        "method", "seed", "run", "embedding_dim", "pretrain", "store", "split", "split_seed",
        "leads", "frame", "frame_trained", "version",
    )  # fmt: skip
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert all(set(keys) <= row.keys() and row["one_recording_each"] for row in rows)
    assert len({json.dumps([row[key] for key in keys]) for row in rows}) == len(rows)


def test_every_json_file_is_one_of_these() -> None:
    known = {f"{name}.json" for name in GRIDS} | {
        "coverage.json",
        "runs.json",
        "comparisons.json",
        "many-leads.json",
    }
    found = {path.name for path in RESULTS.glob("*.json")}
    assert not {name for name in found - known if not name.startswith("retrieval-")}


def test_the_counts_are_those_of_the_results(results: Results) -> None:
    written = json.loads((RESULTS / "coverage.json").read_text(encoding="utf-8"))
    assert written == coverage(results, claims(results))


def test_byols_schedules_on_further_splits_are_those_chosen_on_the_first(results: Results) -> None:
    chosen = {dataset: chosen_schedule(results, dataset) for dataset in CHOSEN_SCHEDULES}
    assert chosen == CHOSEN_SCHEDULES


@pytest.mark.parametrize("name", ["README.md", "docs/patients.md", "docs/results/README.md"])
def test_generated_parts_are_up_to_date(results: Results, name: str) -> None:
    """Write them again: clocs report docs/results --out docs/results --fill README.md …"""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "<!-- clocs:" in text
    assert text == filled(text, generated_parts(results, RESULTS), where=name)

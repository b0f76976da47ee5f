"""The published results: rows that explain themselves, and documents that agree with them."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clocs.evaluation import bootstrap
from clocs.experiments import comparisons, paper
from clocs.experiments.grid import BEST_FORMS, FORMS, Cell, Pretraining, forms, run_name
from clocs.experiments.report import report
from clocs.experiments.results import DRAWS, RUNS, Results, open_results, read_draws, value_of
from clocs.experiments.tables import brief_tables

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def results() -> Results:
    return open_results(RESULTS)


def test_every_run_says_what_it_is(results: Results) -> None:
    assert len(results.runs) > 2000
    for run in results.runs.values():
        own = dict(run.settings)
        if run.kind == "pretrain":
            assert run.name == run_name(Pretraining(**own), run.seeds)
        else:
            cell = Cell(Pretraining(**own.pop("pretraining")), **own)
            assert run.name == run_name(cell, run.seeds) and run.kind == cell.task


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
    known = {"coverage.json", "comparisons.json"}
    found = {path.name for path in RESULTS.glob("*.json")}
    assert not {name for name in found - known if not name.startswith("retrieval-")}


def test_the_folder_is_light() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 8e6


def test_the_best_form_of_each_method_is_that_of_validation_patients(results: Results) -> None:
    for dataset, method in product(BEST_FORMS, FORMS):
        cells = [Cell(encoder, dataset, "linear") for encoder in forms(method, dataset)]
        best = comparisons.best_on_validation(results, cells)
        assert best == cells[BEST_FORMS[dataset][method]], (dataset, method)


def test_other_draws_move_no_verdict_of_the_primary_family(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other weights of the seeds, and other patients in place of the same."""

    def verdicts(known: Results) -> list[str]:
        made = [one for one in comparisons.contests(known) if one.primary]
        assert len(made) == 4 * len(comparisons.COLUMNS)
        return [one.comparison.verdict for one in made]

    published, weights = verdicts(results), bootstrap.mean_weights
    for number in (1, 2):

        def later(seeds: Sequence[int], draws: int, number: int = number) -> NDArray[np.float64]:
            return weights(seeds, 50_000 * number + draws)[:, 50_000 * number :]

        monkeypatch.setattr(bootstrap, "mean_weights", later)
        bootstrap._many_weights.cache_clear()
        chosen = np.random.default_rng(number).integers(2000, size=2000)  # the same of every run
        other = {}
        for name, own in results.draws.items():
            result = results.runs[name].result or {}
            auc, seeds = np.array(result["auc"]), result.get("seeds", range(len(result["auc"])))
            patients = (own - auc @ weights(seeds, len(own)))[chosen]
            other[name] = patients + auc @ later(seeds, 2000)
        assert verdicts(replace(results, draws=other)) == published
    bootstrap._many_weights.cache_clear()


def test_a_report_made_again_is_the_published_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write it again: clocs reproduce report --out docs/results --report docs/results."""
    quickly = partial(lzma.compress, preset=0)
    monkeypatch.setattr("clocs.experiments.results.lzma.compress", quickly)
    # the page is not compared; tests/experiments/test_report.py looks at its figures
    monkeypatch.setattr("clocs.experiments.report.as_address", lambda figure: "data:,")
    page = RESULTS / "README.md"
    assert page.read_text("utf-8").count("<!-- clocs:") == 4
    (tmp_path / page.name).write_bytes(page.read_bytes())
    report(RESULTS, tmp_path)
    for path in sorted(RESULTS.glob("*.md")):
        if path.name not in ("identity.md", "many-leads.md"):  # tested in tests/studies
            assert (tmp_path / path.name).read_text("utf-8") == path.read_text("utf-8"), path.name
    assert (tmp_path / "coverage.json").read_bytes() == (RESULTS / "coverage.json").read_bytes()
    runs, kept = (lzma.decompress((folder / RUNS).read_bytes()) for folder in (tmp_path, RESULTS))
    assert runs == kept
    draws, known = (read_draws(folder / DRAWS) for folder in (tmp_path, RESULTS))
    assert draws and draws.keys() == known.keys()
    for name, own in known.items():
        np.testing.assert_array_equal(draws[name], own, err_msg=name)
    now, published = (
        json.loads((folder / "comparisons.json").read_text("utf-8"))
        for folder in (tmp_path, RESULTS)
    )
    for one, other in zip(now, published, strict=True):
        assert one.pop("ci95") == pytest.approx(other.pop("ci95"), abs=1e-12)
        assert one == other


@pytest.mark.parametrize("dataset", paper.PRETRAIN)
def test_the_search_is_as_good_as_its_page_says(dataset: str) -> None:
    rows = json.loads((RESULTS / f"retrieval-{dataset}.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "patients.md").read_text(encoding="utf-8")
    groups: dict[tuple[str, float, float], list[dict[str, Any]]] = {}
    for row in rows:
        trained = row["frame_trained"]["seconds"]
        groups.setdefault((row["method"], row["frame"]["seconds"], trained), []).append(row)
    for (method, _, _), own in groups.items():
        line = f"| {paper.METHOD_TITLES.get(method, method)} | "
        if all(row["halves"] for row in own):
            line += f"{own[0]['halves']['frame']:g} s"
            scores = [str(value_of([r["halves"][k] for r in own])) for k in ("top1", "top10")]
            assert any(
                one.startswith(line) and all(score in one for score in scores)
                for one in page.splitlines()
            )


def test_the_terminal_shows_the_tables_that_the_filters_ask_for(results: Results) -> None:
    shown = brief_tables(results, ["appendix-linear"], ["leads=12", "e=32", "fraction=0.5"])
    assert [title for title, _, _ in shown] == ["12 leads, E = 32, F = 0.5"]

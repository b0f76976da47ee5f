"""The report of the comparison: rows with their settings, and a page that says what they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clocs.errors import SettingError
from clocs.experiments.grid import FACTORIAL_LOSSES, factor_subsets
from clocs.experiments.pages import filled
from research.many_leads.__main__ import main
from research.many_leads.forest import figures
from research.many_leads.recipe import TINY
from research.many_leads.results import FILE, StudyResults, joined, read
from research.many_leads.runner import run
from research.many_leads.tables import parts
from tiny_leads import tiny_leads

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "many-leads.md"
PUBLISHED = ROOT / "docs" / "results" / FILE
NOTHING = StudyResults({}, {}, [], [], [], [], [])
ONLY = (
    "linear-1/physionet2020/cmsmlc-chapman+physionet2020",
    "linear-1/physionet2020/random-bn-",
    "finetune-1/physionet2020/random-chapman+physionet2020/conditions",
    "identity/physionet2020/cmsmlc",
    "hospital/chapman/physionet2020/cmsmlc-chapman+",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("runs")
    with tiny_leads() as name:
        recipe = replace(TINY, encoder=name)
        done = run(folder, stages="abcef", only=ONLY, recipe=recipe, device="cpu")
    assert not done.failed and not done.left
    yield folder


def test_every_row_carries_scores_interval_seeds_settings_time_weights_and_version(
    runs: Path, tmp_path: Path
) -> None:
    assert main(["--report", str(runs), "--out", str(tmp_path)]) == 0
    results = read(tmp_path / FILE)
    assert results.scores and results.analyses and results.pretrainings and results.recipe
    wanted = {"auc_mean", "auc_validation_mean", "ci95", "seeds", "settings", "weights"}
    for row in results.scores:
        assert wanted <= row.keys() and row["version"] and row["seconds"] > 0
    for row in results.pretrainings:
        assert row["weights"] > 0 and row["seconds"] > 0 and row["sha256"]
    pair = ["cmsmlc", "random-bn"]
    assert [row["methods"] for row in results.differences] == [pair]


def test_a_page_gets_the_sections_that_have_results(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    command = ["--report", str(runs), "--out", str(tmp_path), "--fill", str(page)]
    assert main(command) == 0
    text = page.read_text(encoding="utf-8")
    for name in ("scores", "leads", "noise", "hospital", "identity"):
        assert f"<!-- clocs:encoders-{name} -->\n\n|" in text or f"{name} -->\n\n###" in text
    assert "<!-- clocs:encoders-single-lead -->\n\nNot measured yet." in text
    once = read(tmp_path / FILE)
    assert filled(text, parts(once), where="page") == text


def test_sections_without_results_are_empty() -> None:
    assert set(parts(NOTHING).values()) == {"Not measured yet."}


def factors(datasets: tuple[str, ...], auc: float = 0.9) -> StudyResults:
    """Random leads add 0.04 to every loss."""
    rows: list[dict[str, Any]] = []
    for dataset in datasets:
        for method in FACTORIAL_LOSSES:
            for chosen in factor_subsets():
                own = auc + 0.04 * ("leads" in chosen)
                scores = {"auc": [own] * 5, "auc_mean": own, "ci95": None, "encoders": 5}
                draws = own + np.random.default_rng(0).normal(scale=0.01, size=2000)
                name = f"{dataset}/{method}/{chosen}"
                of = {"name": name, "method": method, "dataset": dataset, "factors": list(chosen)}
                more = {"draws": draws.round(4).tolist(), "most_leads": None, "network": None}
                rows.append(of | scores | more)
    return StudyResults({}, dict.fromkeys(datasets, "hash"), [], [], rows, [], [])


def test_what_runs_add_to_a_report_is_joined_to_it() -> None:
    both = joined([factors(("chapman", "physionet2020"), 0.8), factors(("physionet2020",))])
    assert len(both.scores) == 48 and set(both.data) == {"chapman", "physionet2020"}
    assert {row["auc_mean"] for row in both.scores} == {0.8, 0.8 + 0.04, 0.9, 0.9 + 0.04}
    other = replace(factors(("chapman",)), data={"chapman": "another"})
    with pytest.raises(SettingError, match="other data"):
        joined([both, other])


def test_the_factorial_shows_every_combination_and_the_effects_of_complete_datasets() -> None:
    results = factors(("physionet2020",))
    text = parts(results)["encoders-factorial"]
    assert "| random leads + two segments | | | | 0.940 | 0.940 | 0.940 |" in text
    assert "| random leads | | | 0.040 [0.040, 0.040] | 0.000 |" in text
    figure = figures(results)["many-leads-factorial.png"]
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["PhysioNet 2020"]
    assert list(figures(NOTHING)) == ["many-leads.png"]


def test_folders_without_finished_items_are_refused(tmp_path: Path) -> None:
    with tiny_leads() as name:
        recipe = replace(TINY, encoder=name)
        run(tmp_path, stages="a", only=ONLY[:1], recipe=recipe, device="cpu", seconds=0)
    assert main(["--report", str(tmp_path), "--out", str(tmp_path)]) == 1
    with pytest.raises(SettingError, match="write it again"):
        (tmp_path / FILE).write_text("[]", encoding="utf-8")
        read(tmp_path / FILE)


def test_the_published_page_says_what_the_published_rows_say() -> None:
    results = read(PUBLISHED) if PUBLISHED.is_file() else NOTHING
    text = PAGE.read_text(encoding="utf-8")
    assert filled(text, parts(results), where=str(PAGE)) == text

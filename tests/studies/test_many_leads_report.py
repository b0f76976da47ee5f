"""The report of the comparison: rows with their settings, and a page that says what they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clocs.errors import SettingError
from clocs.experiments.pages import filled
from research.many_leads.__main__ import main
from research.many_leads.recipe import TINY
from research.many_leads.results import FILE, StudyResults, read
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

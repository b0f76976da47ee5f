"""What is counted: every printed result once, like with like."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from clocs.cli.main import app
from clocs.experiments import paper
from clocs.experiments.coverage import coverage, sentences
from clocs.experiments.exports import open_results
from clocs.experiments.grid import Cell, grid, only, paper_values
from clocs.experiments.report import report

from .test_report import BETTER, fill


def never(cell: Cell) -> bool:
    return False


def test_every_printed_result_counts_once(tmp_path: Path) -> None:
    fill(tmp_path, [*grid("table-1"), *grid("byol-decay")], never)
    counts = coverage(open_results(tmp_path), [])
    assert (counts["four_leads"]["printed"], counts["four_leads"]["rows"]) == (704, 820)
    assert (counts["twelve_leads"]["printed"], counts["twelve_leads"]["rows"]) == (544, 608)
    assert len(paper.printed()) == 1428 and len(paper_values()) == 1248
    printed = [cell for cell in (*grid("table-1"), *grid("byol-decay")) if cell in paper_values()]
    assert counts["four_leads"]["computed"] == len(set(printed)) < len(printed)
    assert counts["twelve_leads"]["computed"] == 0


def test_nearness_is_by_logits_where_the_papers_are(tmp_path: Path) -> None:
    """By probabilities, Chapman's would be 0.03 from the paper's."""
    fill(tmp_path, only(grid("table-1"), ["method=cmsc"]), never)
    results = open_results(tmp_path)
    counts = coverage(results, [])["four_leads"]
    assert counts["computed"] == counts["within_0.02"] == counts["within_0.05"] == 2
    for cell in only(grid("table-1"), ["method=cmsc"]):
        difference = results.difference(cell)
        assert difference is not None and abs(difference - BETTER) < 1e-9


def test_the_command_prints_and_writes_the_counts(tmp_path: Path) -> None:
    fill(tmp_path, only(grid("table-1"), ["method=cmsc"]), never)
    done = CliRunner().invoke(app, ["report", str(tmp_path)], catch_exceptions=False)
    counts = json.loads((tmp_path / "report" / "coverage.json").read_text())
    for line in sentences(counts):
        assert line in done.stdout
    assert "Four leads: 2 of 704 printed results computed, 2 within 0.02" in done.stdout
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "<b>2 of 704</b>" in page and "<b>0 of 544</b>" in page


def test_marked_parts_of_a_file_are_brought_up_to_date(tmp_path: Path) -> None:
    fill(tmp_path / "runs", only(grid("table-1"), ["method=cmsc"]), never)
    readme, other = tmp_path / "out" / "README.md", tmp_path / "other.md"
    readme.parent.mkdir()
    readme.write_text("before\n<!-- clocs:coverage -->\nOLD\n<!-- /clocs -->\nafter\n")
    other.write_text("<!-- clocs:table -->\n<!-- /clocs -->\n")
    report(tmp_path / "runs", tmp_path / "out", fill=[other])
    now = readme.read_text(encoding="utf-8")
    assert now.startswith("before\n") and now.endswith("after\n")
    assert "OLD" not in now and "2 of 704" in now
    assert "| CMSC | **0.926 ± 0.004** |" in other.read_text(encoding="utf-8")

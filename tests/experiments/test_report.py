"""The report: complete, self-contained, and honest about what is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from clocs.errors import SettingError
from clocs.experiments import tables
from clocs.experiments.claims import claims
from clocs.experiments.exports import open_results
from clocs.experiments.grid import Cell, grid, only
from clocs.experiments.ledger import Ledger
from clocs.experiments.report import TITLES, report
from clocs.experiments.results import papers
from clocs.experiments.runner import run_name
from clocs.figures.svg import ticks

BETTER = 0.01  # our invented numbers lie this much above the paper's, by logits
OF_PROBABILITIES = 0.02  # and by probabilities this much more, where the paper's are of logits


def result_of(cell: Cell) -> dict[str, Any]:
    printed = papers(cell)
    logits = (printed.mean if printed else 0.6) + BETTER
    mean = logits + (0 if cell.downstream == "physionet2020" else OF_PROBABILITIES)
    p = cell.pretraining
    if cell.task == "distances":
        low = 1.0 if p.method == "cmsc" else 2.0
        return {
            "intra_mean": [low] * 5,
            "inter_mean": [3.0] * 5,
            "separability": [0.9 if p.method == "cmsc" else 0.6] * 5,
            "edges": [0.0, 1.0, 2.0],
            "histogram": {"intra": [0.7, 0.3], "inter": [0.4, 0.6]},
        }
    curve = {"curve": [[0.5, 0.7 if p.method == "cmsc" else 0.6]] * 5}
    return {
        "protocol": cell.task,
        "method": p.method,
        "downstream": cell.downstream,
        "fraction": cell.fraction,
        "auc": [mean] * 5,
        "auc_mean": mean,
        "auc_std": 0.004,
        "auc_logits": [logits] * 5,
        "auc_logits_mean": logits,
        "ci95": [mean - 0.01, mean + 0.01],
    } | (curve if cell.task == "curve" else {})


def fill(folder: Path, cells: list[Cell], failing: Callable[[Cell], bool]) -> None:
    ledger = Ledger(folder)
    profile = {"name": "paper", "epochs": 400, "patience": 15, "lr": 1e-4, "curve_epochs": 2}
    ledger.settle("profile", profile, "")
    for name in ("chapman", "physionet2020"):
        ledger.settle(f"data of {name}", "0123456789abcdef", "")
        ledger.settle(f"leads of {name}", ["II", "V2", "aVL", "aVR"], "")
    versions = {"clocs": "0.1.0", "device": "an H200"}
    for cell in cells:
        encoder = run_name(cell.pretraining, 5)
        ledger.add(encoder, "pretrain", asdict(cell.pretraining), 5)
        trained = {
            "epochs": [9] * 5,
            "best_epoch": [7] * 5,
            "measured_instances": 9000,
            "measured_seconds": 9.0,
        }
        ledger.finish(encoder, trained, seconds=10.0, versions=versions, checkpoint="x")
        name = run_name(cell, 5)
        ledger.add(name, cell.task, asdict(cell), 5)
        if failing(cell):
            where = '  File "/home/zsuzsanna/lib/torch/x.py", line 3, in <module>'
            said = f"{Path.home()}/a.parquet of /home/zsuzsanna/stores: <out of memory>"
            ledger.fail(name, f"Traceback\n{where}\nRuntimeError: {said}", seconds=1.0)
        else:
            ledger.finish(name, result_of(cell), seconds=2.0, versions=versions)
    ledger.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All but the appendices; one cell of table 2 failed."""
    folder = tmp_path_factory.mktemp("runs")
    names = [name for name in TITLES if not name.startswith("appendix")]
    cells = list(dict.fromkeys(cell for name in names for cell in grid(name)))

    def failing(cell: Cell) -> bool:
        p = cell.pretraining
        where = (p.method, p.dataset, cell.downstream, cell.fraction, p.embedding_dim)
        return where == ("byol", "chapman", "physionet2017", 0.5, 128) and p.tau_d is None

    fill(folder, cells, failing)
    report(folder)
    return folder


def test_the_page_loads_nothing_from_elsewhere(filled: Path) -> None:
    page = (filled / "report" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!#|https://arxiv\.org/)', page)
    assert "@import" not in page and "url(" not in page
    assert len(page) < 1_000_000


def test_every_table_and_figure_has_its_place(filled: Path) -> None:
    page = (filled / "report" / "index.html").read_text(encoding="utf-8")
    for name in TITLES:
        assert f'id="{name}"' in page
        assert (filled / "report" / f"{name}.md").is_file()
    assert page.count("<svg") == 7  # tables 1 and 2, and five figures


def test_an_entry_shows_ours_the_papers_and_the_difference(filled: Path) -> None:
    table_1 = (filled / "report" / "table-1.md").read_text(encoding="utf-8")
    of_logits = "**0.926 ± 0.004** [0.916, 0.936] (logits 0.906; paper 0.896 ± 0.005, +0.010)"
    one_per_label = "**0.725 ± 0.004** [0.715, 0.735] (paper 0.715 ± 0.033, +0.010)"
    assert f"| CMSC | {of_logits} | {one_per_label} |" in table_1
    # the paper has no such row
    assert "| Random, BN fitted | 0.630 ± 0.004 [0.620, 0.640] | 0.610" in table_1


def test_the_page_shows_both_aucs_and_the_interval(filled: Path) -> None:
    page = (filled / "report" / "index.html").read_text(encoding="utf-8")
    cell = page[page.index(">0.926 ± 0.004<") :][:400]
    for part in ("0.916–0.936", "logits 0.906", "0.896 ± 0.005", "+0.010"):
        assert part in cell


def test_what_is_missing_says_why(filled: Path) -> None:
    table_2 = (filled / "report" / "table-2.md").read_text(encoding="utf-8")
    failed = "RuntimeError: a.parquet of stores:"
    assert f"failed: {failed} <out of memory> (paper 0.748 ± 0.014)" in table_2
    page = (filled / "report" / "index.html").read_text(encoding="utf-8")
    assert f"{failed} &lt;out of memory&gt;" in page and "<out of memory>" not in page
    for file in (filled / "report").iterdir():  # it is passed on
        assert b"zsuzsanna" not in file.read_bytes()
        assert bytes(Path.home()) + b"/" not in file.read_bytes()
    appendix = (filled / "report" / "appendix-transfer.md").read_text(encoding="utf-8")
    assert "needs a 12-lead store" in appendix and "not run" in appendix


def test_scores_are_exported_as_evaluate_prints_them(filled: Path) -> None:
    listed = json.loads((filled / "report" / "table-1.json").read_text())
    assert len(listed) == 16
    assert {"protocol", "method", "downstream", "auc", "auc_mean"} <= set(listed[0])
    assert len(json.loads((filled / "report" / "table-2.json").read_text())) == 119


def test_claims_are_counted_in_our_runs_as_in_the_papers(filled: Path) -> None:
    found = {claim.about: claim for claim in claims(open_results(filled))}
    gain = found["Linear (table 1): CMSC's gain over SimCLR on Chapman"]
    assert (gain.text, gain.recount, gain.holds) == ("+0.158", "+0.158", True)
    assert gain.ours == "+0.158, by logits as printed +0.158"
    few = found[
        "PhysioNet 2020 → Cardiology: CMSC with 25 % of the labels is above random with all labels"
    ]
    assert few.holds and few.ours.startswith("0.700 vs 0.600")
    below = found["Transfer (table 2): CMLC is below CMSC and below CMSMLC"]
    assert below.ours == below.recount == "11 of 12" and below.holds is False
    apart = [claim for about, claim in found.items() if about.startswith("Patients")]
    assert [claim.holds for claim in apart] == [True, True]


def test_a_split_on_which_something_failed_counts_for_none(tmp_path: Path) -> None:
    cells = only(grid("table-2"), ["method=cmsc,simclr", "downstream=cardiology"])
    fill(tmp_path, cells, lambda cell: cell.split_seed == 3 and cell.pretraining.method == "cmsc")
    table = tables.cardiology_splits(open_results(tmp_path))
    assert table.title == "Cardiology over 4 patient splits: mean ± sd over splits"
    rows = dict(table.rows)
    simclr, cmsc = rows["SimCLR"][0], rows["CMSC"][0]
    assert simclr is not None and simclr.ours is not None
    assert cmsc is not None and cmsc.ours is not None
    page = report(tmp_path).read_text(encoding="utf-8")
    assert "&lt;out of memory&gt;" in page


def test_an_empty_folder_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no runs; make some with `clocs reproduce`"):
        report(tmp_path)


def test_a_report_can_be_written_before_anything_has_run(tmp_path: Path) -> None:
    Ledger(tmp_path).close()
    page = report(tmp_path).read_text(encoding="utf-8")
    assert "clocs reproduce table-1" in page and "0 of 704" in page and "0 of 544" in page


def test_the_page_opens_with_the_findings_then_claims_then_tables(filled: Path) -> None:
    page = (filled / "report" / "index.html").read_text(encoding="utf-8")
    places = [page.index(f'id="{name}"') for name in ("findings", "claims", "reading", "table-1")]
    assert places == sorted(places)
    assert page[places[0] : places[1]].count("<li>") == 5
    for word in ("E", "F", "τ<sub>d</sub>"):  # explained before the first table
        assert places[2] < page.index(f"<dt>{word}</dt>") < places[3]


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (0.612, 0.655), (1, 100), (0.9, 0.9001), (3.0, 3.0)]
)
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert len(found) <= 12
    assert all(low - 1e-6 <= value <= high + 1e-6 for value in found)

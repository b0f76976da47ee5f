"""The report: complete, self-contained, and honest about what is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import StepPatch

from clocs.errors import SettingError
from clocs.experiments import paper, tables
from clocs.experiments.agreement import blind_guesses, coverage, order_of_methods, sentences
from clocs.experiments.claims import claims
from clocs.experiments.grid import GRIDS, Cell, grid, only, paper_values, run_name
from clocs.experiments.ledger import Ledger, Run
from clocs.experiments.report import SECTIONS, report, section_of
from clocs.experiments.report_figures import distances
from clocs.experiments.results import Results, open_results, papers
from command_line import clocs as command

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
        "auc_validation": [mean] * 5,
    } | (curve if cell.task == "curve" else {})


def fill(folder: Path, cells: list[Cell], failing: Callable[[Cell], bool]) -> None:
    ledger = Ledger(folder)
    profile = {"name": "paper", "epochs": 400, "patience": 15, "lr": 1e-4, "curve_epochs": 2}
    ledger.require_fact("profile", profile)
    for name in ("chapman", "physionet2020"):
        ledger.require_fact(f"data of {name}", "0123456789abcdef")
        ledger.require_fact(f"leads of {name}", ["II", "V2", "aVL", "aVR"])
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
    names = [name for name in SECTIONS if not name.startswith("appendix")]
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
    assert not re.search(r'(src|href)="(?!#|data:|https://arxiv\.org/)', page)
    assert "@import" not in page and "url(" not in page
    assert len(page) < 1_000_000


def test_every_table_and_figure_has_its_place(filled: Path) -> None:
    page = (filled / "report" / "index.html").read_text(encoding="utf-8")
    for name in SECTIONS:
        assert f'id="{name}"' in page
        assert (filled / "report" / f"{name}.md").is_file()
    assert page.count("<img") == 3  # as many figures
    assert set(SECTIONS) == set(GRIDS)


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


def test_claims_are_counted_in_our_runs_as_in_the_papers(filled: Path) -> None:
    found = {claim.about: claim for claim in claims(open_results(filled))}
    gain = found["Linear (table 1): CMSC's gain over SimCLR on Chapman"]
    assert (gain.text, gain.recount, gain.verdict) == ("+0.158", "+0.158", "holds")
    assert gain.ours == "+0.158, by logits as printed +0.158"
    few = found[
        "PhysioNet 2020 → Cardiology: CMSC with 25 % of the labels is above random with all labels"
    ]
    assert few.ours.startswith("0.700 vs 0.600")  # on validation patients
    assert (few.tested, few.verdict) == ("not distinguishable, on test", "undecided")
    below = found["Transfer (table 2): CMLC is below CMSC and below CMSMLC"]
    assert below.ours == below.recount == "11 of 12"
    assert below.verdict == "undecided"  # by sign alone, one fails
    patients = [claim for about, claim in found.items() if about.startswith("Patients")]
    assert [claim.verdict for claim in patients] == ["holds", "holds"]


def test_an_interval_over_patients_alone_is_widened_by_the_spread_of_the_seeds() -> None:
    cell = grid("table-1")[0]
    result = {"auc": [0.70, 0.74, 0.78], "auc_mean": 0.74, "auc_std": 0.04, "ci95": [0.73, 0.76]}

    def ends(**more: Any) -> tuple[float, float] | None:
        name = run_name(cell, 3)
        kept = result | more
        run = Run(name, "linear", {}, 3, "done", kept, None, None, 1.0, {}, 1, None, None)
        return Results({name: run}, {}).interval(cell)

    assert ends(auc_validation=[0.7] * 3) == (0.73, 0.76)  # over seeds and patients
    half = 4.302653 * 0.04 / 3**0.5  # of the mean of three seeds, by Student's t
    assert ends() == pytest.approx(
        (0.74 - (half**2 + 0.01**2) ** 0.5, 0.74 + (half**2 + 0.02**2) ** 0.5), abs=1e-6
    )


def test_a_guess_knows_neither_the_method_nor_its_own_result() -> None:
    guesses = blind_guesses()
    assert guesses.keys() == paper_values().keys()
    cell = next(iter(guesses))
    like = [
        row.mean
        for other, row in paper_values().items()
        if other != cell
        and (other.task, other.downstream) == (cell.task, cell.downstream)
        and other.pretraining.leads == cell.pretraining.leads
    ]
    assert len(like) > 10
    assert guesses[cell] == pytest.approx(sum(like) / len(like))


def test_results_that_are_the_papers_have_its_order(tmp_path: Path) -> None:
    assert order_of_methods(Results({}, {}))["columns"] == 0
    fill(tmp_path, grid("table-1"), lambda cell: False)  # all the same amount above the paper's
    found = order_of_methods(open_results(tmp_path))
    assert found == {
        "columns": 2,
        "rank_correlation": 1.0,
        "best_agrees": 2,
        "best_by_chance": pytest.approx(0.3, abs=0.1),
    }


def test_a_split_on_which_something_failed_counts_for_none(tmp_path: Path) -> None:
    cells = only(grid("table-2"), ["method=cmsc,simclr", "downstream=cardiology"])
    fill(tmp_path, cells, lambda cell: cell.split_seed == 3 and cell.pretraining.method == "cmsc")
    table = tables.TABLES["table-2"](open_results(tmp_path), cells)[1]
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


def test_every_printed_result_counts_once(tmp_path: Path) -> None:
    fill(tmp_path, [*grid("table-1"), *grid("byol-decay")], lambda cell: False)
    counts = coverage(open_results(tmp_path), [])
    assert (counts["four_leads"]["printed"], counts["four_leads"]["rows"]) == (704, 820)
    assert (counts["twelve_leads"]["printed"], counts["twelve_leads"]["rows"]) == (544, 608)
    assert len(paper.printed()) == 1428 and len(paper_values()) == 1248
    printed = [cell for cell in (*grid("table-1"), *grid("byol-decay")) if cell in paper_values()]
    assert counts["four_leads"]["computed"] == len(set(printed)) < len(printed)
    assert counts["twelve_leads"]["computed"] == 0


def test_nearness_is_by_logits_where_the_papers_are(tmp_path: Path) -> None:
    """By probabilities, Chapman's would be 0.03 from the paper's."""
    fill(tmp_path, only(grid("table-1"), ["method=cmsc"]), lambda cell: False)
    results = open_results(tmp_path)
    counts = coverage(results, [])["four_leads"]
    assert counts["computed"] == counts["within_0.02"] == counts["within_0.05"] == 2
    for cell in only(grid("table-1"), ["method=cmsc"]):
        difference = results.difference(cell)
        assert difference is not None and abs(difference - BETTER) < 1e-9


def test_the_command_prints_and_writes_the_counts(tmp_path: Path) -> None:
    fill(tmp_path, only(grid("table-1"), ["method=cmsc"]), lambda cell: False)
    told = command("reproduce", "report", "--out", tmp_path).stdout
    counts = json.loads((tmp_path / "report" / "coverage.json").read_text())
    for line in sentences(counts):
        assert line in told
    assert "Four leads: 2 of 704 printed results computed, 2 within 0.02" in told
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "Four leads: 2 of 704 printed" in page and "Twelve leads: 0 of 544 printed" in page


def test_marked_parts_of_a_file_are_brought_up_to_date(tmp_path: Path) -> None:
    fill(tmp_path / "runs", only(grid("table-1"), ["method=cmsc"]), lambda cell: False)
    readme, other = tmp_path / "out" / "README.md", tmp_path / "other.md"
    readme.parent.mkdir()
    readme.write_text("before\n<!-- clocs:coverage -->\nOLD\n<!-- /clocs -->\nafter\n")
    other.write_text("<!-- clocs:table -->\n<!-- /clocs -->\n")
    report(tmp_path / "runs", tmp_path / "out", fill=[other])
    now = readme.read_text(encoding="utf-8")
    assert now.startswith("before\n") and now.endswith("after\n")
    assert "OLD" not in now and "2 of 704" in now
    assert "| CMSC | **0.926 ± 0.004** |" in other.read_text(encoding="utf-8")


# results of these have other forms than an AUC
SHAPED = ("more-with-less", "patient-distances")
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
def scored() -> Results:
    runs = {}
    for name in GRIDS:
        for cell in grid(name) if name not in SHAPED else ():
            run = run_name(cell, 2)
            runs[run] = Run(
                run, cell.task, {}, 2, "done", score_of(cell), None, None, 1.0, {}, 1, None, None
            )
    counts = {"chapman": 6300, "physionet2020": 4100, "physionet2017": 5100, "cardiology": 188}
    facts = {f"counts of {d}": {"patients_by_part": [n, 0, 0]} for d, n in counts.items()}
    return Results(runs, facts)


@pytest.mark.parametrize("name", [name for name in GRIDS if name not in SHAPED])
def test_every_section_shows_its_results_and_none_without_them(scored: Results, name: str) -> None:
    full = section_of(scored, name)
    assert full.tables and any(table.filled for table in full.tables)
    assert all(entry.ours or entry.why_not for table in full.tables for entry in table.entries)
    empty = section_of(Results({}, {}), name)
    assert not any(table.filled for table in empty.tables) and empty.figure is None


def test_tables_over_splits_have_all_columns_and_the_sd_over_splits(scored: Results) -> None:
    linear, transfer = (tables.split_table(scored, task) for task in ("linear", "finetune"))
    assert len(linear.columns) == 2 and len(transfer.columns) == 6
    rows = dict(linear.rows)
    assert rows["BYOL, at its best"][0] and "Random, at its best" not in rows
    cmsc = rows["CMSC"][0]
    assert cmsc is not None and cmsc.ours is not None
    assert cmsc.ours.mean == pytest.approx(STRENGTH["cmsc"] + 0.02)
    assert cmsc.ours.std == pytest.approx(0.0158, abs=1e-4)  # of 0, 0.01 … 0.04


def test_the_ablations_are_one_table_with_a_row_for_each_change(scored: Results) -> None:
    (table,) = section_of(scored, "ablations").tables
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
    assert "| three segments | | 0." in table.markdown()


def test_label_efficiency_is_one_figure_of_eight_panels(scored: Results) -> None:
    figure = section_of(scored, "label-efficiency").figure
    assert figure is not None
    assert [len(axes.lines) for axes in figure.axes] == [len(paper.METHOD_TITLES)] * 8
    patients = figure.axes[6].lines[0].get_xdata()
    assert list(np.asarray(patients)) == [10, 30, 100, 188]  # Cardiology has no 300
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()  # of one dataset


def test_the_panels_of_distances_share_their_axes(filled: Path) -> None:
    """One encoder's distances are ten times another's, in bins ten times as wide."""
    results = open_results(filled)
    cells = grid("patient-distances")
    name = run_name(cells[1], 5)
    result = (results.result(cells[1]) or {}) | {"edges": [0.0, 10.0, 20.0]}
    wider = replace(results.runs[name], result=result)
    figure = distances(replace(results, runs={**results.runs, name: wider}), cells)
    assert figure is not None
    panels = figure.axes[: len(cells)]
    assert {axes.get_xlim() for axes in panels} == {(0.0, 20.0)}
    steps = [[one for one in axes.patches if isinstance(one, StepPatch)] for axes in panels]
    tops = [max(np.max(one.get_data()[0]) for one in own) for own in steps]
    assert tops[1] == pytest.approx(tops[0] / 10)  # a tenth as high, not stretched to the top

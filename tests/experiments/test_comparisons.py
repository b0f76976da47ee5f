"""Methods against their rivals, from stored draws: what survives, and what was not tested."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clocs.experiments import tables
from clocs.experiments.claims import Claim, claims
from clocs.experiments.comparisons import (
    FAMILY,
    above_untrained,
    apart,
    compare_cells,
    contests,
    splits_ahead,
    surviving,
    surviving_markdown,
)
from clocs.experiments.grid import (
    BEST_FORMS,
    Cell,
    Pretraining,
    at_best,
    forms,
    grid,
    on_split,
    only,
    run_name,
)
from clocs.experiments.ledger import Draws, Ledger, Run
from clocs.experiments.report import report
from clocs.experiments.results import Results, open_results, write_results
from clocs.experiments.runner import Runner

from .small import TINY, small_library

PATIENTS = np.random.default_rng(0).normal(size=2000)  # what every method shares in a draw


def draws(mean: float, name: str, noise: float = 0.002) -> Draws:
    """Of a method of this AUC: patients are hard for all, and each has some noise of its own."""
    own = np.random.default_rng(zlib.crc32(name.encode())).normal(size=2000)
    found: Draws = mean + 0.02 * PATIENTS + noise * own
    return found


def results_of(aucs: Mapping[Cell, float], without_draws: tuple[Cell, ...] = ()) -> Results:
    runs, kept = {}, {}
    for cell, mean in aucs.items():
        name = run_name(cell, 5)
        result: dict[str, Any] = {
            "auc": [mean] * 5,
            "auc_mean": mean,
            "auc_std": 0.0,
            "seeds": list(range(5)),
            "auc_validation": [mean] * 5,
        }
        runs[name] = Run(name, cell.task, {}, 5, "done", result, None, None, 1.0, {}, 1, None, None)
        if cell not in without_draws:
            kept[name] = draws(mean, name)
    return Results(runs, {}, draws=kept)


def at(method: str, dataset: str = "chapman", downstream: str | None = None) -> Cell:
    task: Any = "finetune" if downstream else "linear"
    return Cell(Pretraining(method, dataset), downstream or dataset, task)


TRANSFER = [
    replace(at("random", "cardiology", "cardiology"), task="finetune"),
    *(at(m, "chapman", "cardiology") for m in ("random-bn", "cmsc", "simclr", "mtssl")),
]


def test_a_difference_that_patients_share_is_found_and_noise_is_not() -> None:
    a, b, c = (at(m, "chapman", "cardiology") for m in ("cmsc", "simclr", "byol"))
    results = results_of({a: 0.80, b: 0.78, c: 0.8001})
    found = compare_cells(results, a, b)
    assert found is not None
    assert (found.verdict, found.seeds, found.splits) == ("above", 5, 1)
    assert found.ci95[0] > 0.01
    equal = compare_cells(results, a, c)
    assert equal is not None and equal.verdict == "not distinguishable"
    assert compare_cells(results_of({a: 0.8, b: 0.7}, without_draws=(b,)), a, b) is None
    lacking = {run_name(a, 5): np.full(2000, np.nan)}
    nothing = replace(results, draws={**results.draws, **lacking})
    assert compare_cells(nothing, a, b) is None


def test_fine_tuned_cells_get_their_mark_from_a_test() -> None:
    """The cross says that a test was made and that it did not find the method above."""
    random, random_bn, cmsc, simclr, mtssl = TRANSFER
    means = {random: 0.70, random_bn: 0.74, cmsc: 0.78, simclr: 0.7401, mtssl: 0.72}
    results = results_of(means)
    assert above_untrained(results, [cmsc]) == {cmsc: True}
    assert above_untrained(results, [simclr]) == {simclr: False}
    assert above_untrained(results, [random, random_bn]) == {}
    table = tables.score_table(results, "finetune", title="", cells=set(grid("table-2")))
    text = table.markdown()
    assert "0.740 ± 0.000†" in text
    assert "0.720 ± 0.000†" in text and "0.780 ± 0.000†" not in text
    assert table.untested == 0


def test_results_without_draws_have_no_mark_and_count_as_not_tested() -> None:
    random, random_bn, cmsc, simclr, _ = TRANSFER
    means = {random: 0.70, random_bn: 0.74, cmsc: 0.78, simclr: 0.70}
    results = results_of(means, without_draws=(simclr,))
    table = tables.score_table(results, "finetune", title="", cells=set(grid("table-2")))
    assert "†" not in table.markdown()
    assert table.untested == 1
    for absent in (random, random_bn):  # the other one is the rival then
        fewer = results_of(means, without_draws=(absent,))
        assert above_untrained(fewer, [cmsc]) == {cmsc: True}


def test_splits_are_means_and_vary_together_for_both_sides() -> None:
    a, b = at("cmsc", "chapman", "cardiology"), at("simclr", "chapman", "cardiology")
    means = {on_split(a, s) if s else a: 0.80 + 0.02 * (-1) ** s for s in range(5)}
    means |= {on_split(b, s) if s else b: 0.78 + 0.02 * (-1) ** s for s in range(5)}
    found = compare_cells(results_of(means), a, b)
    assert found is not None
    assert (found.splits, found.seeds, found.verdict) == (5, 5, "above")
    assert found.difference == pytest.approx(0.02)
    results = results_of({cell: mean for cell, mean in means.items() if cell != on_split(b, 3)})
    fewer = compare_cells(results, a, b)
    assert fewer is not None and fewer.splits == 4


def test_splits_of_fewer_seeds_are_counted_but_not_tested() -> None:
    a, b = at("cmsc", "chapman", "cardiology"), at("simclr", "chapman", "cardiology")
    means = {on_split(a, s) if s else a: 0.80 for s in range(5)}
    means |= {on_split(b, s) if s else b: 0.81 if s == 4 else 0.78 for s in range(5)}
    results = results_of(means)
    for name, run in results.runs.items():
        assert run.result is not None
        if "split4" in name or "split3" in name:
            run.result["auc"] = run.result["auc"][:3]
            run.result["seeds"] = [0, 1, 2]
    tested = compare_cells(results, a, b)
    assert tested is not None and tested.splits == 3
    assert splits_ahead(results, a, b) == (4, 5)


def test_a_table_over_splits_has_intervals_and_marks() -> None:
    quality = {"random": 0.70, "random-bn": 0.71, "cmsc": 0.78, "simclr": 0.705}
    cells = [c for c in TRANSFER if c.pretraining.method in quality]
    means = {
        on_split(c, s) if s else c: quality[c.pretraining.method] for c in cells for s in range(5)
    }
    text = tables.split_table(results_of(means), "finetune").markdown()
    assert "0.705 ± 0.000† [0." in text
    assert "0.780 ± 0.000** [0." in text


def test_scores_of_the_rule_that_left_out_copies_are_marked_in_every_table() -> None:
    cells = [c for c in TRANSFER if c.pretraining.method in ("random", "cmsc")]
    results = results_of({on_split(c, s) if s else c: 0.7 for c in cells for s in range(5)})
    for name, run in results.runs.items():
        assert run.result is not None
        run.result["left_out_copies"] = 3
        run.result["copies_together"] = not ("split2" in name and "cmsc" in name)
    cmsc = cells[1]
    assert tables.entry_of(results, cmsc, "auc").left_out == 0
    assert tables.entry_of(results, on_split(cmsc, 2), "auc").left_out == 3
    rows = dict(tables.split_table(results, "finetune").rows)
    assert [entry.left_out for entry in rows["CMSC"] if entry and entry.ours] == [3]
    assert {entry.left_out for entry in rows["Random init."] if entry and entry.ours} == {0}


def test_a_table_is_over_the_splits_that_all_have() -> None:
    cells = [c for c in TRANSFER if c.pretraining.method in ("random", "cmsc")]
    means = {on_split(c, s) if s else c: 0.7 + 0.01 * s for c in cells for s in range(5)}
    del means[on_split(cells[0], 4)]
    table = tables.split_table(results_of(means), "finetune")
    assert table.title == "Over 4 patient splits: mean ± sd over splits"
    known = [entry.ours.mean for entry in table.entries if entry.ours is not None]
    assert known and known == pytest.approx([0.715] * len(known))
    first = tables.split_table(results_of(dict.fromkeys(cells, 0.7)), "finetune")
    assert not first.filled  # one split has no spread


def test_a_method_that_wins_on_some_splits_and_loses_on_others_is_not_above() -> None:
    a, b = at("cmsc", "chapman", "cardiology"), at("simclr", "chapman", "cardiology")
    wins = (0.05, -0.03, 0.05, -0.03, 0.02)
    means = {on_split(b, s) if s else b: 0.78 for s in range(5)}
    means |= {on_split(a, s) if s else a: 0.78 + wins[s] for s in range(5)}
    found = compare_cells(results_of(means), a, b)
    assert found is not None and found.verdict == "not distinguishable"
    alone = compare_cells(results_of({a: 0.83, b: 0.78}), a, b)
    assert alone is not None and alone.verdict == "above"


def table_2() -> dict[Cell, float]:
    quality = {"cmsc": 0.80, "cmlc": 0.70, "cmsmlc": 0.79, "byol": 0.75, "simclr": 0.78}
    quality |= {"mtssl": 0.85, "random": 0.60, "random-bn": 0.65}
    cells = [cell for cell in grid("table-2") if not cell.split_seed]
    cells += [at_best(cell) for cell in cells]
    return {cell: quality.get(cell.pretraining.method, 0.5) for cell in cells}


def test_every_column_is_compared_and_the_primary_family_is_corrected_as_one() -> None:
    made = contests(results_of(table_2()))
    against = [one for one in made if (one.method, one.rival) == (FAMILY, "MT-SSL")]
    assert len(against) == 6
    assert {one.comparison.verdict for one in against} == {"below"}
    assert {one.comparison.a.split("-")[3] for one in against} == {"cmsc"}
    p = sorted(one.comparison.p for one in against)
    primary = [one for one in made if one.primary]
    assert len(primary) == 4 * 6 and {one.method for one in primary} == {FAMILY}
    assert min(one.comparison.p_holm for one in against) == pytest.approx(4 * 6 * p[0])
    cmsc = [one for one in made if (one.method, one.rival) == ("CMSC", "MT-SSL")]
    least = min(one.comparison.p for one in cmsc)
    assert min(one.comparison.p_holm for one in cmsc) == pytest.approx(6 * least)
    heads, best, *_ = surviving(made)[1]
    assert best[0] == "Best of CMSC, CMLC and CMSMLC, chosen on validation patients"
    assert best[heads.index("MT-SSL")] == "below in 6 of 6"
    assert best[heads.index("stronger untrained")] == "above in 6 of 6"
    assert "| below in 6 of 6 |" in surviving_markdown(made)


def test_the_best_of_the_family_is_not_claimed_without_validation_scores() -> None:
    results = results_of(table_2())
    for run in results.runs.values():
        assert run.result is not None
        del run.result["auc_validation"]
    assert FAMILY not in {one.method for one in contests(results)}


def test_the_primary_family_is_at_its_best_and_the_rest_as_in_the_paper() -> None:
    means = table_2()
    for cell in grid("forms"):
        if cell.pretraining.method == "byol" and cell.task == "finetune":
            means[cell] = 0.81
    made = [one for one in contests(results_of(means)) if one.rival == "BYOL"]
    for one in made:
        dataset = one.column[1]
        expected = forms("byol", dataset)[BEST_FORMS[dataset]["byol"] if one.primary else 0]
        assert one.comparison.b == expected.name
    assert {one.comparison.verdict for one in made if one.primary} == {"below"}


def test_where_nothing_has_draws_the_report_says_so() -> None:
    results = results_of(table_2(), without_draws=tuple(table_2()))
    nothing = "No differences were tested: these results have no draws of the bootstrap."
    assert surviving_markdown(contests(results)) == nothing


def test_claims_hold_by_test_and_not_by_sign() -> None:
    def above_byol(results: Results) -> Claim:
        found = [c for c in claims(results) if "CMSC or CMSMLC is above BYOL" in c.about]
        return found[0]

    own = above_byol(results_of(table_2()))
    assert (own.ours, own.tested) == ("12 of 12", "12 above, 0 below of 12")
    assert own.exchangeable == "8 of 12"  # the better of two is above a third in two of three
    assert own.verdict == "holds"
    untested = above_byol(results_of(table_2(), without_draws=tuple(table_2())))
    assert (untested.ours, untested.tested) == ("12 of 12", "0 above, 0 below of 0")
    assert untested.verdict == "undecided"


def test_a_claim_does_not_hold_where_too_many_comparisons_are_below() -> None:
    turned = {cell: 1.3 - auc for cell, auc in table_2().items()}
    (own,) = [c for c in claims(results_of(turned)) if "CMSC or CMSMLC is above BYOL" in c.about]
    assert own.tested.startswith("0 above, 12 below")
    assert own.verdict == "does not hold"


def test_results_without_draws_are_told_apart_by_their_intervals() -> None:
    near, far = (0.70, 0.68, 0.72), (0.62, 0.60, 0.64)
    one = apart(near, far)
    assert one.verdict == "above" and apart(far, near).verdict == "below"
    assert one.ci95[0] == pytest.approx(0.08 - 0.02 * 2**0.5)
    mean = 0.02 * 2**0.5
    edge = apart((mean, mean - 0.02, 1.0), (0.0, -1.0, 0.02))
    assert edge.p == pytest.approx(0.05)  # as the interval of the difference ends at zero
    assert edge.ci95[0] == pytest.approx(0, abs=1e-12)


def test_draws_travel_with_the_results_from_the_runs_to_a_report_and_back(tmp_path: Path) -> None:
    """Linear and fine-tuned alike: run, report, read again, merge."""
    profile = replace(TINY, resamples=200, seeds=2)
    cells = [
        *only(grid("table-1"), ["method=random,cmsc", "downstream=chapman"]),
        Cell(Pretraining("cmsc", "chapman"), "cardiology", "finetune"),
    ]
    with closing(Ledger(tmp_path / "runs")) as ledger:
        Runner(ledger, small_library("chapman", "cardiology", patients=60), profile).work(cells)
        names = {run_name(cell, 2) for cell in cells}
        assert set(ledger.draws()) == names
    results = open_results(tmp_path / "runs")
    for cell in cells:
        result, run = results.result(cell), run_name(cell, 2)
        assert result is not None and "draws" not in result
        low, high = np.nanquantile(results.draws[run], [0.025, 0.975]).clip(0, 1)
        assert result["ci95"] == pytest.approx([low, high], abs=5e-4)
        assert len(results.draws[run]) == 200
    report(tmp_path / "runs", tmp_path / "out")
    again = open_results(tmp_path / "out", tmp_path / "runs")
    assert again.draws.keys() == names
    rows = json.loads((tmp_path / "out" / "comparisons.json").read_text(encoding="utf-8"))
    assert {row["rival"] for row in rows} == {"stronger untrained"}
    (tmp_path / "again").mkdir()
    write_results(again, tmp_path / "again")
    kept = [tmp_path / name / "draws.safetensors" for name in ("out", "again")]
    assert kept[0].read_bytes() == kept[1].read_bytes()

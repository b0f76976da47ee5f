"""The factorial's effects, from results that are made of known effects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clocs.experiments.comparisons import FAMILY, Contest, contests, verdicts_markdown
from clocs.experiments.duel import (
    Effect,
    drawn_in,
    effects,
    factorial_tables,
    forms_tables,
)
from clocs.experiments.grid import FORMS, Cell, factor_cell, forms, grid, run_name
from clocs.experiments.ledger import Run
from clocs.experiments.report_figures import factorial
from clocs.experiments.results import Results

from .test_comparisons import results_of, table_2

DRAWS = 2000
LEAST = 2 / 50_001  # the least p of so many draws
ALTERNATING = np.where(np.arange(DRAWS) % 2, 1.0, -1.0)
SHARED = np.random.default_rng(0).normal(scale=0.02, size=DRAWS)  # what all cells have in common


def made(*, without: Cell | None = None) -> Results:
    """Two segments add 0.04 and random leads 0.01, to BYOL 0.04; positives add noise alone."""
    runs, draws = {}, {}
    for cell in grid("factorial"):
        loss, chosen = cell.pretraining.method, (cell.pretraining.variant or "").split("-")[1:]
        leads = 0.04 if loss == "byol" else 0.01
        mean = 0.7 + 0.04 * ("segments" in chosen) + leads * ("leads" in chosen)
        mean -= 0.05 * (loss == "byol")
        name = run_name(cell, 5)
        result: dict[str, Any] = {"auc": [mean] * 5, "auc_mean": mean, "auc_std": 0.0}
        runs[name] = Run(name, cell.task, {}, 5, "done", result, None, None, 1.0, {}, 1, None, None)
        if cell != without:
            draws[name] = mean + SHARED + 0.006 * ALTERNATING * ("patient" in chosen)
    return Results(runs, {}, draws=draws)


def by_title(found: list[Effect], dataset: str = "chapman") -> dict[str, Effect]:
    return {one.title: one for one in found if one.dataset == dataset}


def test_the_effect_of_a_factor_is_the_mean_difference_of_cells_that_differ_in_it_alone() -> None:
    found = effects(drawn_in(made()))
    assert len(found) == 2 * (3 * 4 + 3)
    own = by_title(found)
    expected = {
        "random leads": 0.02,  # (0.01 + 0.01 + 0.04) / 3
        "random leads, CLOCS": 0.01,
        "random leads, BYOL": 0.04,
        "two segments": 0.04,
        "two segments, SimCLR": 0.04,
        "loss of CLOCS, not SimCLR": 0.0,
        "loss of CLOCS, not BYOL": 0.035,  # 0.05, less the 0.03 that leads add to half of them
        "loss of SimCLR, not BYOL": 0.035,
    }
    for title, difference in expected.items():
        assert own[title].comparison.difference == pytest.approx(difference, abs=1e-12), title
        assert own[title].comparison.ci95 == pytest.approx([difference] * 2, abs=1e-12), title


def test_an_effect_that_draws_disagree_about_is_not_told() -> None:
    one = by_title(effects(drawn_in(made())))["same-patient positives"].comparison
    assert one.difference == pytest.approx(0, abs=1e-12)
    assert one.ci95 == pytest.approx([-0.006, 0.006])
    assert (one.p, one.p_holm, one.verdict) == (1, 1, "not distinguishable")


def test_main_effects_of_both_datasets_are_corrected_together_and_those_of_one_loss_are_not() -> (
    None
):
    found = effects(drawn_in(made()))
    main = [one for one in found if one.main]
    assert len(main) == 12 and {one.title for one in main if ", " in one.title} == {
        "loss of CLOCS, not SimCLR", "loss of CLOCS, not BYOL", "loss of SimCLR, not BYOL",
    }  # fmt: skip
    own = by_title(found, "physionet2020")
    assert own["two segments"].comparison.p == pytest.approx(LEAST)
    assert own["two segments"].comparison.p_holm == pytest.approx(12 * LEAST)
    assert own["two segments, BYOL"].comparison.p_holm == pytest.approx(LEAST)


def test_an_effect_needs_the_draws_of_all_its_cells() -> None:
    found = effects(drawn_in(made(without=factor_cell("byol", "chapman", ("leads",)))))
    titles = by_title(found).keys()
    assert "random leads, CLOCS" in titles and "loss of CLOCS, not SimCLR" in titles
    assert not {"random leads", "random leads, BYOL", "loss of CLOCS, not BYOL"} & titles
    assert "random leads" in by_title(found, "physionet2020")


def test_the_tables_and_the_forest_plot_show_every_combination_and_effect() -> None:
    results, cells = made(), grid("factorial")
    combinations, differences = factorial_tables(results, cells)
    assert [len(row) for _, row in combinations.rows] == [6] * 8
    assert "| two segments | 0.040 [0.040, 0.040] | 0.000 |" in differences.markdown()
    figure = factorial(results, cells)
    assert figure is not None
    assert len(figure.axes) == 2 and len(figure.axes[0].get_yticks()) == 15
    assert factorial(Results({}, {}), cells) is None


def test_every_form_has_its_auc_on_validation_and_test_patients() -> None:
    cell = Cell(forms("simclr", "chapman")[3], "chapman", "linear")
    name = run_name(cell, 2)
    result = {"auc": [0.7, 0.7], "auc_validation": [0.8, 0.8]}
    runs = {name: Run(name, cell.task, {}, 2, "done", result, None, None, 1.0, {}, 1, None, None)}
    chapman, other = forms_tables(Results(runs, {}), [])
    assert len(chapman.rows) == len(other.rows) == 8 * len(FORMS)
    row = "| SimCLR: stretch → gaussian(sigma=0.03) | 0.800 ± 0.000 | 0.700 ± 0.000 |"
    assert row in chapman.markdown() and row not in other.markdown()


def of_family(rival: str) -> list[Contest]:
    made = contests(results_of(table_2()))
    return [one for one in made if (one.method, one.rival) == (FAMILY, rival)]


def test_verdicts_name_columns_differences_and_splits() -> None:
    lines = verdicts_markdown([*of_family("MT-SSL"), *of_family("SimCLR")]).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["- **MT-SSL**", "- **SimCLR**"]
    assert lines[0].startswith(
        "- **MT-SSL**: below in 6 of 6: Chapman → Cardiology (−0.050, 0 of 1 split), "
    )
    assert lines[1].startswith(
        "- **SimCLR**: above in 6 of 6: Chapman → Cardiology (+0.020, 1 of 1 split), "
    )
    assert all(line.endswith(").") and line.count(" split)") == 6 for line in lines)

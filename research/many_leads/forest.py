"""One figure of what pre-training adds: paired differences in AUROC, by dataset and method."""

from __future__ import annotations

from matplotlib.figure import Figure

from clocs.experiments.duel import effects
from clocs.experiments.paper import DATASET_TITLES
from clocs.experiments.report_figures import effects_forest
from clocs.figures.canvas import new_figure
from research.many_leads.items import DATASETS, METHODS, SCRATCH, SHARES, WINNER
from research.many_leads.results import UNTRAINED, StudyResults, drawn_in
from research.many_leads.tables import TITLES, differences_of

_COLORS = ("#0072b2", "#d55e00", "#009e73")  # by the share of labeled patients
_PANELS = {
    "linear": (UNTRAINED, "linear layer, against the untrained encoder"),
    "finetune": (SCRATCH, "fine-tuned, against training from scratch"),
}


def figures(results: StudyResults) -> dict[str, Figure]:
    """By file name."""
    factors = effects_forest(effects(drawn_in(results)))
    made = {"many-leads.png": forest(results)}
    return made if factors is None else made | {"many-leads-factorial.png": factors}


def forest(results: StudyResults) -> Figure:
    """One row per dataset and method, one mark per share of labels, with 95 % intervals."""
    methods = [WINNER, *(one for one in METHODS if one not in (WINNER, UNTRAINED))]
    rows = [(dataset, method) for dataset in DATASETS for method in methods]
    figure = new_figure(9.0, 1.2 + 0.27 * len(rows))
    panels = figure.subplots(1, len(_PANELS), sharey=True, sharex=True)
    for axes, (protocol, (rival, title)) in zip(panels, _PANELS.items(), strict=True):
        for place, (dataset, method) in enumerate(rows):
            if method == methods[0] and place:
                axes.axhline(place - 0.5, color="#cccccc", linewidth=0.8)
            for row in differences_of(results, method, rival, protocol):
                if row["dataset"] != dataset or row["ci95"] is None:
                    continue
                at = SHARES.index(row["share"])
                low, high = row["ci95"]
                mean, level = row["difference"], place + 0.24 * (at - 1)
                sure = low > 0 or high < 0
                axes.plot([low, high], [level, level], color=_COLORS[at], linewidth=1.2)
                axes.plot(
                    mean, level, "o", color=_COLORS[at], markersize=4,
                    markerfacecolor=_COLORS[at] if sure else "white",
                )  # fmt: skip
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("difference in AUROC")
    panels[0].set_yticks(
        range(len(rows)), [f"{DATASET_TITLES[one]}  {TITLES[method]}" for one, method in rows]
    )
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    for share, color in zip(SHARES, _COLORS, strict=True):
        panels[1].plot([], [], "o-", color=color, label=f"{100 * share:g} % labeled")
    figure.legend(loc="outside upper center", ncols=len(SHARES), frameon=False, fontsize=9)
    return figure

"""Tables and the figure of the experiments that the paper does not have, for the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clocs.experiments import additions, paper
from clocs.experiments.cells import Cell, CellTask, Pretraining, encoder_for
from clocs.experiments.report_figures import WIDTH, ReportFigure
from clocs.experiments.results import Results, Value, value_of
from clocs.experiments.tables import Table, TableEntry, looked_up, score_table, split_table
from clocs.figures.label_efficiency import (
    EfficiencyLine,
    EfficiencyPanel,
    label_efficiency,
    label_efficiency_svg,
)
from clocs.files import PUBLIC

IMAGE = "label-efficiency.png"
_PROTOCOLS: dict[CellTask, str] = {"linear-converged": "linear", "finetune": "fine-tuned"}
_METRICS = {"auc_recording": "AUC per recording", "ap_recording": "average precision per recording"}


TITLES = {
    "table-1-splits": "Table 1 over five patient splits",
    "table-2-splits": "Table 2 over five patient splits",
    "byol-fixed": "BYOL with a fixed schedule",
    "label-efficiency": "Label efficiency",
    "ablations": "Ablations of CMSC",
    "table-1-12": "Table 1 with twelve leads",
    "table-2-12": "Table 2 with twelve leads",
}


@dataclass(frozen=True)
class Content:
    """What a section shows; `folded` on request."""

    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()
    figure: ReportFigure | None = None


def content(results: Results, name: str, cells: Sequence[Cell]) -> Content:
    """The tables and the figure of one of `TITLES`."""
    task: CellTask = "linear" if name.startswith("table-1") else "finetune"
    match name:
        case "table-1-splits" | "table-2-splits":
            return Content([split_table(results, task)])
        case "table-1-12" | "table-2-12":
            title = "E = 128, F = 0.5, twelve leads"
            return Content([score_table(results, task, title=title, cells=set(cells), leads=12)])
        case "byol-fixed":
            return Content(schedule_tables(results))
        case "ablations":
            return Content([ablation_table(results, cells)])
        case _:
            return Content((), efficiency_tables(results), efficiency_figure(results))


def schedule_tables(results: Results) -> list[Table]:
    """BYOL after each number of epochs: validation and test AUC, and transfers."""
    schedules: list[int | None] = [None, *additions.SCHEDULES]
    chosen = {d: additions.chosen_schedule(results, d) for d in paper.PRETRAIN}

    def label(epochs: int | None) -> str:
        if epochs is None:
            return "early stopping, as in the paper"
        places = [paper.DATASET_TITLES[d] for d, own in chosen.items() if own == epochs]
        return f"{epochs} epochs" + (f" (chosen on {' and '.join(places)})" if places else "")

    linear = []
    for epochs in schedules:
        row: list[TableEntry | None] = []
        for dataset in paper.PRETRAIN:
            cell = Cell(Pretraining("byol", dataset, epochs=epochs), dataset, "linear")
            row += [_entry(results, cell, name) for name in ("auc_validation", "auc")]
        linear.append((label(epochs), tuple(row)))
    columns = [
        f"{paper.DATASET_TITLES[d]}, {part}"
        for d in paper.PRETRAIN
        for part in ("validation", "test")
    ]
    transfers = [
        (
            label(epochs),
            tuple(
                _entry(results, Cell(Pretraining("byol", p, epochs=epochs), d, "finetune"), "auc")
                for p, d in paper.PAIRS
            ),
        )
        for epochs in schedules
    ]
    to = [f"{paper.DATASET_TITLES[p]} → {paper.DATASET_TITLES[d]}" for p, d in paper.PAIRS]
    return [
        Table("Linear, F = 0.5: validation and test AUC", (), tuple(columns), tuple(linear)),
        Table("Fine-tuned, F = 0.5: test AUC", (), tuple(to), tuple(transfers)),
    ]


def ablation_table(results: Results, cells: Sequence[Cell]) -> Table:
    """CMSC with one thing changed at a time."""
    rows: list[tuple[str, list[Cell | None]]] = [
        (
            title,
            [Cell(Pretraining("cmsc", d, variant=variant), d, "linear") for d in paper.PRETRAIN],
        )
        for title, variant in additions.ABLATIONS.items()
    ]
    five = [Cell(Pretraining("cmsc", d), d, "linear", segment_frame=True) for d in paper.PRETRAIN]
    rows.append((additions.FIVE_SECONDS, list(five)))
    columns = [paper.DATASET_TITLES[d] for d in paper.PRETRAIN]
    title = "CMSC, linear, E = 128, F = 0.5, four leads: one thing changed at a time"
    return looked_up(results, title, [], columns, rows, set(cells))


def efficiency_tables(results: Results) -> list[Table]:
    """Methods by number of labeled patients, for each pair of datasets, protocol and metric."""
    own = [(dataset, dataset) for dataset in paper.PRETRAIN]
    found = []
    for dataset, downstream in dict.fromkeys((*additions.SHOWN, *paper.PAIRS, *own)):
        counts = additions.labeled_patients(downstream)
        columns = tuple("all" if count is None else f"{count:,}" for count in counts)
        for task, protocol in _PROTOCOLS.items():
            for metric, what in _METRICS.items():
                rows = []
                for method, label in paper.METHOD_TITLES.items():
                    cells = [_at(method, dataset, downstream, task, count) for count in counts]
                    entries = [_entry(results, cell, metric) for cell in cells]
                    if any(entry.ours for entry in entries):
                        rows.append((label, tuple(entries)))
                if rows:
                    where = f"{paper.DATASET_TITLES[dataset]} → {paper.DATASET_TITLES[downstream]}"
                    title = f"{where}, {protocol}: {what} over labeled patients"
                    found.append(Table(title, (), columns, tuple(rows)))
    return found


def efficiency_figure(results: Results) -> ReportFigure | None:
    """AUC per recording over labeled patients."""
    panels = efficiency_panels(results)
    if not panels:
        return None
    methods = dict.fromkeys((li.method, li.title) for panel in panels for li in panel.lines)
    caption = (
        "Test AUC per recording over the number of labeled training patients (logarithmic), mean "
        "± sd over seeds. Each seed draws its own patients; a smaller set is part of the larger. "
        "Above: logistic regression on the frozen encoder; below: fine-tuned, in batches of 16 "
        f"up to {additions.FEW_LABELS} patients. Encoders are pre-trained on Chapman, or on "
        "PhysioNet 2020 where Chapman is scored. All validation patients are labeled: they "
        "select the penalty and stop the training."
    )
    return ReportFigure(
        label_efficiency_svg(panels, WIDTH, "AUC over the number of labeled patients"),
        caption,
        tuple((title, f"var(--{method})", False) for method, title in methods),
    )


def efficiency_image(results: Results, path: Path) -> None:
    """The same figure as PNG, where there are results."""
    panels = efficiency_panels(results)
    if panels:
        from clocs.figures.canvas import save

        save(label_efficiency(panels, "test AUC per recording"), path, mode=PUBLIC)


def efficiency_panels(results: Results) -> list[EfficiencyPanel]:
    """One for each dataset and protocol that has results."""
    panels = []
    for row, (task, protocol) in enumerate(_PROTOCOLS.items()):
        for column, (dataset, downstream) in enumerate(additions.SHOWN):
            lines = []
            for method, title in paper.METHOD_TITLES.items():
                known = []
                for count in additions.labeled_patients(downstream):
                    value = _value(results, _at(method, dataset, downstream, task, count))
                    if value is not None:
                        known.append((count or _all_patients(results, downstream), value))
                if known:
                    counts, values = zip(*known, strict=True)
                    means, sds = ([v.mean for v in values], [v.std or 0.0 for v in values])
                    lines.append(EfficiencyLine(method, title, counts, means, sds))
            if lines:
                title = f"{paper.DATASET_TITLES[downstream]}, {protocol}"
                panels.append(EfficiencyPanel(title, row, column, lines))
    return panels


def _at(method: str, dataset: str, downstream: str, task: CellTask, patients: int | None) -> Cell:
    encoder = encoder_for(method, dataset, downstream)
    return Cell(encoder, downstream, task, 1.0, patients=patients)


def _all_patients(results: Results, dataset: str) -> int:
    counts: dict[str, Any] = results.facts.get(f"counts of {dataset}") or {}
    return int(counts["patients_by_part"][0])


def _value(results: Results, cell: Cell, metric: str = "auc_recording") -> Value | None:
    found = [x for x in (results.result(cell) or {}).get(metric) or () if x is not None]
    return value_of(found) if found else None


def _entry(results: Results, cell: Cell, metric: str) -> TableEntry:
    value = _value(results, cell, metric)
    return TableEntry(ours=value, why_not="" if value else results.why_not(cell))

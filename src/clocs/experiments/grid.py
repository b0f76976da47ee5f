"""The grid: which encoders to train and where to score them, for every table and figure.

The tables' cells come from the paper's numbers, one for one; the figures' settings, which the paper
gives in its text, are the short lists below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from clocs.errors import SettingError
from clocs.experiments import additions, paper
from clocs.experiments.cells import Cell, CellTask, Pretraining
from clocs.experiments.paper import Printed

__all__ = ["Cell", "CellTask", "Pretraining", "cell_of", "cells_of", "grid", "only"]

# what figure 3 compares: five alone, and four after Gaussian noise
SINGLE = ("gaussian", "flip_y", "flip_x", "sa_t", "sa_f")
CHAINS = (*SINGLE, *(f"gaussian>{name}" for name in SINGLE[1:]))
CURVE_EPOCHS = 100  # of more-with-less: a fixed number, without early stopping


def cell_of(row: Printed) -> Cell:
    """The cell whose run gives our number for a printed one."""
    tau_d = None if row.tau_d == paper.TAU_D else row.tau_d
    dataset = row.pretrain or row.downstream
    encoder = Pretraining(row.method, dataset, row.leads, row.embedding_dim, tau_d)
    task: CellTask = "linear" if row.scenario == "linear" else "finetune"
    return Cell(encoder, row.downstream, task, row.fraction)


@lru_cache(maxsize=1)
def paper_values() -> dict[Cell, Printed]:
    """What the paper prints for each cell; where two tables contain it, they agree."""
    return {cell_of(row): row for row in paper.printed()}


def _of_tables(*prefixes: str) -> list[Cell]:
    return [cell_of(row) for row in paper.printed() if row.table.startswith(prefixes)]


def _with_untrained(cells: list[Cell]) -> list[Cell]:
    """These and the random encoders to compare them with: a fair table always has both."""
    found = list(cells)
    for cell in cells:
        p = cell.pretraining
        for method, dataset in (("random", cell.downstream), ("random-bn", p.dataset)):
            if p.method == "random" and method != "random":
                continue
            shape = Pretraining(method, dataset, p.leads, p.embedding_dim)
            found.append(replace(cell, pretraining=shape))
    return found


def _table_1(leads: int = 4) -> list[Cell]:
    if leads == 4:
        return _with_untrained(_of_tables("linear_evaluation_main"))
    return _with_untrained(_as_in_table(leads, "test_auc_linear_"))


def _table_2(leads: int = 4) -> list[Cell]:
    if leads != 4:
        return _with_untrained(_as_in_table(leads, "test_auc_finetuning_"))
    cells = _with_untrained(_of_tables("transfer_evaluation_main"))
    cardiology = [cell for cell in cells if cell.downstream == "cardiology"]
    return cells + additions.on_other_splits(cardiology)


def _as_in_table(leads: int, *appendix: str) -> list[Cell]:
    """Tables 1 and 2 in another number of leads: from the appendix, at their E and F."""
    return [
        cell
        for cell in _of_tables(*appendix)
        if cell.pretraining.embedding_dim == 128
        and cell.fraction == 0.5
        and (cell.pretraining.leads == leads or cell.pretraining.dataset in paper.SINGLE_LEAD)
    ]


def perturbed(method: str, chain: str | None) -> Cell:
    """One of figure 3; SimCLR's own perturbation is Gaussian, so that run is table 1's."""
    own = method == "simclr" and chain == "gaussian"
    encoder = Pretraining(method, "physionet2020", perturb=None if own else chain)
    return Cell(encoder, "physionet2020", "linear")


def _perturbations() -> list[Cell]:
    every = [perturbed(method, chain) for method in ("simclr", "cmsc") for chain in CHAINS]
    return [perturbed("cmsc", None), *every]


TRANSFERS = (("physionet2020", "cardiology"), ("chapman", "physionet2017"))
FEW = (0.25, 0.5, 0.75)


def _more_with_less() -> list[Cell]:
    found = []
    for dataset, downstream in TRANSFERS:
        for fraction in FEW:
            found.append(Cell(Pretraining("cmsc", dataset), downstream, "curve", fraction))
        found.append(Cell(Pretraining("random", downstream), downstream, "curve", 1.0))
    return found


def _of_figure(*, embedding_dim: int | None = None, fraction: float | None = None) -> list[Cell]:
    """Chapman → Cardiology, all methods, over the setting that is not given."""
    return [
        cell
        for cell in _of_tables("test_auc_finetuning_E_")
        if cell.downstream == "cardiology"
        and (cell.pretraining.dataset == "chapman" or cell.pretraining.method == "random")
        and embedding_dim in (None, cell.pretraining.embedding_dim)
        and fraction in (None, cell.fraction)
    ]


def _patient_distances() -> list[Cell]:
    encoders = [Pretraining("simclr", "physionet2020")] + [
        Pretraining("cmsc", "physionet2020", embedding_dim=e) for e in (128, 32, 64, 256)
    ]
    return [Cell(encoder, "physionet2020", "distances", 1.0) for encoder in encoders]


GRIDS: dict[str, Callable[[], list[Cell]]] = {
    "table-1": _table_1,
    "table-2": _table_2,
    "table-1-splits": lambda: additions.on_other_splits(_table_1()),
    "table-2-splits": lambda: additions.on_other_splits(_table_2()),
    "table-1-12": lambda: _table_1(12),
    "table-2-12": lambda: _table_2(12),
    "byol-fixed": additions.byol_fixed,
    "ablations": additions.ablations,
    "label-efficiency": additions.label_efficiency,
    "linear-converged": lambda: [replace(cell, task="linear-converged") for cell in _table_1()],
    "more-with-less": _more_with_less,
    "patient-distances": _patient_distances,
    "perturbations": _perturbations,
    "byol-decay": lambda: _of_tables("effect_of_tau"),
    "embedding-dim": lambda: _of_figure(fraction=0.25),
    "labelled-fraction": lambda: _of_figure(embedding_dim=64),
    "appendix-linear": lambda: _of_tables("test_auc_linear_"),
    "appendix-transfer": lambda: _of_tables("test_auc_finetuning_"),
}
ABOUT = {
    "table-1": "linear evaluation, E = 128, F = 0.5, four leads",
    "table-2": "transfer by fine-tuning, E = 128, F = 0.5, four leads",
    "table-1-splits": "table 1 on four more patient splits, the encoders trained on the same split",
    "table-2-splits": "table 2 on four more patient splits of the downstream dataset",
    "table-1-12": "linear evaluation, E = 128, F = 0.5, twelve leads",
    "table-2-12": "transfer by fine-tuning, E = 128, F = 0.5, twelve leads",
    "byol-fixed": "BYOL for a fixed number of epochs, chosen by linear AUC on validation patients",
    "ablations": "CMSC with one thing changed at a time, linear, E = 128, F = 0.5, four leads",
    "label-efficiency": "10, 30, 100, 300, 1,000 and all labeled patients, linear and fine-tuned",
    "linear-converged": "table 1 with the linear layer solved to convergence",
    "more-with-less": "validation AUC over epochs: CMSC with few labels, random with all labels",
    "patient-distances": "distances between embeddings within and between patients",
    "perturbations": "linear evaluation under nine perturbations",
    "byol-decay": "BYOL with τ_d = 0.5, 0.9 and 0.99",
    "embedding-dim": "Chapman → Cardiology at F = 0.25 over E",
    "labelled-fraction": "Chapman → Cardiology at E = 64 over F",
    "appendix-linear": "linear evaluation, 4 and 12 leads, E = 32 … 256, F = 0.25 … 1",
    "appendix-transfer": "fine-tuning, 4 and 12 leads, E = 32 … 256, F = 0.25 … 1",
}
NAMES = (*GRIDS, "all")


def grid(name: str) -> list[Cell]:
    """The cells of one table or figure, each once, in the order in which they should run."""
    if name not in NAMES:
        raise SettingError(f"there is no experiment {name!r}; choose one of {', '.join(NAMES)}")
    chosen = GRIDS if name == "all" else (name,)
    return list(dict.fromkeys(cell for one in chosen for cell in GRIDS[one]()))


def cells_of(names: Sequence[str], filters: Sequence[str] = ()) -> list[Cell]:
    """The cells of these tables and figures, each once, that pass the filters."""
    return only(dict.fromkeys(cell for name in names for cell in grid(name)), filters)


def only(cells: Iterable[Cell], filters: Sequence[str]) -> list[Cell]:
    """Those that pass every filter: 'cmsc', 'cardiology', or 'fraction=0.25,0.5'.

    A bare word is a method or a dataset (pre-trained on or scored on); comma-separated values are
    alternatives.
    """
    chosen = list(cells)
    for given in filters:
        key, _, values = given.partition("=") if "=" in given else ("", "", given)
        accepted = {value.strip() for value in values.split(",")}
        chosen = [cell for cell in chosen if accepted & _values(cell, key.strip())]
    if filters and not chosen:
        raise SettingError(
            f"no cell passes `only` {' '.join(filters)}; try a method (cmsc), a dataset "
            "(cardiology) or NAME=VALUE with method, pretrain, downstream, task, leads, e, "
            "fraction, split, patients, perturb, variant, epochs or tau"
        )
    return chosen


def _values(cell: Cell, key: str) -> set[str]:
    """What a filter on `key` accepts for this cell; without a key, a method or a dataset."""
    p = cell.pretraining
    values: dict[str, set[str]] = {
        "method": {p.method},
        "pretrain": {p.dataset},
        "downstream": {cell.downstream},
        "task": {cell.task},
        "leads": {str(p.leads)},
        "e": {str(p.embedding_dim)},
        "fraction": {f"{cell.fraction:g}", str(cell.fraction)},
        "split": {str(cell.split_seed)},
        "perturb": {p.perturb or "none"},
        "variant": {p.variant or "none"},
        "patients": {"all" if cell.patients is None else str(cell.patients)},
        "epochs": {"none" if p.epochs is None else str(p.epochs)},
        "tau": {"none" if p.tau_d is None else f"{p.tau_d:g}"},
    }
    if key and key not in values:
        raise SettingError(f"`only` accepts {', '.join(values)}, not {key!r}")
    return values[key] if key else values["method"] | values["pretrain"] | values["downstream"]

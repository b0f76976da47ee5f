"""The grid: which encoders to train and where to score them, for every table and figure.

The tables' cells come from the paper's numbers, one for one; the figures' settings, which the paper
gives in its text, are the short lists below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from clocs.errors import SettingError
from clocs.experiments import paper
from clocs.experiments.paper import Printed

CellTask = Literal["linear", "linear-converged", "finetune", "curve", "distances"]

# what figure 3 compares: five alone, and four after Gaussian noise
SINGLE = ("gaussian", "flip_y", "flip_x", "sa_t", "sa_f")
CHAINS = (*SINGLE, *(f"gaussian>{name}" for name in SINGLE[1:]))
CURVE_EPOCHS = 100  # of more-with-less: a fixed number, without early stopping
SPLIT_SEEDS = (1, 2, 3, 4)  # besides 0: 313 patients move by about 0.05 from split to split


@dataclass(frozen=True)
class Pretraining:
    """One encoder to train, all seeds at once."""

    method: str
    dataset: str  # its training data; for `random`, the dataset that sets its shape
    leads: int = 4
    embedding_dim: int = 128
    tau_d: float | None = None  # BYOL's decay rate; None for the default, and for other methods
    perturb: str | None = None  # a chain of perturbations that replaces the method's own

    def __post_init__(self) -> None:
        # untrained and given a single lead, 4 and 12 leads are one run (and the paper prints one
        # number for both)
        if self.method == "random" and self.dataset in paper.SINGLE_LEAD:
            object.__setattr__(self, "leads", 4)

    @property
    def name(self) -> str:
        """Stable, readable, and usable as a folder name."""
        parts = [self.dataset, f"{self.leads}leads", f"e{self.embedding_dim}", self.method]
        parts += [f"tau{self.tau_d:g}"] if self.tau_d is not None else []
        parts += [self.perturb.replace(">", "+")] if self.perturb else []
        return "-".join(parts)


@dataclass(frozen=True)
class Cell:
    """One number of the paper, or one of ours beside it: an encoder scored somewhere.

    Its task is a protocol of `clocs evaluate`, a `curve` over epochs of fine-tuning, or the
    `distances` between patients.
    """

    pretraining: Pretraining
    downstream: str
    task: CellTask
    fraction: float = 0.5
    split_seed: int = 0  # of the downstream patient split

    @property
    def job(self) -> str:
        """What can be trained together: cells of one job differ only in their encoders."""
        p = self.pretraining
        return (
            f"{self.task}-{self.downstream}-{p.leads}leads-e{p.embedding_dim}"
            f"-f{self.fraction:g}-split{self.split_seed}"
        )

    @property
    def name(self) -> str:
        return f"{self.job}/{self.pretraining.name}"


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


def _table_1() -> list[Cell]:
    return _with_untrained(_of_tables("linear_evaluation_main"))


def _table_2() -> list[Cell]:
    cells = _with_untrained(_of_tables("transfer_evaluation_main"))
    cardiology = [cell for cell in cells if cell.downstream == "cardiology"]
    return cells + [replace(cell, split_seed=s) for s in SPLIT_SEEDS for cell in cardiology]


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
            "fraction, split, perturb or tau"
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
        "tau": {"none" if p.tau_d is None else f"{p.tau_d:g}"},
    }
    if key and key not in values:
        raise SettingError(f"`only` accepts {', '.join(values)}, not {key!r}")
    return values[key] if key else values["method"] | values["pretrain"] | values["downstream"]

"""The grid: which encoders to train and where to score them, for every table and figure.

A cell is one encoder scored somewhere. The tables' cells come from the paper's numbers, one for
one; the figures' settings, which the paper gives in its text, are the short lists below, and so are
the experiments that the paper does not have: more patient splits, every method at its best,
ablations of CMSC, and label efficiency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, Literal

from clocs.errors import SettingError, suggestion
from clocs.experiments import paper
from clocs.experiments.paper import Printed
from clocs.frames.splits import ValidationLabels

CellTask = Literal["linear", "linear-converged", "finetune", "curve", "distances"]

# what figure 3 compares: five alone, and four after Gaussian noise
SINGLE = ("gaussian", "flip_y", "flip_x", "sa_t", "sa_f")
CHAINS = (*SINGLE, *(f"gaussian>{name}" for name in SINGLE[1:]))
CURVE_EPOCHS = 100  # of more-with-less: a fixed number, without early stopping
TRANSFERS = (("physionet2020", "cardiology"), ("chapman", "physionet2017"))  # of more-with-less
FEW = (0.25, 0.5, 0.75)
SPLIT_SEEDS = (1, 2, 3, 4)  # besides 0
# Pre-trainings that differ from the method's own in one thing: the title of a row, and fields of
# `clocs.pretraining.plan.Plan`.
_TOML = paper.read_toml("forms.toml")
VARIANTS: dict[str | None, tuple[str, dict[str, Any]]] = {
    None: ("CMSC", {}),
    **{name: (one["title"], one["plan"]) for name, one in _TOML["variants"].items()},
}
ABLATIONS = (None, "instance-pairs", "norm-per-view", "unnormalised", "segments3", "segments4")
FORMS: dict[str, list[dict[str, Any]]] = _TOML["forms"]
BEST_FORMS: dict[str, dict[str, int]] = _TOML["best_forms"]
# What a loss compares, one factor at a time: views of random leads, of two segments, and whose
# instances are positives. All have the same perturbations and about the same number of steps.
FACTORIAL, FACTORS = "factors", ("leads", "segments", "patient")
FACTORIAL_LOSSES = ("cmsc", "simclr", "byol")
FACTORIAL_CHAIN = "gaussian>sa_t"
FACTORIAL_EPOCHS = {False: 200, True: 400}  # of single segments, and of pairs, half as many
SHORT = ("chapman",)  # its recordings hold two segments, and its segments are shorter than frames
LABELED = (10, 30, 100, 300, 1000)  # patients; then all of them
MAX_LABELED = {"cardiology": 100}  # its training part has fewer than 300 patients
FEW_LABELS = 100  # up to here the rows are fewer than a batch, so that batches are smaller
LEARNERS = ("cmsc", "cmlc", "cmsmlc", "simclr", "byol", "mtssl", "supervised", "random-bn")
# panels of the figure of label efficiency: (pre-trained on, scored on)
SHOWN = (
    ("physionet2020", "chapman"),
    ("chapman", "physionet2020"),
    ("chapman", "physionet2017"),
    ("chapman", "cardiology"),
)
# logistic regression solved to convergence: with few rows, 400 epochs of Adam are too short
EFFICIENCY_TASKS: tuple[CellTask, ...] = ("linear-converged", "finetune")


@dataclass(frozen=True)
class Pretraining:
    """One encoder to train, all seeds at once.

    A setting at its default is not part of its name, so that results keep their names when settings
    are added.
    """

    method: str
    dataset: str  # its training data; for `random`, the dataset that sets its shape
    leads: int = 4
    embedding_dim: int = 128
    tau_d: float | None = None  # BYOL's decay rate; None for the default, and for other methods
    perturb: str | None = None  # a chain of perturbations that replaces the method's own
    split_seed: int = 0  # of the patient split
    epochs: int | None = None  # a fixed number, without early stopping; None for the paper's rule
    variant: str | None = None  # one of `VARIANTS`, or factors that a loss compares
    segment_frame: bool = False  # trained on frames as long as the segments that CMSC compares

    def __post_init__(self) -> None:
        if self.method == "random":
            # untrained and given a single lead, 4 and 12 leads are one run (and the paper prints
            # one number for both); and it has seen no split
            object.__setattr__(self, "split_seed", 0)
            if self.dataset in paper.SINGLE_LEAD:
                object.__setattr__(self, "leads", 4)

    @property
    def segments(self) -> int:
        """Consecutive segments that it compares, where the variant gives their number; else 1."""
        return int(self.plan.get("options", {}).get("segments", 1))

    @property
    def plan(self) -> dict[str, Any]:
        """What the variant changes in the plan of its training."""
        name, _, chosen = (self.variant or "").partition("-")
        if name != FACTORIAL:
            return VARIANTS[self.variant][1]
        positives = "patient" if "patient" in chosen else "instance"
        options = {"segments": 2 if "segments" in chosen else 1, "positives": positives}
        return {"options": options | ({"most_leads": 1} if "leads" in chosen else {})}

    @property
    def name(self) -> str:
        """Stable, readable, and usable as a folder name."""
        parts = [self.dataset, f"{self.leads}leads", f"e{self.embedding_dim}", self.method]
        parts += [f"tau{self.tau_d:g}"] if self.tau_d is not None else []
        parts += [self.perturb.replace(">", "+")] if self.perturb else []
        parts += [f"epochs{self.epochs}"] if self.epochs is not None else []
        parts += [self.variant] if self.variant else []
        parts += ["segment-frame"] if self.segment_frame else []
        parts += [f"split{self.split_seed}"] if self.split_seed else []
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
    patients: int | None = None  # so many labeled patients, in place of a fraction of all frames
    segment_frame: bool = False  # scored on frames as long as the segments that CMSC compares
    # of validation patients: all, as in the paper, or the same share as of training patients
    validation_labels: ValidationLabels = "all"

    @property
    def job(self) -> str:
        """What can be trained together: cells of one job differ only in their encoders."""
        p = self.pretraining
        return (
            f"{self.task}-{self.downstream}-{p.leads}leads-e{p.embedding_dim}"
            f"-f{self.fraction:g}-split{self.split_seed}"
            + ("" if self.patients is None else f"-patients{self.patients}")
            + ("-segment-frame" if self.segment_frame else "")
            + ("" if self.validation_labels == "all" else "-validation-share")
        )

    @property
    def name(self) -> str:
        return f"{self.job}/{self.pretraining.name}"


def run_name(what: Pretraining | Cell, seeds: int) -> str:
    """Its name in the ledger: equal settings, equal name."""
    kind = "pretrain" if isinstance(what, Pretraining) else "score"
    return f"{kind}/{what.name}/seeds{seeds}"


def cell_for(
    task: CellTask, method: str, dataset: str, downstream: str, fraction: float = 0.5, **more: Any
) -> Cell:
    """An encoder pre-trained on a dataset and scored on another; a random one has its shape."""
    encoder = Pretraining(method, downstream if method == "random" else dataset, **more)
    return Cell(encoder, downstream, task, fraction)


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


def untrained_beside(cell: Cell) -> list[Cell]:
    """The untrained encoders, scored in the same way."""
    p = cell.pretraining
    shape = (p.leads, p.embedding_dim)
    fitted = Pretraining("random-bn", p.dataset, *shape, split_seed=p.split_seed)
    return [
        replace(cell, pretraining=Pretraining("random", cell.downstream, *shape)),
        replace(cell, pretraining=fitted),
    ]


def on_split(cell: Cell, seed: int) -> Cell:
    """The same on another patient split of the downstream dataset.

    An encoder that is scored on its own dataset is trained on the same split, as no test patient
    may be among those it has learned from. One that is scored on another dataset stays that of
    split 0: what varies is who is labeled and who is tested.
    """
    own = cell.pretraining
    if own.dataset == cell.downstream:
        own = replace(own, split_seed=seed)
    return replace(cell, pretraining=own, split_seed=seed)


def labeled_patients(dataset: str) -> list[int | None]:
    """Numbers of labeled patients to compare on a dataset; None for all."""
    most = MAX_LABELED.get(dataset, LABELED[-1])
    return [*(count for count in LABELED if count <= most), None]


def with_few_validation_labels(cells: Sequence[Cell]) -> list[Cell]:
    """The cells, and those with few labels also with few labels of validation patients."""
    few = [cell for cell in cells if cell.fraction < 1 or cell.patients is not None]
    return [*cells, *(replace(cell, validation_labels="share") for cell in few)]


def perturbed(method: str, chain: str | None) -> Cell:
    """One of figure 3; SimCLR's own perturbation is Gaussian, so that run is table 1's."""
    own = method == "simclr" and chain == "gaussian"
    encoder = Pretraining(method, "physionet2020", perturb=None if own else chain)
    return Cell(encoder, "physionet2020", "linear")


def _perturbations() -> list[Cell]:
    every = [perturbed(method, chain) for method in ("simclr", "cmsc") for chain in CHAINS]
    return [perturbed("cmsc", None), *every]


def _of_tables(*prefixes: str) -> list[Cell]:
    return [cell_of(row) for row in paper.printed() if row.table.startswith(prefixes)]


def _table(number: int, leads: int = 4) -> list[Cell]:
    """Table 1 or 2 with both random encoders; in twelve leads from the appendix, at their E, F."""
    cells = _of_tables("linear_evaluation_main" if number == 1 else "transfer_evaluation_main")
    if leads != 4:
        cells = [
            cell
            for cell in _of_tables("test_auc_linear_" if number == 1 else "test_auc_finetuning_")
            if (cell.pretraining.embedding_dim, cell.fraction) == (128, 0.5)
            and (cell.pretraining.leads == leads or cell.pretraining.dataset in paper.SINGLE_LEAD)
        ]
    found = list(cells)
    for cell in cells:
        untrained = untrained_beside(cell)
        found += untrained[:1] if cell.pretraining.method == "random" else untrained
    if number == 2 and leads == 4:
        found += _on_other_splits([cell for cell in found if cell.downstream == "cardiology"])
    return found


def _on_other_splits(cells: Sequence[Cell]) -> list[Cell]:
    return [on_split(cell, seed) for seed in SPLIT_SEEDS for cell in cells if not cell.split_seed]


def _ablations() -> list[Cell]:
    """CMSC with one thing changed at a time, and scored on the frames it was trained on."""
    encoders = [Pretraining("cmsc", d, variant=v) for d in paper.PRETRAIN for v in ABLATIONS]
    found = [
        Cell(encoder, encoder.dataset, "linear")
        for encoder in encoders
        if encoder.segments == 1 or encoder.dataset not in SHORT
    ]
    return found + [Cell(Pretraining("cmsc", d), d, "linear", segment_frame=True) for d in SHORT]


def factor_cell(loss: str, dataset: str, chosen: Sequence[str]) -> Cell:
    """A loss on views that differ in the chosen factors, linear on its own dataset."""
    encoder = Pretraining(
        loss,
        dataset,
        perturb=FACTORIAL_CHAIN,
        epochs=FACTORIAL_EPOCHS["segments" in chosen],
        variant="-".join([FACTORIAL, *chosen]),
        segment_frame=dataset in SHORT,
    )
    return Cell(encoder, dataset, "linear", segment_frame=dataset in SHORT)


def factor_subsets() -> list[tuple[str, ...]]:
    """Every choice of factors."""
    every = product((False, True), repeat=len(FACTORS))
    return [tuple(name for name, on in zip(FACTORS, own, strict=True) if on) for own in every]


def _factorial() -> list[Cell]:
    return [
        factor_cell(loss, dataset, chosen)
        for dataset in paper.PRETRAIN
        for loss in FACTORIAL_LOSSES
        for chosen in factor_subsets()
    ]


def forms(method: str, dataset: str) -> list[Pretraining]:
    """The forms of a method to choose from on a dataset; the paper's is the first."""
    chosen = [dict(form) for form in FORMS[method]]
    if dataset not in SHORT and (equal := _TOML["forms_of_equal_frames"].get(method)):
        chosen[-len(equal) :] = [dict(form) for form in equal]
    for form in chosen:
        if form.get("variant") == "tasks-other":
            form["variant"] = "tasks-all" if dataset in SHORT else "tasks-three"
    return [Pretraining(method, dataset, **form) for form in chosen]


def at_best(cell: Cell) -> Cell:
    """The same with the best form of its method; a method without forms stays."""
    p = cell.pretraining
    if p.method not in FORMS:
        return cell
    return replace(cell, pretraining=forms(p.method, p.dataset)[BEST_FORMS[p.dataset][p.method]])


def _forms() -> list[Cell]:
    """All forms, linear on the first split; then the best in tables 1 and 2, on all splits."""
    every = [
        Cell(encoder, dataset, "linear")
        for dataset in paper.PRETRAIN
        for method in FORMS
        for encoder in forms(method, dataset)
    ]
    tables = [cell for cell in (*_table(1), *_table(2)) if cell.pretraining.method in FORMS]
    best = [at_best(cell) for cell in tables if not cell.split_seed]
    return [*every, *best, *_on_other_splits(best)]


def _label_efficiency() -> list[Cell]:
    """AUC over the number of labeled patients: what the figure shows first.

    Fine-tuned and frozen encoders on datasets they were not trained on, frozen ones also on their
    own, but for the supervised, which have seen all labels there.
    """
    own = [(dataset, dataset) for dataset in paper.PRETRAIN]
    more = [pair for pair in paper.PAIRS if pair not in SHOWN]
    found = []
    for dataset, downstream in (*SHOWN, *more, *own):
        encoders = [Pretraining("random", downstream)] + [
            Pretraining(method, dataset)
            for method in LEARNERS
            if method != "supervised" or dataset != downstream
        ]
        for task in EFFICIENCY_TASKS if dataset != downstream else EFFICIENCY_TASKS[:1]:
            found += [
                Cell(encoder, downstream, task, 1.0, patients=patients)
                for patients in labeled_patients(downstream)
                for encoder in encoders
            ]
    return with_few_validation_labels(found)


def _more_with_less() -> list[Cell]:
    found = []
    for dataset, downstream in TRANSFERS:
        cmsc, random = Pretraining("cmsc", dataset), Pretraining("random", downstream)
        found += [Cell(cmsc, downstream, "curve", fraction) for fraction in FEW]
        found.append(Cell(random, downstream, "curve", 1.0))
    return found


def _along(*, embedding_dim: int | None = None, fraction: float | None = None) -> list[Cell]:
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
    "table-1": partial(_table, 1),
    "table-2": partial(_table, 2),
    "table-1-splits": lambda: _on_other_splits(_table(1)),
    "table-2-splits": lambda: _on_other_splits(_table(2)),
    "label-efficiency": _label_efficiency,
    "ablations": _ablations,
    "factorial": _factorial,
    "forms": _forms,
    "table-1-12": partial(_table, 1, 12),
    "table-2-12": partial(_table, 2, 12),
    "linear-converged": lambda: [replace(cell, task="linear-converged") for cell in _table(1)],
    "more-with-less": _more_with_less,
    "patient-distances": _patient_distances,
    "perturbations": _perturbations,
    "byol-decay": partial(_of_tables, "effect_of_tau"),
    "embedding-dim": partial(_along, fraction=0.25),
    "labelled-fraction": lambda: with_few_validation_labels(_along(embedding_dim=64)),
    "appendix-linear": partial(_of_tables, "test_auc_linear_"),
    "appendix-transfer": partial(_of_tables, "test_auc_finetuning_"),
}
NAMES = (*GRIDS, "all")


def grid(name: str) -> list[Cell]:
    """The cells of one table or figure, each once, in the order in which they should run."""
    if name not in NAMES:
        raise SettingError(f"there is no experiment {name!r}; {suggestion(name, NAMES)}")
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
            "fraction, split, patients, validation_labels, perturb, variant, epochs or tau"
        )
    return chosen


def _values(cell: Cell, key: str) -> set[str]:
    """What a filter on `key` accepts for this cell; without a key, a method or a dataset."""
    p = cell.pretraining
    values = {
        **{name: getattr(p, name) for name in ("method", "leads", "perturb", "variant", "epochs")},
        **{name: getattr(cell, name) for name in ("downstream", "task", "fraction")},
        "validation_labels": cell.validation_labels,
        **{"pretrain": p.dataset, "e": p.embedding_dim, "split": cell.split_seed, "tau": p.tau_d},
        "patients": "all" if cell.patients is None else cell.patients,
    }
    if key and key not in values:
        raise SettingError(f"`only` accepts {', '.join(values)}, not {key!r}")
    named = [values[name] for name in ([key] if key else ("method", "pretrain", "downstream"))]
    texts = {"none" if value is None else str(value) for value in named}
    return texts | {f"{value:g}" for value in named if isinstance(value, float)}

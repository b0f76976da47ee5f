"""What tells one result from its neighbours, in full: defaults are written out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from clocs.datasets.cardiology import Cardiology
from clocs.datasets.chapman import Chapman
from clocs.datasets.physionet import PhysioNet2017, PhysioNet2020
from clocs.datasets.synthetic import Synthetic
from clocs.experiments import paper
from clocs.experiments.data import leads_for
from clocs.experiments.grid import Cell
from clocs.experiments.ledger import Run
from clocs.pretraining.methods import find_method
from clocs.pretraining.methods.baselines import PAPER_TASKS, TASKS
from clocs.recording import STANDARD_LEADS, FrameSpec
from clocs.training.card import CENTERED, IN_MV, NORMALIZATION

_DATASETS = {
    "chapman": Chapman,
    "physionet2020": PhysioNet2020,
    "physionet2017": PhysioNet2017,
    "cardiology": Cardiology,
}
_AUC = "test AUC, macro, per frame and lead: of probabilities (auc) and of logits (auc_logits)"
_METRICS = {
    "curve": "validation AUC after every epoch, macro, per frame and lead, of probabilities",
    "distances": "Euclidean distance between embeddings, not normalized",
}
# What a row of results has beside the result itself.
ADDED = (
    "run", "pretraining", "task", "tau_d", "perturb", "tasks", "frame", "encoder_frame", "input",
    "metric", "version", "paper",
)  # fmt: skip


def settings_of(cell: Cell, run: Run, *, simulated: bool) -> dict[str, Any]:
    """All settings of a result, as `clocs evaluate --json` calls them.

    `pretraining` has the encoder's as the grid gives them; `tau_d`, `perturb`, `tasks`, the frames
    and `input` are what was used. A setting that a method does not have is None.
    """
    p = cell.pretraining
    views = find_method(p.method).views
    tasks = list(PAPER_TASKS.get(p.dataset, tuple(TASKS))) if p.method == "mtssl" else None
    in_mv = p.plan.get("normalization") == "none"
    chosen = p.perturb or next(filter(None, views.copies), None)
    return {
        "run": run.name,
        "pretraining": asdict(p),
        "task": cell.task,
        "method": p.method,
        "pretrain": None if p.method == "random" else p.dataset,
        "downstream": cell.downstream,
        "embedding_dim": p.embedding_dim,
        "fraction": cell.fraction,
        "split_seed": cell.split_seed,
        "seeds": list(range(run.seeds)),
        "leads": list(_leads(cell.downstream, p.leads)),
        "tau_d": (p.tau_d or paper.TAU_D) if p.method == "byol" else None,
        "perturb": chosen,
        "tasks": tasks,
        "frame": _frame(
            cell.downstream, segments=1 + cell.segment_frame, simulated=simulated
        ).to_dict(),
        "encoder_frame": _frame(p.dataset, segments=views.segments, simulated=simulated).to_dict(),
        "input": IN_MV if in_mv else CENTERED if views.normalized_first else NORMALIZATION,
        "metric": _METRICS.get(cell.task, _AUC),
        "version": run.versions.get("clocs"),
    }


def _frame(dataset: str, *, segments: int, simulated: bool) -> FrameSpec:
    if simulated:
        return Synthetic.frame
    own = _DATASETS[dataset]
    return own.segment_frame if segments > 1 else own.frame


def _leads(dataset: str, count: int) -> tuple[str, ...]:
    single = dataset in paper.SINGLE_LEAD
    return leads_for(count, ("ECG",) if single else STANDARD_LEADS) or ()

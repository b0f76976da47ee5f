"""Cells: one encoder scored somewhere, and the settings that tell it from every other.

A setting at its default is not part of a name, so that results keep their names when settings are
added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from clocs.experiments import paper

CellTask = Literal["linear", "linear-converged", "finetune", "curve", "distances"]

# pre-trainings that differ from the method's own in one thing, which ablations compare; values are
# fields of `clocs.pretraining.plan.Plan`
VARIANTS: dict[str, dict[str, Any]] = {
    "instance-pairs": {"options": {"positives": "instance"}},
    "norm-per-view": {"batch_norm": "view"},
    "unnormalised": {"normalization": "none"},
    "segments3": {"options": {"segments": 3}},
    "segments4": {"options": {"segments": 4}},
}


@dataclass(frozen=True)
class Pretraining:
    """One encoder to train, all seeds at once."""

    method: str
    dataset: str  # its training data; for `random`, the dataset that sets its shape
    leads: int = 4
    embedding_dim: int = 128
    tau_d: float | None = None  # BYOL's decay rate; None for the default, and for other methods
    perturb: str | None = None  # a chain of perturbations that replaces the method's own
    split_seed: int = 0  # of the patient split
    epochs: int | None = None  # a fixed number, without early stopping; None for the paper's rule
    variant: str | None = None  # one of `VARIANTS`

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
        return VARIANTS[self.variant] if self.variant else {}

    @property
    def name(self) -> str:
        """Stable, readable, and usable as a folder name."""
        parts = [self.dataset, f"{self.leads}leads", f"e{self.embedding_dim}", self.method]
        parts += [f"tau{self.tau_d:g}"] if self.tau_d is not None else []
        parts += [self.perturb.replace(">", "+")] if self.perturb else []
        parts += [f"epochs{self.epochs}"] if self.epochs is not None else []
        parts += [self.variant] if self.variant else []
        parts += [f"split{self.split_seed}"] if self.split_seed else []
        return "-".join(parts)


def encoder_for(method: str, dataset: str, downstream: str, **settings: Any) -> Pretraining:
    """An encoder pre-trained on a dataset; a random one has the shape that is scored."""
    return Pretraining(method, downstream if method == "random" else dataset, **settings)


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

    @property
    def job(self) -> str:
        """What can be trained together: cells of one job differ only in their encoders."""
        p = self.pretraining
        return (
            f"{self.task}-{self.downstream}-{p.leads}leads-e{p.embedding_dim}"
            f"-f{self.fraction:g}-split{self.split_seed}"
            + ("" if self.patients is None else f"-patients{self.patients}")
            + ("-segment-frame" if self.segment_frame else "")
        )

    @property
    def name(self) -> str:
        return f"{self.job}/{self.pretraining.name}"

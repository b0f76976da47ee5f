"""Cells: one encoder scored somewhere, and the settings that tell it from every other.

A setting at its default is not part of a name, so that results keep their names when settings are
added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clocs.experiments import paper

CellTask = Literal["linear", "linear-converged", "finetune", "curve", "distances"]


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

    def __post_init__(self) -> None:
        if self.method == "random":
            # untrained and given a single lead, 4 and 12 leads are one run (and the paper prints
            # one number for both); and it has seen no split
            object.__setattr__(self, "split_seed", 0)
            if self.dataset in paper.SINGLE_LEAD:
                object.__setattr__(self, "leads", 4)

    @property
    def name(self) -> str:
        """Stable, readable, and usable as a folder name."""
        parts = [self.dataset, f"{self.leads}leads", f"e{self.embedding_dim}", self.method]
        parts += [f"tau{self.tau_d:g}"] if self.tau_d is not None else []
        parts += [self.perturb.replace(">", "+")] if self.perturb else []
        parts += [f"epochs{self.epochs}"] if self.epochs is not None else []
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

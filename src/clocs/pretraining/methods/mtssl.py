"""MT-SSL (Sarkar and Etemad, 2020): recognize which transformation was applied to a frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clocs.errors import SettingError
from clocs.frames.views import Views, transformed
from clocs.pretraining.method import Method, Objective, option

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.encoders.base import Weights
    from clocs.pretraining.batches import Batch

TASKS = {
    "noise": "noise_snr(db=15)",
    "scaling": "scaling(factor=1.1)",
    "negation": "flip_x(always=true)",
    "inversion": "flip_y(always=true)",
    "permutation": "permutation(pieces=20)",
    "time_warp": "time_warp(pieces=9, factor=1.05)",
}
# those that CLOCS kept; elsewhere all
PAPER_TASKS: dict[str, tuple[str, ...]] = {"chapman": ("scaling", "negation", "inversion")}


def multitask_loss(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Head t distinguishes the original (view 0) from the copy of task t (view t + 1).

    z: (members, 1 + tasks, batch, dim), weight: (members, tasks, dim), bias: (members, tasks)
    -> (members,) mean binary cross-entropy over tasks.
    """
    from torch import einsum
    from torch.nn.functional import softplus

    original = einsum("mbd,mtd->mtb", z[:, 0], weight) + bias[..., None]
    copy = einsum("mtbd,mtd->mtb", z[:, 1:], weight) + bias[..., None]
    return (softplus(original) + softplus(-copy)).mean(dim=(1, 2)) / 2


@dataclass(frozen=True)
class MultiTask(Objective):
    """One binary head per task distinguishes the original from the transformed copy."""

    tasks: tuple[str, ...] | None = option(
        None,
        "Transformations to recognize, such as noise,scaling,negation,inversion,permutation,"
        "time_warp; those of the paper for the dataset where not given.",
        kind=tuple,
    )

    def views(self, own: Views, dataset: str) -> Views:
        from clocs.pretraining.perturbations import parse

        chosen = self.tasks or PAPER_TASKS.get(dataset, tuple(TASKS))
        unknown = [task for task in chosen if task not in TASKS]
        if unknown:
            raise SettingError(
                f"there is no task {', '.join(unknown)}; choose `tasks` from {', '.join(TASKS)}"
            )
        return transformed(*(str(parse(TASKS[task])) for task in chosen))

    def heads(self, *, dim: int, classes: int, copies: int) -> dict[str, tuple[int, ...]]:
        return {"head.weight": (copies - 1, dim), "head.bias": (copies - 1,)}

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        return multitask_loss(z, weights["head.weight"], weights["head.bias"])


mtssl = Method("mtssl", of="lead", views=transformed(), objective=MultiTask, perturbable=False)

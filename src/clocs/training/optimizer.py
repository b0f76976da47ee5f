"""Optimizer: Adam, and what may be added to it: decay, a schedule, clipping, an average of weights.

Numbers that change from step to step are functions of the steps that a member has made, a tensor
that stays in place, so that a step can be captured and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from clocs.training.settings import Schedule, Settings

_TINY = 1e-6  # added to norms, as in torch's clipping


@dataclass(frozen=True)
class Optimizer:
    """How far a gradient moves the weights."""

    lr: float
    schedule: Schedule = "constant"
    warm_up: Tensor | None = None  # (members, 1) steps in which the learning rate rises
    total: Tensor | None = None  # (members, 1) steps of the whole training
    factors: Tensor | None = None  # (1, weights) of the learning rate; None: 1
    decay: Tensor | None = None  # (1, weights), AdamW's
    clip: float | None = None
    average: float | None = None

    @classmethod
    def of(
        cls,
        settings: Settings,
        shapes: Mapping[str, tuple[int, ...]],
        steps: Tensor,
        lr_factor: Callable[[str], float],
        dtype: torch.dtype,
    ) -> Optimizer:
        """The optimizer of a fleet.

        Args:
            settings: What users have chosen.
            shapes: Of a member's weights, by name, in the order of its row.
            steps: (members,) in an epoch.
            lr_factor: The factor of the learning rate of the weights of a name.
            dtype: Of weights.
        """

        def row(values: Iterable[float]) -> Tensor:
            sizes = (math.prod(shape) for shape in shapes.values())
            parts = [
                torch.full((size,), value, dtype=dtype)
                for size, value in zip(sizes, values, strict=True)
            ]
            return torch.cat(parts)[None].to(steps.device)

        factors = [lr_factor(name) for name in shapes]
        # biases and scales of norms have one dimension
        decays = [settings.decay * (len(shape) > 1) for shape in shapes.values()]
        total = settings.epochs * steps[:, None].double()
        varies = settings.schedule != "constant" or settings.warm_up > 0
        return cls(
            lr=settings.lr,
            schedule=settings.schedule,
            warm_up=(settings.warm_up * total).round() if varies else None,
            total=total if varies else None,
            factors=row(factors) if any(factor != 1 for factor in factors) else None,
            decay=row(decays) if any(decays) else None,
            clip=settings.clip,
            average=settings.average,
        )

    @property
    def plain(self) -> bool:
        """Whether its steps are Adam's alone, for which there are kernels."""
        return all(x is None for x in (self.total, self.factors, self.decay, self.clip))

    def rate(self, done: Tensor, dtype: torch.dtype) -> Tensor | float:
        """The learning rate after (members,) steps: (members, 1), or by weight."""
        rate: Tensor | float = self.lr
        if self.total is not None and self.warm_up is not None:
            share = schedule(self.schedule, done[:, None], self.warm_up, self.total)
            rate = (self.lr * share).to(dtype)
        return rate if self.factors is None else rate * self.factors

    def clip_(self, gradient: Tensor) -> Tensor:
        """Shorten, in place, each row of (members, weights) to the length `clip`."""
        if self.clip is None:
            return gradient
        # one by one: together, the bits of a sum would depend on how many members there are
        norm = torch.stack([row.norm() for row in gradient])[:, None]
        return gradient.mul_((self.clip / (norm + _TINY)).clamp(max=1))


def schedule(name: Schedule, done: Tensor, warm_up: Tensor, total: Tensor) -> Tensor:
    """The learning rate as a share of its highest, for the step after `done` ones; float64.

    It rises in equal parts in the first `warm_up` steps and then stays ('constant') or falls along
    half a cosine to 0 after `total` steps ('cosine').
    """
    rising = (done + 1) / warm_up.clamp(min=1)
    if name == "constant":
        return rising.clamp(max=1)
    way = ((done - warm_up) / (total - warm_up).clamp(min=1)).clamp(0, 1)
    falling = 0.5 + 0.5 * torch.cos(math.pi * way)
    return torch.where(done < warm_up, rising, falling)

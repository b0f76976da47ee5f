"""Small encoders of many leads, for tests: one for frames of any length, and the usual ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from torch import Tensor, nn

from clocs.encoders import many_leads, residual
from clocs.encoders.make import ENCODERS
from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained
from clocs.training.checkpoint import Checkpoint


class TinyLeads(nn.Module):
    """A convolution, batch norm and the mean over time."""

    multilead = True

    def __init__(
        self, *, embedding_dim: int, samples: int, dropout: float, leads: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(len(leads), embedding_dim, 9, stride=4)
        self.norm = nn.BatchNorm1d(embedding_dim)
        self.there = nn.Linear(len(leads), embedding_dim)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        made: Tensor = self.norm(self.conv(x)).relu().mean(dim=-1) + self.there(there.to(x.dtype))
        return made


@contextmanager
def tiny_leads() -> Iterator[str]:
    """`ENCODERS` with it; its name."""
    ENCODERS["tiny-leads"] = TinyLeads
    try:
        yield "tiny-leads"
    finally:
        del ENCODERS["tiny-leads"]


@contextmanager
def fewer_stages(width: int = residual.WIDE) -> Iterator[None]:
    """`multilead` and `voltage` with two of their four stages, the first so many channels wide."""
    every = (*vars(many_leads).values(), *vars(residual).values())
    kept = [one for one in every if hasattr(one, "cache_clear")]
    with patch.object(many_leads, "WIDTHS", (width,)):
        for one in kept:
            one.cache_clear()
        yield
    for one in kept:
        one.cache_clear()


def many_lead_checkpoints(
    frames: Frames, seeds: tuple[int, ...] = (0, 1), encoder: str = "tiny-leads"
) -> list[Checkpoint]:
    """Untrained ones that see all leads of these frames."""
    return untrained(frames, Plan("random", seeds, encoder=encoder, embedding_dim=12))

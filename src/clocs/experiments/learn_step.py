"""Learning: an encoder of the grid, all seeds at once -> checkpoints, and what is kept of them.

Knows nothing about the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from clocs.experiments.data import Library
from clocs.experiments.grid import Pretraining
from clocs.experiments.profile import Profile
from clocs.pretraining.methods import find_method
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain_frames import pretrain_frames
from clocs.training.loop import Epoch


def learn(
    encoder: Pretraining,
    folder: Path,
    library: Library,
    profile: Profile,
    *,
    seeds: int,
    device: torch.device,
    on_epoch: Callable[[Epoch], None],
) -> dict[str, Any]:
    """Learn one encoder, or go on with it; returns its metrics, one a seed.

    Args:
        encoder: What to learn.
        folder: Of its checkpoints.
        library: The data.
        profile: How long.
        seeds: How many.
        device: Where.
        on_epoch: Called after each epoch; what it raises stops the learning.
    """
    pair = find_method(encoder.method).views.segments > 1
    frames = library.frames(encoder.dataset, leads=encoder.leads, pair=pair)
    plan = Plan(
        method=encoder.method,
        seeds=tuple(range(seeds)),
        embedding_dim=encoder.embedding_dim,
        options={} if encoder.tau_d is None else {"tau_d": encoder.tau_d},
        perturb=encoder.perturb,
        settings=profile.settings(frames.batch_size),
    )
    checkpoints = pretrain_frames(
        frames,
        plan,
        folder,
        frame_to_use=library.frame(encoder.dataset),
        device=device,
        resume=True,
        on_epoch=on_epoch,
    )
    cards = [checkpoint.card.metrics for checkpoint in checkpoints]
    return {key: [card.get(key) for card in cards] for key in cards[0]}


class Seen:
    """Adds up a training's epochs, to measure its rate."""

    def __init__(self) -> None:
        self.epochs, self.instances, self.seconds = 0, 0, 0.0

    def add(self, epoch: Epoch) -> None:
        self.epochs += 1
        self.instances += epoch.instances
        self.seconds += epoch.seconds

    def facts(self) -> dict[str, float]:
        return {
            "measured_epochs": self.epochs,
            "measured_instances": self.instances,
            "measured_seconds": self.seconds,
        }

    def words(self) -> str:
        if not self.seconds:
            return ""
        return f" ({self.epochs} epochs, {self.instances / self.seconds:,.0f} instances/s)"

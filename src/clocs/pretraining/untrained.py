"""Encoders that are not trained: initial weights, where wanted with batch norm fitted to data."""

from __future__ import annotations

from dataclasses import replace

import torch

from clocs import keyed_random
from clocs.encoders.base import Weights
from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import instances
from clocs.pretraining.cards import make_checkpoint
from clocs.pretraining.methods import METHODS
from clocs.pretraining.plan import Plan
from clocs.training.checkpoint import Checkpoint
from clocs.training.loop import Trained
from clocs.training.signals import Signals


def untrained(
    frames: Frames, plan: Plan, *, device: torch.device | str = "cpu"
) -> list[Checkpoint]:
    """Encoders of a method that learns nothing, one per seed; nothing is written."""
    device = torch.device(device)
    made = initial_weights(frames, plan, device)
    return [
        make_checkpoint(frames, plan, made, member, frame=frames.spec, device=device)
        for member in range(len(plan.seeds))
    ]


def initial_weights(frames: Frames, plan: Plan, device: torch.device) -> Trained:
    """The members as initialised; where the method says so, batch norm has seen training frames."""
    if plan.objective is not None:
        names = " or ".join(name for name, row in METHODS.items() if row.objective is None)
        raise SettingError(f"{plan.method} has to be trained; without training use {names}")
    encoder, members = plan.encoder_for(frames.spec.samples), len(plan.seeds)
    keys = keyed_random.member_keys(list(plan.seeds), device)
    weights = {k: v.to(device) for k, v in encoder.parameters(keys).items()}
    buffers = {k: v.to(device) for k, v in encoder.buffers(members).items()}
    if plan.row.fits_batch_norm:
        buffers = _statistics(frames, plan, weights, buffers, device)
    nan = [float("nan")] * members
    return Trained(weights, buffers, nan, [0] * members, 0, ["untrained"] * members)


def _statistics(
    frames: Frames, plan: Plan, weights: Weights, buffers: Weights, device: torch.device
) -> Weights:
    """Batch-norm statistics as the mean over all full batches of the training frames."""
    signals = Signals.of(frames, device)
    rows = instances(frames, of=plan.row.of, views=plan.row.views, split=0).windows
    starts = torch.from_numpy(rows)[:, 0].to(device)
    keys = keyed_random.member_keys(list(plan.seeds), device)
    order = starts[
        keyed_random.permutation(keyed_random.fold(keys, keyed_random.stream("order")), len(starts))
    ]
    encoder = replace(plan, dropout=0).encoder_for(frames.spec.samples)
    size = min(plan.settings.batch_size, len(starts))
    with torch.no_grad():
        for step in range(len(starts) // size):
            x = signals.normalised(order[:, step * size : (step + 1) * size])
            _, buffers = encoder.encode_training(weights, buffers, x, keys, momentum=1 / (step + 1))
    return buffers

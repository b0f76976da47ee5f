"""Embeddings of frames, in evaluation mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import CheckpointError
from clocs.frames.frames import Frames
from clocs.frames.views import Instances
from clocs.training.checkpoint import Checkpoint
from clocs.training.signals import Signals

AT_ONCE = 2048  # views encoded at a time, over all members


def stack(checkpoints: Sequence[Checkpoint]) -> tuple[Weights, Weights]:
    """The weights and buffers of checkpoints of one encoder, (members, …) each."""
    first = checkpoints[0].card.encoder
    for checkpoint in checkpoints:
        if checkpoint.card.encoder != first:
            raise CheckpointError(
                f"different encoders cannot be used at once: {first} and {checkpoint.card.encoder}"
            )
    weights = {k: torch.cat([c.weights[k] for c in checkpoints]) for k in checkpoints[0].weights}
    buffers = {k: torch.cat([c.buffers[k] for c in checkpoints]) for k in checkpoints[0].buffers}
    return weights, buffers


def input_offsets(checkpoints: Sequence[Checkpoint], device: torch.device | str) -> Tensor | None:
    """(members, 1, 1) to add to normalised frames, or None where no encoder needs it."""
    offsets = [checkpoint.card.input_offset for checkpoint in checkpoints]
    return torch.tensor(offsets, device=device)[:, None, None] if any(offsets) else None


@torch.no_grad()
def embed_instances(
    checkpoints: Sequence[Checkpoint],
    frames: Frames,
    rows: Instances,
    device: torch.device | str = "cpu",
) -> Tensor:
    """(members, instances, dim): the embedding of each one-view instance by each checkpoint."""
    device, encoder = torch.device(device), checkpoints[0].encoder
    if encoder.samples != frames.spec.samples:
        raise CheckpointError(
            f"this encoder takes frames of {encoder.samples} samples, not {frames.spec.samples}"
        )
    weights, buffers = (
        {k: v.to(device) for k, v in tensors.items()} for tensors in stack(checkpoints)
    )
    size = max(1, AT_ONCE // len(checkpoints))
    signals = Signals.of(frames, device, windows=size)
    starts = torch.from_numpy(np.ascontiguousarray(rows.windows[:, 0]))
    parts, offset = [], input_offsets(checkpoints, device)
    for some in signals.staged(starts.split(size)):
        x = signals.normalised(some).expand(len(checkpoints), -1, -1)
        parts.append(encoder.encode(weights, buffers, x if offset is None else x + offset))
    made = torch.cat(parts, dim=1)
    if not bool(made.isfinite().all()):
        raise CheckpointError(
            "this encoder gives vectors that are not finite; its training diverged"
        )
    return made

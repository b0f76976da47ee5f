"""Embeddings of frames, in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import CheckpointError, SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Instances
from clocs.training.checkpoint import Checkpoint
from clocs.training.memory import free_memory
from clocs.training.signals import Signals
from clocs.training.vector_cache import StoreVectors, filled

AT_ONCE = 2048  # views encoded at a time, over all members
# Smaller batches are padded: matrix products of a few rows round differently. Windows of many
# leads, of which two are enough, cost a hundred times as much.
MIN, MIN_OF_MANY_LEADS = 16, 2


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


@dataclass(frozen=True)
class EncoderInput:
    """How the input of each member is made of signals: as its encoder learned on it."""

    offset: Tensor | None  # (members, 1, 1) to add to normalized frames; None where all are 0
    in_mv: Tensor | None  # (members, 1, 1) bool: who takes frames in mV; None where nobody does
    standardized: bool = False  # whether all take frames that are standardized, of many leads

    @classmethod
    def of(cls, checkpoints: Sequence[Checkpoint], device: torch.device | str) -> EncoderInput:
        cards = [checkpoint.card for checkpoint in checkpoints]
        if all(card.standardized for card in cards):
            return cls(None, None, standardized=True)
        offsets, in_mv = (
            torch.tensor(values, device=device)[:, None, None] if any(values) else None
            for values in ([card.input_offset for card in cards], [card.in_mv for card in cards])
        )
        return cls(offsets, in_mv)

    def of_members(self, members: list[int]) -> EncoderInput:
        """That of some members."""
        offset, in_mv = (None if x is None else x[members] for x in (self.offset, self.in_mv))
        return EncoderInput(offset, in_mv, self.standardized)

    def __call__(self, signals: Signals, starts: Tensor, scale: Tensor) -> Tensor:
        """starts, scale: (rows,) or (members, rows) -> (…, rows, samples).

        Of many leads, (…, rows, leads) -> (…, rows, leads, samples).
        """
        if self.standardized:
            return signals.standardized(starts)
        x = signals.normalized(starts)
        if self.offset is not None:
            x = (x + self.offset).to(x.dtype)
        if self.in_mv is not None:
            x = torch.where(self.in_mv, signals.raw(starts, scale).to(x.dtype), x)
        return x


def expect_mv(checkpoints: Sequence[Checkpoint], frames: Frames) -> None:
    """Refuse frames in another unit for encoders that take mV; the others normalize any unit."""
    if frames.unit != "mV" and any(checkpoint.card.in_mv for checkpoint in checkpoints):
        raise CheckpointError(
            f"this encoder takes signals in mV, but those of {frames.dataset} are in {frames.unit}"
        )


@torch.no_grad()
def embed_instances(
    checkpoints: Sequence[Checkpoint],
    frames: Frames,
    rows: Instances,
    device: torch.device | str = "cpu",
    cache: StoreVectors | None = None,
) -> Tensor:
    """(members, instances, dim): the embedding of each one-view instance by each checkpoint."""
    pieces = embedded_pieces(checkpoints, frames, rows, device, cache)
    return expect_finite(torch.cat(list(pieces), dim=1))


@torch.no_grad()
def embedded_pieces(
    checkpoints: Sequence[Checkpoint],
    frames: Frames,
    rows: Instances,
    device: torch.device | str = "cpu",
    cache: StoreVectors | None = None,
) -> Iterator[Tensor]:
    """The same, (members, some, dim) at a time, finite or not; those in the cache are read."""
    numbers = None if cache is None else cache.numbers(frames, rows)
    if cache is None or numbers is None:
        yield from _encoded(checkpoints, frames, rows, device, "encode")
        return

    def encode(members: list[int], unknown: NDArray[np.bool_]) -> Iterator[NDArray[np.float32]]:
        some = [checkpoints[member] for member in members]
        for z in _encoded(some, frames, rows.where(unknown), device, "encode"):
            yield z.cpu().numpy()

    each = [cache.by(one, device) for one in checkpoints]
    for found in filled(each, numbers, encode, max(1, AT_ONCE // len(each))):
        yield torch.from_numpy(found).to(device)


def expect_finite(vectors: Tensor) -> Tensor:
    """The same vectors; refuses any that are not finite."""
    if not bool(vectors.isfinite().all()):
        raise CheckpointError(
            "this encoder gives vectors that are not finite; its training diverged"
        )
    return vectors


@torch.no_grad()
def feature_maps(
    checkpoints: Sequence[Checkpoint],
    frames: Frames,
    rows: Instances,
    device: torch.device | str = "cpu",
) -> Tensor:
    """(members, instances, steps, channels) before they are pooled over time, in float16."""
    limit = torch.finfo(torch.float16).max
    parts: list[Tensor] = []
    for part in _encoded(checkpoints, frames, rows, device, "feature_map"):
        if not parts:
            _expect_room(part[:, :1].numel(), len(rows), part.device)
        parts.append(part.clamp(-limit, limit).half())
    return torch.cat(parts, dim=1)


def _expect_room(numbers: int, rows: int, device: torch.device) -> None:
    """Refuse feature maps of so many numbers each that do not fit; they are put together at last.

    numbers: Of the maps of one row, by all members.
    """
    needed, free = 2 * 2 * numbers * rows, free_memory(device)  # in float16, twice for a moment
    if needed > free:
        raise SettingError(
            f"the feature maps of {rows:,} frames need {needed / 1e9:,.1f} GB on {device.type}, "
            f"where {free / 1e9:,.1f} GB are free; evaluate fewer seeds at once, or with the "
            "`protocol` linear-converged, which keeps embeddings alone"
        )


def _encoded(
    checkpoints: Sequence[Checkpoint],
    frames: Frames,
    rows: Instances,
    device: torch.device | str,
    what: Literal["encode", "feature_map"],
) -> Iterator[Tensor]:
    """What that method of the encoder makes of the instances, some at a time."""
    device, encoder = torch.device(device), checkpoints[0].encoder
    if encoder.samples != frames.spec.samples:
        raise CheckpointError(
            f"this encoder takes frames of {encoder.samples} samples, not {frames.spec.samples}"
        )
    weights, buffers = (
        {k: v.to(device) for k, v in tensors.items()} for tensors in stack(checkpoints)
    )
    if encoder.leads != (frames.leads if rows.leads_at_once else ()):
        raise CheckpointError(
            f"this encoder sees {', '.join(encoder.leads) or 'one lead'} at once, and the frames "
            f"are of {', '.join(frames.leads)}; choose its leads with `frames.for_leads`"
        )
    each = max(1, rows.leads_at_once)  # windows of a view
    most = AT_ONCE * (8 if encoder.leads and device.type == "cuda" else 1)
    size = max(1, most // len(checkpoints) // each)
    expect_mv(checkpoints, frames)
    signals = Signals.of(frames, device, windows=size * each)
    starts = torch.from_numpy(rows.in_view())
    scales = torch.from_numpy(rows.scale_in_view()).to(device).split(size)
    as_input = EncoderInput.of(checkpoints, device)
    fewest = MIN_OF_MANY_LEADS if encoder.leads else MIN
    for some, scale in zip(signals.staged(starts.split(size)), scales, strict=True):
        x = as_input(signals, some, scale)
        x = x.expand(len(checkpoints), *x.shape[-3 if encoder.leads else -2 :])
        if len(some) < fewest:
            x = torch.cat([x, x[:, -1:].expand(-1, fewest - len(some), *x.shape[2:])], dim=1)
        yield getattr(encoder, what)(weights, buffers, x)[:, : len(some)]

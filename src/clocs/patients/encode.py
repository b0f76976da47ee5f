"""Streamed encoding: windows of signals -> batches -> vectors -> embeddings of each level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs.errors import CheckpointError, SettingError
from clocs.patients.embeddings import Embeddings, from_means
from clocs.patients.rows import Level, group_rows
from clocs.patients.unit_vectors import UnitMeans, lengths
from clocs.recording import FrameSpec, canonical_lead
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import AT_ONCE
from clocs.training.signals import Signals

_FEWEST = 16  # smaller batches are padded: matrix products of a single row round differently


def frame_of(checkpoint: Checkpoint, seconds: float | None) -> FrameSpec:
    """The checkpoint's frame, or one of this many seconds with the encoder's number of samples."""
    if seconds is None:
        return checkpoint.card.frame
    if not 0 < seconds < math.inf:
        raise SettingError(f"`frame` is {seconds:g}; give the seconds of a frame, such as 5")
    return FrameSpec(seconds, checkpoint.encoder.samples, checkpoint.card.frame.filters)


def leads_of(checkpoint: Checkpoint, leads: Sequence[str] | None) -> tuple[str, ...]:
    """Leads by their usual names; those that the encoder was trained on where None."""
    return tuple(map(canonical_lead, checkpoint.card.leads if leads is None else leads))


@torch.no_grad()
def encoded(
    checkpoint: Checkpoint,
    windows: Iterable[NDArray[np.int16]],
    samples: int,
    device: torch.device | str = "cpu",
) -> Iterator[NDArray[np.float32]]:
    """Pieces of (n, samples) windows -> pieces of (m, dim) vectors in the same order."""
    encoder = checkpoint.encoder
    if encoder.samples != samples:
        raise CheckpointError(
            f"this encoder takes frames of {encoder.samples} samples, not {samples}"
        )
    if checkpoint.card.in_mv:
        raise CheckpointError(
            "this encoder takes signals in mV, which only `clocs evaluate` gives it; use one that "
            "was trained on normalised frames"
        )
    weights, buffers = (
        {k: v.to(device) for k, v in tensors.items()}
        for tensors in (checkpoint.weights, checkpoint.buffers)
    )
    for batch, size in _batches(windows, samples):
        flat = torch.from_numpy(batch.reshape(-1)).to(device)
        starts = torch.arange(len(batch), device=flat.device) * samples
        x = Signals(flat, samples).normalised(starts)
        if checkpoint.card.input_offset:
            x += checkpoint.card.input_offset
        z: NDArray[np.float32] = encoder.encode(weights, buffers, x[None])[0, :size].cpu().numpy()
        if not np.isfinite(z).all():
            raise CheckpointError(
                "this encoder gives vectors that are not finite; its training diverged"
            )
        yield z


def _batches(
    windows: Iterable[NDArray[np.int16]], samples: int
) -> Iterator[tuple[NDArray[np.int16], int]]:
    """Batches of `AT_ONCE` windows, the last one smaller, each with its number of real windows."""
    batch, filled = np.zeros((AT_ONCE, samples), np.int16), 0
    for piece in windows:
        start = 0
        while start < len(piece):
            stop = min(len(piece), start + AT_ONCE - filled)
            batch[filled : filled + stop - start] = piece[start:stop]
            filled += stop - start
            start = stop
            if filled == AT_ONCE:
                yield batch, filled
                filled = 0
    if filled:
        yield batch[: max(filled, _FEWEST)], filled


def collect(
    checkpoint: Checkpoint,
    vectors: Iterable[NDArray[np.float32]],
    frames: pl.DataFrame,
    levels: Sequence[Level],
    *,
    spec: FrameSpec,
    leads: tuple[str, ...],
    problems: Sequence[tuple[str, str]],
) -> dict[Level, Embeddings]:
    """Vectors of frames, in the order of their rows `frames` -> embeddings of each level."""
    dim = checkpoint.encoder.embedding_dim
    grouped = {level: group_rows(frames, level) for level in levels if level != "frame"}
    means = {level: UnitMeans(rows.height, dim) for level, (_, rows) in grouped.items()}
    single = np.empty((frames.height if "frame" in levels else 0, dim), np.float32)
    start = 0
    for part in vectors:
        some = slice(start, start + len(part))
        for level, (group, _) in grouped.items():
            means[level].add(group[some], part)
        if "frame" in levels:
            single[some] = part
        start += len(part)
    nonzero = lengths(single) > 0
    views = pl.Series("views", nonzero.astype(np.int32))
    by_frame = Embeddings(
        vectors=single,
        rows=frames.with_columns(views) if "frame" in levels else frames[:0],
        level="frame",
        encoder=checkpoint.fingerprint,
        zero_vectors=int((~nonzero).sum()),
        problems=tuple(problems),
        frame=spec.seconds,
        leads=leads,
    )
    made: dict[Level, Embeddings] = {
        level: from_means(means[level], rows, replace(by_frame, level=level))
        for level, (_, rows) in grouped.items()
    }
    return made | ({"frame": by_frame} if "frame" in levels else {})

"""Streamed encoding: windows of signals -> batches -> vectors -> embeddings of each level."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs.errors import CheckpointError, ClocsWarning, SettingError
from clocs.frames.frames import ABSENT
from clocs.patients.embeddings import Embeddings, from_means
from clocs.patients.reading import with_readings
from clocs.patients.rows import Level, group_rows
from clocs.patients.unit_vectors import UnitMeans, lengths
from clocs.recording import (
    UNNAMED_LEAD,
    FrameSpec,
    Recording,
    canonical_lead,
    noted,
    unnamed_lead,
)
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import AT_ONCE, MIN_ROWS, MIN_ROWS_OF_MANY_LEADS, EncoderInput, stack
from clocs.training.signals import Signals

# (n, samples) of one lead each; of many leads at once (n, leads, samples), in the encoder's order,
# and (n, leads) whether there is a signal
Windows: TypeAlias = NDArray[np.int16] | tuple[NDArray[np.int16], NDArray[np.bool_]]


def frame_of(checkpoint: Checkpoint, seconds: float | None) -> FrameSpec:
    """The checkpoint's frame, or one of this many seconds with the encoder's number of samples.

    For an encoder of many leads, the number of samples is that of its own rate.
    """
    if seconds is None:
        return checkpoint.card.frame
    if not 0 < seconds < math.inf:
        raise SettingError(f"`frame` is {seconds:g}; give the seconds of a frame, such as 5")
    own, samples = checkpoint.card.frame, checkpoint.encoder.samples
    if checkpoint.encoder.leads:
        samples = max(1, round(seconds * own.rate))
    return FrameSpec(seconds, samples, own.filters)


def fitted(checkpoint: Checkpoint, spec: FrameSpec) -> tuple[Checkpoint, FrameSpec]:
    """The encoder and the frame to use together; one of many leads keeps its rate."""
    if not checkpoint.encoder.leads:
        return checkpoint, spec
    frame = frame_of(checkpoint, spec.seconds)
    return checkpoint.for_frame(frame), frame


def leads_of(checkpoint: Checkpoint, leads: Sequence[str] | None) -> tuple[str, ...]:
    """Leads by their usual names; those that the encoder was trained on where None.

    Raises:
        SettingError: An encoder of many leads does not know one of them.
    """
    known = known_leads(checkpoint)
    found = tuple(map(canonical_lead, checkpoint.card.leads if leads is None else leads))
    unknown = [lead for lead in found if known and lead not in known]
    if unknown:
        raise SettingError(
            f"the encoder sees {', '.join(known)} at once and knows no {', '.join(unknown)}; "
            f"choose `leads` from these, or, if {unknown[0]} is another name of one, say so with "
            f"`lead_names`, such as {unknown[0]}=II (of a store, with `clocs prepare`)"
        )
    return found


def known_leads(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Those that an encoder of many leads sees at once, in its order; none for the others."""
    return tuple(map(canonical_lead, checkpoint.encoder.leads))


def placed(recording: Recording, known: Sequence[str], wanted: Sequence[str]) -> Recording:
    """The recording as an encoder sees it.

    Limb leads that are wanted and that it lacks are derived from I and II. A single lead without a
    name takes the place of one that has a name; and where an encoder has learned on a lead without
    a name, the only lead of a recording is read in its place.

    Args:
        recording: With any leads.
        known: Those that the encoder sees at once, if it does.
        wanted: Those that are read.
    """
    if len(recording.leads) != 1:
        return recording.with_limb_leads(wanted)
    (own,) = recording.leads
    if own == UNNAMED_LEAD and known and own not in known:
        lead = unnamed_lead()
        note = f"the lead without a name is taken as {lead}"
    elif own != UNNAMED_LEAD and not known and tuple(wanted) == (UNNAMED_LEAD,):
        lead = UNNAMED_LEAD
        note = f"{own} is taken as the lead without a name"
        warnings.warn(
            f"the only lead of a recording, {own}, is read as the lead without a name that the "
            "encoder has learned on",
            ClocsWarning,
            stacklevel=3,
        )
    else:
        return recording
    return replace(
        recording,
        leads=(lead,),
        gaps=tuple(replace(gap, lead=lead) for gap in recording.gaps),
        extra=noted(recording.extra, note),
    )


def side_by_side(
    known: Sequence[str],
    leads: Sequence[str],
    values: NDArray[np.int16],
    present: NDArray[np.bool_],
) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """Frames of some leads as an encoder of the `known` ones sees them.

    Args:
        known: Those that the encoder sees.
        leads: Those that there are.
        values: (frames, leads, samples).
        present: (frames, leads) which have a signal.
    """
    places = [known.index(lead) for lead in leads]
    made = np.zeros((len(values), len(known), values.shape[-1]), np.int16)
    there = np.zeros(made.shape[:2], np.bool_)
    made[:, places], there[:, places] = values, present
    some = there.any(axis=1)
    return made[some], there[some]


def frame_of_rows(present: NDArray[np.bool_], known: Sequence[str]) -> NDArray[np.int64]:
    """The frame of each window of a recording.

    Args:
        present: (frames, leads) which have a signal.
        known: Leads that the encoder sees at once, in one window; none where each has its own.
    """
    if known:
        return np.flatnonzero(present.any(axis=1))
    return np.nonzero(present)[0]


def encoded(
    checkpoint: Checkpoint,
    windows: Iterable[Windows],
    samples: int,
    device: torch.device | str = "cpu",
) -> Iterator[NDArray[np.float32]]:
    """Pieces of windows -> pieces of (m, dim) vectors in the same order."""
    return (z[0] for z in encoded_by_all([checkpoint], windows, samples, device))


@torch.no_grad()
def encoded_by_all(
    checkpoints: Sequence[Checkpoint],
    windows: Iterable[Windows],
    samples: int,
    device: torch.device | str = "cpu",
) -> Iterator[NDArray[np.float32]]:
    """Pieces of windows -> pieces of (members, m, dim) vectors in the same order.

    All members see the same windows, each as its card says, and encode them as one fleet.
    """
    encoder = checkpoints[0].encoder
    if encoder.samples != samples:
        raise CheckpointError(
            f"this encoder takes frames of {encoder.samples} samples, not {samples}"
        )
    if any(checkpoint.card.in_mv for checkpoint in checkpoints):
        raise CheckpointError(
            "this encoder takes signals in mV, which only `clocs evaluate` gives it; use one that "
            "was trained on normalized frames"
        )
    weights, buffers = (
        {k: v.to(device) for k, v in tensors.items()} for tensors in stack(checkpoints)
    )
    as_input = EncoderInput.of(checkpoints, device)
    most = AT_ONCE // len(checkpoints)
    for batch, there, size in _batches(windows, samples, len(encoder.leads), most):
        flat = torch.from_numpy(batch.reshape(-1)).to(device)
        starts = torch.arange(flat.numel() // samples, device=flat.device) * samples
        if encoder.leads:
            present = torch.from_numpy(there).to(flat.device)
            starts = torch.where(present, starts.view(present.shape), ABSENT)
        x = as_input(Signals(flat, samples), starts, torch.ones(()))
        x = x.expand(len(checkpoints), *x.shape[-3 if encoder.leads else -2 :])
        z: NDArray[np.float32] = encoder.encode(weights, buffers, x)[:, :size].cpu().numpy()
        if not np.isfinite(z).all():
            raise CheckpointError(
                "this encoder gives vectors that are not finite; its training diverged"
            )
        yield z


def _batches(
    windows: Iterable[Windows], samples: int, leads: int, most: int
) -> Iterator[tuple[NDArray[np.int16], NDArray[np.bool_], int]]:
    """Batches of `most` windows, the last one smaller, each with its number of real windows."""
    fewest = MIN_ROWS_OF_MANY_LEADS if leads else MIN_ROWS
    most = max(MIN_ROWS, most // max(1, leads))
    shape = (most, leads, samples) if leads else (most, samples)
    batch, there, filled = np.zeros(shape, np.int16), np.ones(shape[:-1], np.bool_), 0
    for given in windows:
        piece, present = given if isinstance(given, tuple) else (given, None)
        start = 0
        while start < len(piece):
            stop = min(len(piece), start + most - filled)
            own = slice(filled, filled + stop - start)
            batch[own] = piece[start:stop]
            if present is not None:
                there[own] = present[start:stop]
            filled += stop - start
            start = stop
            if filled == most:
                yield batch, there, filled
                filled = 0
    if filled:
        padded = max(filled, fewest)
        yield batch[:padded], there[:padded], filled


def collect(
    checkpoint: Checkpoint,
    vectors: Iterable[NDArray[np.float32]],
    frames: pl.DataFrame,
    levels: Sequence[Level],
    *,
    spec: FrameSpec,
    leads: tuple[str, ...],
    problems: Sequence[tuple[str, str]],
    readings: pl.DataFrame | None,
) -> dict[Level, Embeddings]:
    """Vectors of frames, in the order of their rows `frames` -> embeddings of each level.

    `readings` are of their recordings, as `readings_of_store` makes them; None to leave them out.
    """

    def read(rows: pl.DataFrame) -> pl.DataFrame:
        return rows if readings is None else with_readings(rows, readings)

    dim = checkpoint.encoder.embedding_dim
    grouped = {level: group_rows(frames, level) for level in levels if level != "frame"}
    means = {level: UnitMeans(group, rows.height, dim) for level, (group, rows) in grouped.items()}
    if "frame" not in levels:
        frames = frames[:0]  # of many recordings, their rows are larger than their vectors
    single = np.empty((frames.height, dim), np.float32)
    start = 0
    for part in vectors:
        some = slice(start, start + len(part))
        for one in means.values():
            one.add(part)
        if "frame" in levels:
            single[some] = part
        start += len(part)
    nonzero = lengths(single) > 0
    views = pl.Series("views", nonzero.astype(np.int32))
    by_frame = Embeddings(
        vectors=single,
        rows=read(frames.with_columns(views)),
        level="frame",
        encoder=checkpoint.fingerprint,
        zero_vectors=int((~nonzero).sum()),
        problems=tuple(problems),
        frame=spec.seconds,
        leads=leads,
    )
    made: dict[Level, Embeddings] = {
        level: from_means(means[level], read(rows), replace(by_frame, level=level))
        for level, (_, rows) in grouped.items()
    }
    return made | ({"frame": by_frame} if "frame" in levels else {})

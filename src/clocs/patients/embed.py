"""Embedding a store or recordings, streaming: signals -> batches -> vectors -> their means.

A few thousand frames are in memory at a time, whatever the size of the store. The vectors are those
that `clocs.training.embed` makes of frames in memory, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypedDict, Unpack

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs.datasets.checks import check_signal
from clocs.errors import CheckpointError, ClocsError, SettingError
from clocs.frames.make import FramePlan, plan_frames
from clocs.frames.positions import frame_count
from clocs.frames.resample import LONG, TOGETHER, cut_windows
from clocs.frames.splits import PARTS
from clocs.parallel import ahead, alike
from clocs.patients.embeddings import Embeddings, from_means
from clocs.patients.frame_rows import file_row, frame_rows, rows_of_files
from clocs.patients.means import Means, group_rows, lengths
from clocs.patients.rows import Level, check_level
from clocs.recording import FrameSpec, Recording, canonical_lead
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import AT_ONCE
from clocs.training.signals import Signals

_AHEAD = 4  # times `TOGETHER` recordings cut before they are encoded
_FEWEST = 16  # a smaller batch is filled up: matrix products of a single row round differently

Given: TypeAlias = Recording | tuple[str, ClocsError]  # or its name and what is wrong with it


def frame_of(checkpoint: Checkpoint, seconds: float | None) -> FrameSpec:
    """The checkpoint's frame, or one of so many seconds as the encoder would see it."""
    if seconds is None:
        return checkpoint.card.frame
    if not 0 < seconds < math.inf:
        raise SettingError(f"--frame is {seconds:g}; give the seconds of a frame, such as 5")
    return FrameSpec(seconds, checkpoint.encoder.samples)


class Options(TypedDict, total=False):
    """The keyword arguments that `embed_levels` and `embed_store` share."""

    spec: FrameSpec | None
    leads: Sequence[str] | None
    split: str | None
    only: NDArray[np.bool_] | None
    split_seed: int
    device: torch.device | str
    progress: Callable[[int, int], None]


def embed_store(
    checkpoint: Checkpoint, store: Store, *, level: Level = "patient", **options: Unpack[Options]
) -> Embeddings:
    """Embeddings of a store's recordings, or of those of one part, at one level."""
    return embed_levels(checkpoint, store, levels=[level], **options)[level]


def embed_levels(
    checkpoint: Checkpoint,
    store: Store,
    *,
    levels: Sequence[Level],
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
    split: str | None = None,
    only: NDArray[np.bool_] | None = None,
    split_seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Level, Embeddings]:
    """Embeddings of a store's recordings, or of those of one part, at several levels in one pass.

    Args:
        checkpoint: The encoder.
        store: Prepared recordings.
        levels: What a vector stands for.
        spec: The frame; the dataset's own where None.
        leads: By name; the checkpoint's where the store has them, else the store's default.
        split: Only this part: 'train', 'validation' or 'test'.
        only: (recordings of the store,) which may be used.
        split_seed: Of the split by patient.
        device: Where to encode.
        progress: Called with (recordings done, recordings in all).
    """
    for level in levels:
        check_level(level)
    if leads is None and set(checkpoint.card.leads) <= set(store.leads):
        leads = checkpoint.card.leads
    plan = plan_frames(store, spec=spec, leads=leads, split_seed=split_seed)
    chosen = _recordings_of(plan, split, only)
    frames = frame_rows(plan, chosen)

    def windows() -> Iterator[NDArray[np.int16]]:
        kept = plan.kept
        first = np.concatenate(([0], np.cumsum(plan.counts)))
        for done, (i, values, _) in enumerate(plan.windows(chosen), start=1):
            own = values.transpose(1, 0, 2)[kept[first[i] : first[i + 1]]]
            yield own.reshape(-1, plan.spec.samples)
            progress(done, len(chosen))

    vectors = encoded(checkpoint, windows(), plan.spec.samples, device)
    return _collect(
        checkpoint,
        vectors,
        frames,
        levels,
        _left_out(plan, split is None and only is None, len(chosen)),
        plan.spec,
    )


def embed_recordings(
    checkpoint: Checkpoint,
    recordings: Iterable[Given],
    *,
    level: Level = "recording",
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] = lambda done: None,
) -> Embeddings:
    """Embeddings of recordings that belong to no store, by the checkpoint's frame or another.

    A recording that cannot be embedded (too short, without the leads) is named in `problems`, as is
    one that comes as its name and what is wrong with it.
    """
    check_level(level)
    frame = spec or checkpoint.card.frame
    wanted = tuple(map(canonical_lead, leads or checkpoint.card.leads))
    told: list[dict[str, object]] = []  # one a recording
    counts: list[int] = []  # its frames
    problems: list[tuple[str, str]] = []

    def windows() -> Iterator[NDArray[np.int16]]:
        done = 0
        runs = alike(recordings, _shape, TOGETHER)
        for made in ahead(lambda run: _cut(run, frame, wanted), runs, _AHEAD):
            done += len(made)
            progress(done)
            for one, values in made:
                if isinstance(one, str) or isinstance(values, str):
                    problems.append((str(one), str(values)))
                    continue
                told.append(file_row(one))
                counts.append(len(values))
                yield values.reshape(-1, frame.samples)

    parts = list(encoded(checkpoint, windows(), frame.samples, device))
    rows = rows_of_files(told, counts, wanted)
    return _collect(checkpoint, parts, rows, [level], problems, frame)[level]


def _shape(one: Given) -> object:
    """Recordings of equal shape are cut together, unless they are long."""
    if not isinstance(one, Recording):
        return None
    return one.rate, one.samples, one.id if one.samples > LONG else ""


def _cut(
    run: list[Given], spec: FrameSpec, leads: Sequence[str]
) -> list[tuple[Recording, NDArray[np.int16]] | tuple[str, str]]:
    """(frames, leads, samples) of each recording, resampled; or its name and why not."""
    made: list[tuple[Recording, NDArray[np.int16]] | tuple[str, str]] = []
    sound: list[tuple[int, Recording]] = []
    for one in run:
        if not isinstance(one, Recording):
            made.append((one[0], str(one[1])))
            continue
        try:
            sound.append((len(made), _usable(one, spec, leads)))
            made.append((one, np.zeros(0, np.int16)))
        except ClocsError as error:
            made.append((one.id, str(error)))
    if sound:
        own = [recording for _, recording in sound]
        values, _ = cut_windows(
            np.stack([one.digital for one in own]),
            np.stack([one.gain for one in own]),
            np.stack([one.baseline for one in own]).astype(np.int64),
            own[0].rate,
            int(frame_count(own[0].samples, own[0].rate, spec)),
            spec,
            "recording",
        )
        for (place, _), windows in zip(sound, values, strict=True):
            whole = run[place]
            assert isinstance(whole, Recording)
            made[place] = (whole, windows.transpose(1, 0, 2))
    return made


def _usable(recording: Recording, spec: FrameSpec, leads: Sequence[str]) -> Recording:
    """The recording with these leads; ClocsError says why not."""
    missing = [lead for lead in leads if lead not in recording.leads]
    if missing:
        raise SettingError(
            f"{recording.id} has the leads {', '.join(recording.leads)}, but {', '.join(leads)} "
            "are needed; name others with --leads"
        )
    own = recording.select(leads)
    check_signal(own, frame=spec, known_leads=own.leads)
    return own


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
            f"this encoder sees frames of {encoder.samples} samples, not {samples}"
        )
    weights, buffers = (
        {k: v.to(device) for k, v in tensors.items()}
        for tensors in (checkpoint.weights, checkpoint.buffers)
    )
    for batch, size in _batches(windows, samples):
        flat = torch.from_numpy(batch.reshape(-1)).to(device)
        starts = torch.arange(len(batch), device=flat.device) * samples
        x = Signals(flat, samples).normalised(starts)
        z: NDArray[np.float32] = encoder.encode(weights, buffers, x[None])[0, :size].cpu().numpy()
        if not np.isfinite(z).all():
            raise CheckpointError(
                "this encoder gives vectors that are not finite; its training has diverged"
            )
        yield z


def _batches(
    windows: Iterable[NDArray[np.int16]], samples: int
) -> Iterator[tuple[NDArray[np.int16], int]]:
    """Batches of `AT_ONCE`, the last of what is left, and how many of a batch count."""
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


def _collect(
    checkpoint: Checkpoint,
    vectors: Iterable[NDArray[np.float32]],
    frames: pl.DataFrame,
    levels: Sequence[Level],
    problems: Sequence[tuple[str, str]],
    spec: FrameSpec,
) -> dict[Level, Embeddings]:
    """Vectors of frames as they come -> embeddings of each level."""
    encoder, dim = checkpoint.fingerprint, checkpoint.encoder.embedding_dim
    grouped = {level: group_rows(frames, level) for level in levels if level != "frame"}
    means = {level: Means(rows.height, dim) for level, (_, rows) in grouped.items()}
    single = np.empty((frames.height if "frame" in levels else 0, dim), np.float32)
    start = 0
    for part in vectors:
        some = slice(start, start + len(part))
        for level, (group, _) in grouped.items():
            means[level].add(group[some], part)
        if "frame" in levels:
            single[some] = part
        start += len(part)
    told = tuple(problems)
    made: dict[Level, Embeddings] = {
        level: from_means(means[level], rows, level, encoder, told, spec.seconds)
        for level, (_, rows) in grouped.items()
    }
    if "frame" in levels:
        alive = lengths(single) > 0
        rows = frames.with_columns(pl.Series("views", alive.astype(np.int32)))
        dead = int((~alive).sum())
        made["frame"] = Embeddings(single, rows, "frame", encoder, (), dead, told, spec.seconds)
    return made


def _recordings_of(
    plan: FramePlan, split: str | None, only: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """Recordings with a frame, of one part or of all."""
    has = np.zeros(len(plan.rows), bool)
    has[plan.cuts.recording[plan.kept]] = True
    if split is not None:
        if split not in PARTS:
            raise SettingError(f"there is no part {split!r}; choose one of {', '.join(PARTS)}")
        has &= plan.split[plan.patient] == PARTS.index(split)
    if only is not None:
        has &= only[plan.rows]
    return np.flatnonzero(has)


def _left_out(plan: FramePlan, whole: bool, used: int) -> list[tuple[str, str]]:
    """What of a whole store has no vector, in words."""
    left = len(plan.store) - used
    if not whole or not left:
        return []
    words = (
        f"{left} of {len(plan.store)} recordings have no frame of {plan.spec.seconds:g} s in all "
        f"of {', '.join(plan.leads)} and are left out"
    )
    return [(plan.store.path.name, words)]

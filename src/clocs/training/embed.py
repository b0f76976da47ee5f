"""Embeddings of frames, in evaluation mode, and those of a store's frames, computed once.

    STORE/vectors/KEY/….safetensors     vectors of some rows by one encoder

A key stands for everything that vectors depend on: the store's content, the frames and leads, the
encoder, the kind of device and the versions of clocs and torch. Files of a key are only ever added,
each complete or not at all, so several processes may write at once. Where the store cannot be
written to, the cache folder takes its place. Deleting the folder is safe at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs._version import __version__
from clocs.encoders.base import Weights
from clocs.errors import CheckpointError, ClocsError, SettingError, warn
from clocs.files import cache_folder, folder_sizes, private_folder, write_beside
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.views import Instances
from clocs.recording import FrameSpec
from clocs.sealed import ArrayFile
from clocs.store.manifest import VECTORS
from clocs.training.checkpoint import Checkpoint, expect_finite, expect_unit
from clocs.training.signals import Signals, free_memory

if TYPE_CHECKING:
    from clocs.frames.make import FramePlan
    from clocs.store.store import Store

AT_ONCE = 2048  # views encoded at a time, over all members
# Smaller batches are padded: matrix products of a few rows round differently. Windows of many
# leads, of which two are enough, cost a hundred times as much.
MIN_ROWS, MIN_ROWS_OF_MANY_LEADS = 16, 2
MAX_BYTES = 4 << 30  # of all vectors of a store; those not used for longest are deleted
_OF_FREE = 10  # and at most a tenth of the disk's free space
_PIECE = 1 << 26  # bytes of vectors in a file
_FILE = ArrayFile("a file of vectors", key="clocs.vectors", format=3, remedy="delete it")


def stack(checkpoints: Sequence[Checkpoint]) -> tuple[Weights, Weights]:
    """The weights and buffers of checkpoints of one encoder, (members, …) each."""
    kinds = [(one.card.encoder, one.card.normalization) for one in checkpoints]
    for kind in kinds:
        if kind != kinds[0]:
            raise CheckpointError(
                f"different encoders cannot be used at once: {kinds[0]} and {kind}"
            )
    weights = {k: torch.cat([c.weights[k] for c in checkpoints]) for k in checkpoints[0].weights}
    buffers = {k: torch.cat([c.buffers[k] for c in checkpoints]) for k in checkpoints[0].buffers}
    return weights, buffers


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
    expect_unit(checkpoints[0], frames.unit, frames.dataset)
    signals = Signals.from_frames(frames, device, windows=size * each)
    starts = torch.from_numpy(rows.in_view())
    scales = torch.from_numpy(rows.scale_in_view()).to(device).split(size)
    fewest = MIN_ROWS_OF_MANY_LEADS if encoder.leads else MIN_ROWS
    for some, scale in zip(signals.staged(starts.split(size)), scales, strict=True):
        x = signals.as_input(checkpoints[0].card, some, scale)
        x = x.expand(len(checkpoints), *x.shape[-3 if encoder.leads else -2 :])
        if len(some) < fewest:
            x = torch.cat([x, x[:, -1:].expand(-1, fewest - len(some), *x.shape[2:])], dim=1)
        yield getattr(encoder, what)(weights, buffers, x)[:, : len(some)]


class StoreVectors:
    """Vectors of the frames of one store, cut in one way, by any encoder.

    Rows are the frames × leads that have a signal, in order; for an encoder of many leads at once,
    the frames.
    """

    def __init__(
        self,
        store: Store,
        spec: FrameSpec,
        leads: Sequence[str],
        recording: NDArray[np.integer],
        segment: NDArray[np.integer],
        present: NDArray[np.bool_],
        signals: NDArray[np.int16] | None = None,
    ) -> None:
        """Frames in order.

        Args:
            store: Which they are of.
            spec: Of the frames.
            leads: Names.
            recording: (frames,).
            segment: (frames,) position in the recording.
            present: (frames, leads) which have a signal.
            signals: Of the frames, where they are in memory.
        """
        self.present = present
        self._spec, self._leads, self._signals = spec, tuple(leads), signals
        digest = hashlib.blake2b(digest_size=16)
        for array in (recording.astype(np.int64), segment.astype(np.int64), present):
            digest.update(array.tobytes())
        about = store.manifest.content_hash, store.manifest.resample
        self._about = [*about, json.dumps(spec.to_dict()), digest.hexdigest()]
        self._folders = [store.path / VECTORS, cache_folder() / VECTORS]

    @classmethod
    def of_frames(cls, store: Store, frames: Frames) -> StoreVectors:
        """Those of frames that were just made of a store, in memory."""
        own = frames.recording, frames.segment, frames.present, frames.signals
        return cls(store, frames.spec, frames.leads, *own)

    @classmethod
    def of_plan(cls, plan: FramePlan) -> StoreVectors:
        """Those of the frames of a `FramePlan`."""
        kept = plan.kept
        own = plan.cuts.recording[kept], plan.cuts.frame[kept], plan.present[kept]
        return cls(plan.store, plan.spec, plan.leads, *own)

    def numbers(self, frames: Frames, rows: Instances) -> NDArray[np.int64] | None:
        """(rows,) their numbers; None where they are not the store's frames without a change.

        Noise makes other signals, and tests through some leads alone other rows.
        """
        same = frames.signals is self._signals and frames.spec == self._spec
        same &= len(frames) == len(self.present)
        if rows.leads_at_once:
            seen = (rows.in_view() != ABSENT).sum(axis=1)
            same = same and np.array_equal(seen, self.present[rows.frame].sum(axis=1))
            return rows.frame if same else None
        number = np.cumsum(self.present.ravel()).reshape(self.present.shape) - 1
        same &= frames.leads == self._leads
        return np.asarray(number[rows.frame, rows.lead], np.int64) if same else None

    def by(self, checkpoint: Checkpoint, device: torch.device | str) -> EncoderVectors:
        """What is known of an encoder's vectors."""
        card, at_once = checkpoint.card, bool(checkpoint.encoder.leads)
        present = self.present.any(axis=1, keepdims=True) if at_once else self.present
        leads = sorted(self._leads) if at_once else self._leads
        about = [
            *self._about,
            ",".join(leads),
            checkpoint.fingerprint,
            json.dumps(card.encoder, sort_keys=True),
            card.normalization,
            torch.device(device).type,
            f"{__version__} {torch.__version__} {_FILE.format}",
        ]
        key = hashlib.blake2b("\0".join(about).encode(), digest_size=12).hexdigest()
        folders = self._folders if checkpoint.keeps_vectors else []
        return EncoderVectors(folders, key, int(present.sum()), checkpoint.encoder.embedding_dim)


class EncoderVectors:
    """Vectors of a store's frames by one encoder, as far as they are known.

    Attributes:
        known: (rows,) which are.
        dim: Numbers of a vector.
    """

    def __init__(self, folders: Sequence[Path], key: str, rows: int, dim: int) -> None:
        self.known, self.dim = np.zeros(rows, np.bool_), dim
        self._folders, self._key = folders, key
        self._piece, self._place = np.zeros(rows, np.int32), np.zeros(rows, np.int64)
        self._pieces: list[NDArray[np.float32]] = []
        self._new: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
        for folder in folders:
            for path in sorted((folder / key).glob("*.safetensors")):
                self._open(path)
            with suppress(OSError):
                os.utime(folder / key)  # used just now

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, dim) of known rows."""
        made = np.empty((len(rows), self.dim), np.float32)
        for number in np.unique(self._piece[rows]):
            own = self._piece[rows] == number
            made[own] = self._pieces[number][self._place[rows[own]]]
        return made

    def add(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Keep new vectors, (n, dim); on disk after the next `flush`, or when there are many."""
        if self._folders and np.isfinite(vectors).all():
            self._new.append((rows, vectors))
            if sum(one.nbytes for _, one in self._new) >= _PIECE:
                self.flush()

    def flush(self) -> None:
        """Write what was added."""
        if not self._new:
            return
        rows, vectors = (np.concatenate(part) for part in zip(*self._new, strict=True))
        self._new.clear()
        name = hashlib.blake2b(rows.tobytes(), digest_size=12).hexdigest()

        def write(folder: Path) -> None:
            if _make_room(folder, vectors.nbytes, self._key):
                private_folder(folder / self._key)
                file = folder / self._key / f"{name}.safetensors"
                _FILE.write(file, {}, {"rows": rows, "vectors": vectors})

        write_beside(self._folders, write)

    def _open(self, path: Path) -> None:
        """Read and check a file; one that is damaged is deleted, and its vectors made again."""
        try:
            arrays = _FILE.read(path)[1]
            rows = arrays["rows"]
            if arrays["vectors"].shape != (len(rows), self.dim) or rows.dtype != np.int64:
                raise ValueError("its vectors are of other rows")
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(self.known):
                raise ValueError("its rows are of other frames")
            vectors = _mapped(path, arrays["vectors"])
        except (ClocsError, ValueError, KeyError, TypeError) as error:
            if path.exists():  # not deleted by another process since
                warn(f"{path} holds vectors that cannot be used and are computed again ({error})")
                with suppress(OSError):
                    path.unlink()
            return
        self.known[rows] = True
        self._piece[rows], self._place[rows] = len(self._pieces), np.arange(len(rows))
        self._pieces.append(vectors)


def filled(
    each: Sequence[EncoderVectors],
    rows: NDArray[np.int64],
    encode: Callable[[list[int], NDArray[np.bool_]], Iterator[NDArray[np.float32]]],
    size: int,
) -> Iterator[NDArray[np.float32]]:
    """The vectors of rows, (encoders, some, dim) at a time; those not known are encoded and kept.

    Args:
        each: One per encoder, of the same frames.
        rows: Their numbers, in order.
        encode: Called with the places in `each` of encoders and (rows,) which rows are missing;
            yields (encoders, some, dim) of the missing rows, in order.
        size: Rows at a time.
    """
    missing = [~one.known[rows] for one in each]
    members = [member for member, own in enumerate(missing) if own.any()]
    unknown = np.logical_or.reduce([missing[member] for member in members], axis=0)
    unknown = np.broadcast_to(unknown, rows.shape)
    take = _taker(encode(members, unknown)) if members else None
    try:
        for start in range(0, len(rows), size):
            some, new = rows[start : start + size], unknown[start : start + size]
            z = np.empty((len(each), len(some), each[0].dim), np.float32)
            for member, one in enumerate(each):
                old = ~new if member in members else np.ones(len(some), np.bool_)
                z[member, old] = one.read(some[old])
            if take is not None and new.any():
                for member, made in zip(members, take(int(new.sum())), strict=True):
                    z[member, new] = made
                    each[member].add(some[new], made)
            yield z
    finally:
        for one in each:
            one.flush()


def _taker(
    pieces: Iterator[NDArray[np.float32]],
) -> Callable[[int], NDArray[np.float32]]:
    """Pieces of (encoders, some, dim) -> a function that returns the next so many of them."""
    waiting: list[NDArray[np.float32]] = []

    def take(count: int) -> NDArray[np.float32]:
        while sum(one.shape[1] for one in waiting) < count:
            waiting.append(next(pieces))
        whole = np.concatenate(waiting, axis=1)
        waiting[:] = [whole[:, count:]]
        return whole[:, :count]

    return take


def _mapped(path: Path, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The vectors of a file as they were read, without memory for them."""
    if not vectors.size:
        return vectors
    offset = path.stat().st_size - vectors.nbytes  # the only array is the last of a file
    return np.memmap(path, np.float32, "r", offset, vectors.shape)


def _make_room(folder: Path, needed: int, key: str) -> bool:
    """Delete vectors of other keys that were not used for longest; whether there is room then."""
    sizes = folder_sizes(folder)
    total = sum(sizes.values())
    most = min(MAX_BYTES, total + shutil.disk_usage(folder).free // _OF_FREE)
    for other, size in sizes.items():
        if total + needed <= most:
            break
        if other.name != key:
            shutil.rmtree(other, ignore_errors=True)
            total -= size
    return total + needed <= most

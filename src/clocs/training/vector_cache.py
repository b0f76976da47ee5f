"""Vectors of a store's frames, computed once: kept beside the store, for every command.

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
import warnings
import zlib
from base64 import b85decode, b85encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clocs._version import __version__
from clocs.errors import ClocsError, ClocsWarning
from clocs.files import cache_folder, private_cache, private_folder
from clocs.frames.frames import ABSENT, Frames
from clocs.recording import FrameSpec
from clocs.sealed import ArrayFile
from clocs.store.manifest import VECTORS

if TYPE_CHECKING:
    import torch

    from clocs.frames.make import FramePlan
    from clocs.frames.views import Instances
    from clocs.store.store import Store
    from clocs.training.checkpoint import Checkpoint

MAX_BYTES = 4 << 30  # of all vectors of a store; those not used for longest are deleted
_OF_FREE = 10  # and at most a tenth of the disk's free space
_PIECE = 1 << 26  # bytes of vectors in a file
_FILE = ArrayFile("a file of vectors", key="clocs.vectors", format=1, remedy="delete it")


class StoreVectors:
    """Vectors of the frames of one store, cut in one way, by any encoder.

    Rows are the frames × leads that have a signal, in order; for an encoder of many leads at once,
    the frames.
    """

    def __init__(
        self,
        store: Path,
        *about: object,
        spec: FrameSpec,
        leads: Sequence[str],
        recording: NDArray[np.integer],
        segment: NDArray[np.integer],
        present: NDArray[np.bool_],
        signals: NDArray[np.int16] | None = None,
    ) -> None:
        """Frames in order.

        Args:
            store: Its folder.
            about: The store's content, and whatever else decides how frames are cut.
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
        for array in (recording.astype(np.int64), segment.astype(np.int64)):
            digest.update(array.tobytes())
        self._about = [*map(str, about), json.dumps(spec.to_dict()), digest.hexdigest()]
        self._folders = [store / VECTORS, cache_folder() / VECTORS]

    @classmethod
    def of_frames(cls, store: Store, frames: Frames) -> StoreVectors:
        """Those of frames that were just made of a store, in memory."""
        return cls(
            store.path,
            frames.content,
            store.manifest.resample,
            spec=frames.spec,
            leads=frames.leads,
            recording=frames.recording,
            segment=frames.segment,
            present=frames.present,
            signals=frames.signals,
        )

    @classmethod
    def of_plan(cls, plan: FramePlan) -> StoreVectors:
        """Those of the frames of a `FramePlan`."""
        return cls(
            plan.store.path,
            plan.store.manifest.content_hash,
            plan.store.manifest.resample,
            spec=plan.spec,
            leads=plan.leads,
            recording=plan.cuts.recording[plan.kept],
            segment=plan.cuts.frame[plan.kept],
            present=plan.present[plan.kept],
        )

    def numbers(self, frames: Frames, rows: Instances) -> NDArray[np.int64] | None:
        """(rows,) their numbers; None where they are not the store's frames without a change.

        Noise makes other signals, and tests through some leads alone other rows.
        """
        if frames.signals is not self._signals or frames.spec != self._spec:
            return None
        if len(frames) != len(self.present):
            return None
        if not rows.leads_at_once:
            if frames.leads != self._leads:
                return None
            number = np.cumsum(self.present.ravel()).reshape(self.present.shape) - 1
            return np.asarray(number[rows.frame, rows.lead], np.int64)
        seen = (rows.in_view() != ABSENT).sum(axis=1)
        return rows.frame if np.array_equal(seen, self.present[rows.frame].sum(axis=1)) else None

    def by(self, checkpoint: Checkpoint, device: torch.device | str) -> EncoderVectors:
        """What is known of an encoder's vectors."""
        import torch  # here, because `clocs info` needs none

        card, at_once = checkpoint.card, bool(checkpoint.encoder.leads)
        present = self.present.any(axis=1, keepdims=True) if at_once else self.present
        leads = sorted(self._leads) if at_once else self._leads
        about = [
            *self._about,
            hashlib.blake2b(self.present.tobytes(), digest_size=16).hexdigest(),
            ",".join(leads),
            checkpoint.fingerprint,
            json.dumps(card.encoder, sort_keys=True),
            f"{card.input_offset} {card.in_mv} {card.standardized}",
            torch.device(device).type,
            f"{__version__} {torch.__version__}",
        ]
        key = hashlib.blake2b("\0".join(about).encode(), digest_size=12).hexdigest()
        dim, usual = checkpoint.encoder.embedding_dim, torch.float32
        folders = self._folders
        if any(tensor.dtype != usual for tensor in checkpoint.weights.values()):
            folders = []
        return EncoderVectors(folders, key, int(present.sum()), dim)


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
        mask = np.zeros(len(self.known), np.bool_)
        mask[rows] = True
        packed = zlib.compress(np.packbits(mask).tobytes())
        name = hashlib.blake2b(packed, digest_size=12).hexdigest()
        order = {"rows": b85encode(packed).decode()}
        for folder in self._folders:
            try:
                _make_folder(folder)
                if not _make_room(folder, vectors.nbytes, self._key):
                    return
                private_folder(folder / self._key)
                arrays = {"vectors": vectors[np.argsort(rows)]}
                _FILE.write(folder / self._key / f"{name}.safetensors", order, arrays)
            except (OSError, ClocsError):  # it cannot be written to
                continue
            return

    def _open(self, path: Path) -> None:
        """Read and check a file; one that is damaged is deleted, and its vectors made again."""
        try:
            facts, arrays = _FILE.read(path)
            unpack, most = zlib.decompressobj(), len(self.known) // 8 + 1  # bytes
            bits = np.frombuffer(unpack.decompress(b85decode(facts["rows"]), most), np.uint8)
            rows = np.flatnonzero(np.unpackbits(bits)[: len(self.known)])
            if arrays["vectors"].shape != (len(rows), self.dim):
                raise ValueError("its vectors are of other rows")
            vectors = _mapped(path, arrays["vectors"])
        except (ClocsError, ValueError, KeyError, TypeError, zlib.error) as error:
            if path.exists():  # not deleted by another process since
                warnings.warn(
                    f"{path} holds vectors that cannot be used and are computed again ({error})",
                    ClocsWarning,
                    stacklevel=2,
                )
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


def kept_of(store: Path) -> dict[str, str | int]:
    """Where a store's vectors lie, of how many encoders and frames they are, and their bytes."""
    sizes = _sizes(store / VECTORS)
    return {"folder": str(store / VECTORS), "kinds": len(sizes), "bytes": sum(sizes.values())}


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


def _sizes(folder: Path) -> dict[Path, int]:
    """Bytes of each key, the one not used for longest first."""
    found: list[tuple[float, Path, int]] = []
    with suppress(OSError):
        for key in (one for one in folder.iterdir() if one.is_dir()):
            with suppress(OSError):  # another process deletes it
                size = sum(file.stat().st_size for file in key.iterdir())
                found.append((key.stat().st_mtime, key, size))
    return {key: size for _, key, size in sorted(found)}


def _make_folder(folder: Path) -> None:
    """Make a private folder, in a store that is still there or in the cache folder."""
    if folder.parent == cache_folder():
        private_cache(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def _make_room(folder: Path, needed: int, key: str) -> bool:
    """Delete vectors of other keys that were not used for longest; whether there is room then."""
    sizes = _sizes(folder)
    total = sum(sizes.values())
    most = min(MAX_BYTES, total + shutil.disk_usage(folder).free // _OF_FREE)
    for other, size in sizes.items():
        if total + needed <= most:
            break
        if other.name != key:
            shutil.rmtree(other, ignore_errors=True)
            total -= size
    return total + needed <= most

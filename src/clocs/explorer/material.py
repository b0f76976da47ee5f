"""Material: what the explorer shows, computed once and cached: embeddings and their distances.

The only part of the room that encodes a store. Knows nothing about pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import CheckpointError, ClocsError, SettingError
from clocs.explorer.packing import pack, unpack
from clocs.files import sha256_of, write_atomic
from clocs.patients.embeddings import Embeddings, joined
from clocs.recording import FrameSpec
from clocs.store.store import Store

Progress = Callable[[int, int], None]
_FORMAT = 3  # of what is kept in the cache
_PAIRS = 20_000  # of different patients that are compared
_BINS = (24, 60)  # for few distances, and for many
_NONE = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Distances:
    """Euclidean distances of unit vectors, so that a distance on the page has a measure.

    Attributes:
        intra: Between the two halves of one patient's recordings; may be empty.
        inter: Between halves of two patients' recordings.
        words: What was compared, for a person.
    """

    intra: NDArray[np.float32]
    inter: NDArray[np.float32]
    words: str

    @property
    def separability(self) -> float | None:
        """The probability that an intra-patient distance is the smaller one."""
        return share_below(self.intra, self.inter)

    def histogram(self) -> dict[str, Any]:
        """Both as densities over common bins, with their means."""
        both = {"intra": self.intra, "inter": self.inter}
        known = [x for x in both.values() if len(x)]
        top = 1.02 * max((float(x.max()) for x in known), default=1.0)
        few = min((len(x) for x in known), default=0) < 1000
        edges = np.linspace(0, top, _BINS[0 if few else 1] + 1)
        density = {
            name: np.histogram(x, edges, density=True)[0].round(5).tolist() if len(x) else []
            for name, x in both.items()
        }
        means = {f"{name}_mean": float(x.mean()) if len(x) else None for name, x in both.items()}
        facts = {"edges": edges.round(5).tolist(), "words": self.words}
        return facts | {"separability": self.separability} | density | means


def share_below(one: NDArray[np.floating], other: NDArray[np.floating]) -> float | None:
    """The probability that a value of one lies below a value of the other, ties counting half."""
    if not len(one) or not len(other):
        return None
    ordered = np.sort(other)
    below = sum(np.searchsorted(ordered, one, side).mean() for side in ("left", "right"))
    return float(1 - below / (2 * len(other)))


def embed_all(
    checkpoint: Path,
    stores: Sequence[Store],
    cache: Path,
    *,
    split_seed: int = 0,
    progress: Callable[[Store], Progress] = lambda store: lambda done, total: None,
) -> tuple[Embeddings, Distances]:
    """Patients of all stores, and how far halves of the held-out ones lie apart; from the cache.

    Args:
        checkpoint: The encoder's file; it is read only where something must be encoded.
        stores: Prepared recordings.
        cache: Where results of earlier calls lie.
        split_seed: Of the split by patient.
        progress: For each store that must be encoded, what is told (recordings done, in all).
    """
    expect_file(checkpoint)
    encoder = sha256_of(checkpoint)
    lasting = np.concatenate([store.table["samples"] / store.table["rate"] for store in stores])
    half = float(np.median(lasting)) / 2
    parts, halves = [], []
    for store in stores:
        key = hashlib.blake2b(digest_size=12)
        for word in (_FORMAT, encoder, store.manifest.content_hash, split_seed, half):
            key.update(f"{word}\0".encode())
        patients = cache / f"patients-{key.hexdigest()}.parquet"
        apart = cache / f"halves-{key.hexdigest()}.clocs"
        kept = _kept(patients, apart)
        if kept is None:
            cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            embedded, two = _embed(checkpoint, store, half, split_seed, progress(store))
            write_atomic(apart, pack({}, {"halves": two}))
            embedded.save(patients)
            kept = embedded, two
        parts.append(kept[0])
        halves.append(kept[1])
    return joined(parts), half_distances(np.concatenate(halves))


def expect_file(checkpoint: Path) -> None:
    """CheckpointError where there is none."""
    if not checkpoint.is_file():
        raise CheckpointError(
            f"{checkpoint} does not exist; give a checkpoint made by `clocs pretrain`"
        )


def _kept(patients: Path, apart: Path) -> tuple[Embeddings, NDArray[np.float32]] | None:
    """What an earlier call wrote; None where it is missing, damaged or of another version."""
    try:
        halves = np.asarray(unpack(apart.read_bytes())[1]["halves"], np.float32)
        return Embeddings.load(patients), halves
    except (ClocsError, OSError, ValueError, KeyError, TypeError):
        return None


def _embed(
    checkpoint: Path, store: Store, half: float, split_seed: int, progress: Progress
) -> tuple[Embeddings, NDArray[np.float32]]:
    """All stores are cut alike, as uploads are: vectors of different frames cannot be compared.

    half: Seconds that most recordings have twice; frames of that length, or the checkpoint's where
    it is shorter, make the halves.
    """
    from clocs.patients.embed import embed_store
    from clocs.training.checkpoint import load_checkpoint

    loaded = load_checkpoint(checkpoint)
    frame = loaded.card.frame
    everybody = embed_store(
        loaded, store, level="patient", spec=frame, split_seed=split_seed, progress=progress
    )
    try:
        frames = embed_store(
            loaded,
            store,
            level="frame",
            spec=FrameSpec(min(half, frame.seconds), frame.samples),
            split="test",
            split_seed=split_seed,
        )
    except SettingError:  # nobody's recordings are long enough for two frames
        return everybody, np.zeros((0, 2, everybody.dim), np.float32)
    return everybody, halves_of(frames)


def halves_of(frames: Embeddings) -> NDArray[np.float32]:
    """(patients, 2, dim): each patient's frames in order, the mean of either half, unit vectors.

    Patients with a single frame have no halves and are left out.
    """
    length = np.linalg.norm(frames.vectors, axis=1)
    table = (
        frames.rows.select("dataset", "patient", "recording", "segment")
        .with_row_index("row")
        .filter(pl.Series(length > 0))
        .with_columns(
            place=pl.struct("recording", "segment").rank("dense").over("dataset", "patient")
        )
        .with_columns(places=pl.col("place").max().over("dataset", "patient"))
        .filter(pl.col("places") > 1)
        .with_columns(half=(2 * (pl.col("place") - 1) >= pl.col("places")).cast(pl.Int32))
        .with_columns(number=pl.struct("dataset", "patient").rank("dense") - 1)
    )
    count = int(table["number"].n_unique())
    sums = np.zeros((count, 2, frames.dim), np.float64)
    rows = table["row"].to_numpy()
    at = (table["number"].to_numpy().astype(np.int64), table["half"].to_numpy())
    np.add.at(sums, at, frames.vectors[rows] / length[rows, None])
    norms = np.linalg.norm(sums, axis=2, keepdims=True)
    return np.asarray((sums / np.maximum(norms, 1e-12))[(norms > 0).all(axis=(1, 2))], np.float32)


def half_distances(halves: NDArray[np.float32]) -> Distances:
    """halves: (patients, 2, dim). Each patient against itself, and against others taken by lot."""
    if len(halves) < 2:
        return Distances(_NONE, _NONE, "")
    first, second = _pairs(len(halves))
    return Distances(
        np.linalg.norm(halves[:, 0] - halves[:, 1], axis=1),
        np.linalg.norm(halves[first, 0] - halves[second, 1], axis=1),
        f"halves of the recordings of {len(halves):,} held-out patients",
    )


def patient_distances(vectors: NDArray[np.float32]) -> Distances:
    """Between patients alone, where only their vectors are known."""
    if len(vectors) < 2:
        return Distances(_NONE, _NONE, "")
    first, second = _pairs(len(vectors))
    apart = np.linalg.norm(vectors[first] - vectors[second], axis=1)
    return Distances(_NONE, apart, f"pairs of {len(vectors):,} patients")


def _pairs(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of two different numbers below n, by lot, the same each time."""
    generator = np.random.default_rng(0)
    first = generator.integers(0, n, _PAIRS)
    return first, (first + generator.integers(1, n, _PAIRS)) % n

"""Embed all patients of the stores, once: the results are kept in the cache folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError
from clocs.explorer.reference_distances import ReferenceDistances, distances_of_halves
from clocs.files import private_cache, sha256_of
from clocs.patients.embeddings import Embeddings, joined, patient_halves
from clocs.recording import with_derived
from clocs.sealed import ArrayFile
from clocs.store.store import Store

_FORMAT = 6  # of the cached files
_HALVES = ArrayFile("cached halves", key="clocs.halves", format=_FORMAT, remedy="delete it")


def embed_stores(
    checkpoint: Path,
    stores: Sequence[Store],
    cache: Path,
    *,
    split_seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> tuple[Embeddings, ReferenceDistances]:
    """Patients of all stores, and the distances between halves of test patients' recordings.

    The encoder is loaded only if something must be encoded. Arguments as for `clocs.explore`.
    """
    # The card holds the encoder's frame and leads; the same weights may have another card.
    files = (checkpoint, checkpoint.with_suffix(".json"))
    encoder = [sha256_of(file) for file in files if file.is_file()]
    there = [with_derived(store.leads) for store in stores]
    leads = [lead for lead in there[0] if all(lead in one for one in there)]
    if not leads:
        raise SettingError(
            "the stores have no lead in common, so their patients cannot be compared; "
            "give stores with common leads"
        )
    lasting = np.concatenate([store.table["samples"] / store.table["rate"] for store in stores])
    half = float(np.median(lasting)) / 2
    parts, halves = [], []
    for store in stores:
        key = hashlib.blake2b(digest_size=12)
        for word in (_FORMAT, encoder, store.manifest.content_hash, split_seed, half, leads):
            key.update(f"{word}\0".encode())
        patients_file = cache / f"patients-{key.hexdigest()}.parquet"
        halves_file = cache / f"halves-{key.hexdigest()}.safetensors"
        cached = _cached(patients_file, halves_file)
        if cached is None:
            stage = f"Encoding {store.manifest.dataset}"
            progress(stage, 0, len(store))
            private_cache(cache)
            tick = partial(progress, stage)
            cached = _embed(checkpoint, store, leads, half, split_seed, tick)
            _HALVES.write(halves_file, {}, {"halves": cached[1]})
            cached[0].save(patients_file)
        parts.append(cached[0])
        halves.append(cached[1])
    return joined(parts), distances_of_halves(np.concatenate(halves))


def _cached(
    patients_file: Path, halves_file: Path
) -> tuple[Embeddings, NDArray[np.float32]] | None:
    """The results of an earlier call; None if missing, damaged or of another version."""
    try:
        return Embeddings.load(patients_file), _HALVES.read(halves_file)[1]["halves"]
    except ClocsError:
        return None


def _embed(
    checkpoint: Path,
    store: Store,
    available: Sequence[str],
    half: float,
    split_seed: int,
    progress: Callable[[int, int], None],
) -> tuple[Embeddings, NDArray[np.float32]]:
    """Patients, and (patients, 2, dim) halves of the test patients' recordings.

    All stores are cut into the checkpoint's frame, as uploads are: vectors of different frames are
    not comparable. For the same reason all use the same leads: those of the encoder that are
    `available` in every store. Halves are frames of `half` seconds, or of the checkpoint's frame if
    shorter.
    """
    from clocs.patients.embed import embed_levels
    from clocs.training.checkpoint import load_checkpoint

    encoder = load_checkpoint(checkpoint)
    frame, trained = encoder.card.frame, encoder.card.leads
    leads = [lead for lead in trained if lead in available] or list(available)
    embed = partial(embed_levels, encoder, store, leads=leads, split_seed=split_seed)
    patients = embed(levels=["patient"], spec=frame, progress=progress)["patient"]
    if set(leads) != set(trained):
        sentence = (
            f"embedded with {', '.join(leads)} because not every store has all leads that the "
            f"encoder was trained on ({', '.join(trained)})"
        )
        problems = (*patients.problems, (store.manifest.dataset, sentence))
        patients = replace(patients, problems=problems)
    halves = replace(frame, seconds=min(half, frame.seconds))
    try:
        frames = embed(levels=["frame"], spec=halves, split="test")["frame"]
    except SettingError:  # no recording is long enough for two frames
        return patients, np.zeros((0, 2, patients.dim), np.float32)
    return patients, patient_halves(frames)

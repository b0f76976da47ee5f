"""Patients of stores, and halves of their recordings, as the explorer compares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.explorer.reference_distances import ReferenceDistances, distances_of_halves
from clocs.patients.embeddings import Embeddings, joined, patient_halves
from clocs.recording import with_derived
from clocs.store.store import Store

if TYPE_CHECKING:
    from clocs.training.checkpoint import Checkpoint


def embed_stores(
    checkpoint: Path,
    stores: Sequence[Store],
    *,
    split_seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> tuple[Embeddings, ReferenceDistances]:
    """Patients of all stores, and the distances between halves of test patients' recordings.

    Arguments as for `clocs.explore`. Vectors that were computed before are read.
    """
    from clocs.training.checkpoint import load_checkpoint

    there = [with_derived(store.leads) for store in stores]
    leads = [lead for lead in there[0] if all(lead in one for one in there)]
    if not leads:
        raise SettingError(
            "the stores have no lead in common, so their patients cannot be compared; "
            "give stores with common leads"
        )
    lasting = np.concatenate([store.table["samples"] / store.table["rate"] for store in stores])
    half = float(np.median(lasting)) / 2
    encoder, parts, halves = load_checkpoint(checkpoint), [], []
    for store in stores:
        tick = partial(progress, f"Encoding {store.manifest.dataset}")
        tick(0, len(store))
        patients, own = _embed(encoder, store, leads, half, split_seed, tick)
        parts.append(patients)
        halves.append(own)
    return joined(parts), distances_of_halves(np.concatenate(halves))


def _embed(
    encoder: Checkpoint,
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

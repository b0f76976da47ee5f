"""Patients of stores, and reference distances that give the distance of a neighbor a scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation.metrics import auc
from clocs.patients.embeddings import Embeddings, joined, patient_halves
from clocs.recording import with_derived
from clocs.store.store import Store

_PAIRS = 20_000  # of different patients


@dataclass(frozen=True)
class ReferenceDistances:
    """Euclidean distances between unit vectors."""

    intra: NDArray[np.float32]  # between the two halves of one patient's recordings; may be empty
    inter: NDArray[np.float32]  # between halves of two patients' recordings
    description: str  # of what was compared, for the page

    @property
    def separability(self) -> float | None:
        """The probability that an intra-patient distance is the smaller one (AUC)."""
        value = auc(-self.intra, -self.inter)
        return None if math.isnan(value) else value

    def histogram(self) -> dict[str, Any]:
        """Both as densities over common bins, with their means."""
        both = {"intra": self.intra, "inter": self.inter}
        top = 1.02 * float(np.concatenate([*both.values()]).max(initial=0)) or 1.0
        edges = np.linspace(0, top, 25 if 0 < len(self.intra) < 1000 else 61)
        facts: dict[str, Any] = {"edges": edges.round(5).tolist(), "description": self.description}
        facts["separability"] = self.separability
        for name, x in both.items():
            density = np.histogram(x, edges, density=True)[0] if len(x) else np.zeros(0)
            facts |= {name: density.round(5).tolist()}
            facts |= {f"{name}_mean": float(x.mean()) if len(x) else None}
        return facts


def reference_distances(vectors: NDArray[np.float32]) -> ReferenceDistances:
    """Each patient against random others and, where there are two vectors of each, against itself.

    The order of the patients, which is that of their IDs, makes no difference.

    Args:
        vectors: (patients, dim), or (patients, 2, dim) of the halves of their recordings.
    """
    n, empty = len(vectors), np.zeros(0, np.float32)
    if n < 2:
        return ReferenceDistances(empty, empty, "")
    halves = vectors if vectors.ndim == 3 else np.stack([vectors, vectors], axis=1)
    halves = halves[np.lexsort(halves[:, 0].T)]
    generator = np.random.default_rng(0)
    first = generator.integers(0, n, _PAIRS)
    second = (first + generator.integers(1, n, _PAIRS)) % n
    inter = np.linalg.norm(halves[first, 0] - halves[second, 1], axis=1)
    if vectors.ndim == 2:
        return ReferenceDistances(empty, inter, f"between pairs of {n:,} patients")
    intra = np.linalg.norm(halves[:, 0] - halves[:, 1], axis=1)
    words = f"between halves of the recordings of {n:,} test patients"
    return ReferenceDistances(intra, inter, words)


def embed_stores(
    checkpoint: Path,
    stores: Sequence[Store],
    *,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> tuple[Embeddings, ReferenceDistances]:
    """Patients of all stores, and the distances between halves of test patients' recordings.

    All stores are cut into the checkpoint's frame, as uploads are: vectors of different frames are
    not comparable. For the same reason all use the same leads: those of the encoder that every
    store has. Halves are frames of half a recording's median length, or of the checkpoint's frame
    if shorter. Vectors that were computed before are read.
    """
    from clocs.patients.embed import embed_levels
    from clocs.patients.encode import known_leads
    from clocs.training.checkpoint import load_checkpoint

    common = set.intersection(*(set(with_derived(store.leads)) for store in stores))
    if not common:
        raise SettingError(
            "the stores have no lead in common, so their patients cannot be compared; "
            "give stores with common leads"
        )
    encoder = load_checkpoint(checkpoint)
    frame, trained = encoder.card.frame, encoder.card.leads
    leads = [lead for lead in trained if lead in common]
    if not leads and known_leads(encoder):  # a single lead without a name takes the place of one
        leads = list(trained)
    leads = leads or [lead for lead in with_derived(stores[0].leads) if lead in common]
    note = (
        f"embedded with {', '.join(leads)} because not every store has all leads that the "
        f"encoder was trained on ({', '.join(trained)})"
    )
    seconds = np.concatenate([store.table["samples"] / store.table["rate"] for store in stores])
    half = replace(frame, seconds=min(float(np.median(seconds)) / 2, frame.seconds))
    parts, halves = [], [np.zeros((0, 2, encoder.encoder.embedding_dim), np.float32)]
    for store in stores:
        tick = partial(progress, f"Encoding {store.manifest.dataset}")
        tick(0, len(store))
        embed = partial(embed_levels, encoder, store, leads=leads)
        patients = embed(levels=["patient"], spec=frame, progress=tick)["patient"]
        if set(leads) != set(trained):
            problems = (*patients.problems, (store.manifest.dataset, note))
            patients = replace(patients, problems=problems)
        parts.append(patients)
        with suppress(SettingError):  # no recording is long enough for two frames
            frames = embed(levels=["frame"], spec=half, split="test")["frame"]
            halves.append(patient_halves(frames))
    return joined(parts), reference_distances(np.concatenate(halves))

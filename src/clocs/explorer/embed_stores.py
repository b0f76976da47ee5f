"""Patients of stores, and reference distances that give the distance of a neighbor a scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation.metrics import auc
from clocs.patients.embeddings import Embeddings, joined, patient_halves
from clocs.recording import with_derived
from clocs.store.store import Store

if TYPE_CHECKING:
    from clocs.training.checkpoint import Checkpoint

_PAIRS = 20_000  # of different patients
_BINS = (24, 60)  # for fewer than 1,000 distances, and for more
_EMPTY = np.zeros(0, np.float32)


@dataclass(frozen=True)
class ReferenceDistances:
    """Euclidean distances between unit vectors."""

    intra: NDArray[np.float32]  # between the two halves of one patient's recordings; may be empty
    inter: NDArray[np.float32]  # between halves of two patients' recordings
    description: str  # of what was compared, for the page

    @property
    def separability(self) -> float | None:
        """The probability that an intra-patient distance is the smaller one (AUC)."""
        if not len(self.intra) or not len(self.inter):
            return None
        return auc(-self.intra, -self.inter)

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
        facts = {"edges": edges.round(5).tolist(), "description": self.description}
        return facts | {"separability": self.separability} | density | means


def distances_of_halves(halves: NDArray[np.float32]) -> ReferenceDistances:
    """halves: (patients, 2, dim). Each patient against itself and against random others.

    The order of the patients, which is that of their IDs, makes no difference.
    """
    if len(halves) < 2:
        return ReferenceDistances(_EMPTY, _EMPTY, "")
    halves = halves[np.lexsort(halves[:, 0].T)]
    first, second = _random_pairs(len(halves))
    return ReferenceDistances(
        np.linalg.norm(halves[:, 0] - halves[:, 1], axis=1),
        np.linalg.norm(halves[first, 0] - halves[second, 1], axis=1),
        f"between halves of the recordings of {len(halves):,} test patients",
    )


def distances_between_patients(vectors: NDArray[np.float32]) -> ReferenceDistances:
    """Between patients only, where nothing but their vectors (patients, dim) is known."""
    if len(vectors) < 2:
        return ReferenceDistances(_EMPTY, _EMPTY, "")
    first, second = _random_pairs(len(vectors))
    inter = np.linalg.norm(vectors[first] - vectors[second], axis=1)
    return ReferenceDistances(_EMPTY, inter, f"between pairs of {len(vectors):,} patients")


def _random_pairs(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of two different numbers below n, the same at every call."""
    generator = np.random.default_rng(0)
    first = generator.integers(0, n, _PAIRS)
    return first, (first + generator.integers(1, n, _PAIRS)) % n


def embed_stores(
    checkpoint: Path,
    stores: Sequence[Store],
    *,
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
        patients, own = _embed(encoder, store, leads, half, tick)
        parts.append(patients)
        halves.append(own)
    return joined(parts), distances_of_halves(np.concatenate(halves))


def _embed(
    encoder: Checkpoint,
    store: Store,
    available: Sequence[str],
    half: float,
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
    embed = partial(embed_levels, encoder, store, leads=leads)
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

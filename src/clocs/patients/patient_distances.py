"""`clocs.patient_distances`: distances between frames of one patient and of different patients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clocs.patients.distances import Metric, PatientDistances, distances_between
from clocs.patients.embed_store import embed_store
from clocs.patients.halves import frame_with_halves
from clocs.store.store import Store, as_store
from clocs.training.checkpoint import Checkpoint, as_checkpoint
from clocs.training.device import pick_device
from clocs.training.leak_guard import seen_by


@dataclass(frozen=True)
class DistanceReport:
    """Distances between the frames of one store by one encoder.

    Attributes:
        method: The encoder's method.
        seed: The encoder's seed.
        store: The dataset.
        split: The part of it.
        patients: Number of patients.
        patients_seen: How many of them the encoder was trained or validated on.
        frame: Seconds of a frame.
        leads: The leads; frames of the same lead are compared.
        zero_vectors: Number of frames × leads with a zero vector.
        distances: The distances themselves.
    """

    method: str
    seed: int
    store: str
    split: str
    patients: int
    patients_seen: int
    frame: float
    leads: list[str]
    zero_vectors: int
    distances: PatientDistances

    def json(self) -> dict[str, Any]:
        """Everything but the distances themselves."""
        found = self.distances
        facts = {name: value for name, value in vars(self).items() if name != "distances"}
        return facts | {
            "metric": found.metric,
            "intra_mean": float(found.intra.mean()),
            "inter_mean": float(found.inter.mean()),
            "intra_std": float(found.intra.std()),
            "inter_std": float(found.inter.std()),
            "overlap": found.overlap,
            "separability": found.separability,
            "intra_pairs": found.intra_pairs,
            "inter_pairs": found.inter_pairs,
            "intra_sampled": len(found.intra) if len(found.intra) < found.intra_pairs else None,
            "inter_sampled": len(found.inter) if len(found.inter) < found.inter_pairs else None,
        }


def patient_distances(
    checkpoint: Checkpoint | Path | str,
    store: Store | Path | str,
    *,
    metric: Metric = "euclidean",
    split: str = "test",
    leads: Sequence[str] | None = None,
    split_seed: int = 0,
    device: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DistanceReport:
    """Distances between frames of one patient and of different patients, lead by lead.

    Args:
        checkpoint: A checkpoint, its file, or a folder (then its first seed).
        store: Prepared recordings. Where most hold a single frame, their segments are compared.
        metric: 'euclidean', as in the paper, between embeddings as they are; or 'cosine'.
        split: 'test', 'validation', 'train' or 'all'.
        leads: Leads by name; those that the encoder was trained on by default.
        split_seed: Random seed for the patient split.
        device: 'cpu', 'cuda', …; the best available by default.
        progress: Called with (recordings done, recordings in total).
    """
    encoder, opened = as_checkpoint(checkpoint), as_store(store)
    spec = frame_with_halves(opened)
    made = embed_store(
        encoder,
        opened,
        level="frame",
        spec=spec,
        leads=leads,
        split=None if split == "all" else split,
        split_seed=split_seed,
        device=pick_device(device),
        progress=progress,
    )
    rows = made.rows
    patients = rows["patient"].unique(maintain_order=True)
    own = opened.table.filter(opened.table["patient"].is_in(patients.implode()))
    seen = seen_by(
        encoder, opened.manifest.dataset, own["patient"].to_list(), own["digest"].to_numpy()
    )
    return DistanceReport(
        method=encoder.card.method,
        seed=encoder.card.seed,
        store=opened.manifest.dataset,
        split=split,
        patients=len(patients),
        patients_seen=own["patient"].filter(seen).n_unique(),
        frame=spec.seconds,
        leads=list(made.leads or ()),
        zero_vectors=made.zero_vectors,
        distances=distances_between(
            made.vectors,
            np.unique(rows["patient"].to_numpy(), return_inverse=True)[1],
            np.unique(rows["lead"].to_numpy(), return_inverse=True)[1],
            metric=metric,
        ),
    )

"""Distances between embeddings: of one patient, and of different patients (the paper's figure 6).

Knows nothing about drawing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.checkpoint import Checkpoint
from clocs.embedding import embed_instances
from clocs.evaluation.metrics import auc_per_class
from clocs.frames import Frames
from clocs.views import instances, single

_MOST = 4000  # embeddings compared with each other: 8 million pairs


@dataclass(frozen=True)
class PatientDistances:
    """Euclidean distances of embeddings, not normalised.

    Attributes:
        intra: Between two embeddings of one patient.
        inter: Between embeddings of two patients.
        separability: The probability that an intra-patient distance is the smaller one.
    """

    intra: NDArray[np.float32]
    inter: NDArray[np.float32]
    separability: float


def patient_distances(
    checkpoint: Checkpoint, frames: Frames, split: int = 2, device: torch.device | str = "cpu"
) -> PatientDistances:
    """All distances between a part's frames, of the same lead where there are several."""
    rows = instances(frames, of="lead", views=single(), split=split)
    intra, inter = [], []
    z = embed_instances([checkpoint], frames, rows, device)[0]
    for lead in range(len(frames.leads)):
        own = np.flatnonzero(rows.lead == lead)[: _MOST // len(frames.leads)]
        patient = frames.patient[rows.frame[own]]
        apart = torch.cdist(z[own], z[own]).cpu().numpy()
        upper = np.triu_indices(len(own), k=1)
        same = patient[upper[0]] == patient[upper[1]]
        intra.append(apart[upper][same])
        inter.append(apart[upper][~same])
    within, between = np.concatenate(intra), np.concatenate(inter)
    scores = -np.concatenate([within, between]).astype(np.float64)[:, None]
    target = np.concatenate([np.ones(len(within)), np.zeros(len(between))]).astype(np.uint8)[
        :, None
    ]
    return PatientDistances(within, between, float(auc_per_class(scores, target)[0]))

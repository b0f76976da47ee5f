"""Scoring: the cells of one job -> what is kept of each. Knows nothing about the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clocs.evaluation.baseline import score_against_untrained
from clocs.experiments.data import Library
from clocs.experiments.grid import Cell
from clocs.experiments.profile import Profile
from clocs.frames.frames import Frames
from clocs.patients.distances import frame_distances
from clocs.training.checkpoint import Checkpoint, load_checkpoints

VALIDATION = 1
BINS = 60  # of the histograms of distances


def score(
    cells: Sequence[Cell],
    folders: Sequence[Path],
    library: Library,
    profile: Profile,
    *,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Score the encoders of one job, trained as one fleet.

    Args:
        cells: Of one job: they differ in their encoders alone.
        folders: Of their checkpoints.
        library: The data.
        profile: How long.
        device: Where.
    """
    first = cells[0]
    frames = library.frames(
        first.downstream, leads=first.pretraining.leads, split_seed=first.split_seed
    )
    groups = [load_checkpoints(folder) for folder in folders]
    if first.task == "distances":
        return [distances(group, frames, device) for group in groups]
    curve = first.task == "curve"  # a fixed number of epochs, the validation AUC after each
    make = profile.curve_settings if curve else profile.settings
    scored = score_against_untrained(
        groups,
        frames,
        protocol="finetune" if curve else first.task,
        fraction=first.fraction,
        settings=make(frames.batch_size),
        resamples=profile.resamples,
        curve=curve,
        device=device,
    )
    return [one.evaluation.json() for one in scored[: len(groups)]]


def distances(group: Sequence[Checkpoint], frames: Frames, device: torch.device) -> dict[str, Any]:
    """Distances between validation patients: means and separability a seed, and a histogram."""
    found = [frame_distances(one, frames, split=VALIDATION, device=device) for one in group]
    reach = float(max(np.quantile(d.inter, 0.999) for d in found)) or 1.0
    edges = np.linspace(0, reach, BINS + 1)
    densities = {
        kind: np.mean(
            [np.histogram(getattr(d, kind), edges)[0] / len(getattr(d, kind)) for d in found],
            axis=0,
        )
        for kind in ("intra", "inter")
    }
    return {
        "method": group[0].card.method,
        "embedding_dim": group[0].card.encoder["embedding_dim"],
        "seeds": [one.card.seed for one in group],
        "intra_mean": [float(d.intra.mean()) for d in found],
        "inter_mean": [float(d.inter.mean()) for d in found],
        "separability": [d.separability for d in found],
        "pairs": [len(found[0].intra), len(found[0].inter)],
        "edges": edges.tolist(),
        "histogram": {kind: density.tolist() for kind, density in densities.items()},
    }

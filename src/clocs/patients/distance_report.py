"""Distances between a store's frames by an encoder, for people: what was measured, on whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table

from clocs.patients.distances import Metric, PatientDistances, distances_between
from clocs.patients.embed import embed_store
from clocs.patients.retrieval import frame_with_halves
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint
from clocs.training.leak_guard import seen_by


@dataclass(frozen=True)
class DistanceReport:
    """Distances of one encoder's frames on one store.

    Attributes:
        method: Of the encoder.
        seed: Of the encoder.
        store: The dataset.
        split: The part.
        patients: How many.
        patients_seen: How many of them the encoder was trained or validated on.
        frame: Seconds of a frame.
        leads: Whose frames are compared with each other.
        dead_views: Frames × leads with a vector of zeros.
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
    dead_views: int
    distances: PatientDistances

    def json(self) -> dict[str, Any]:
        """All but the distances themselves."""
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

    def table(self) -> Table:
        """For a person."""
        facts = self.json()
        title = f"{self.method} on {self.store}, {facts['metric']} distance"
        table = Table(title=title, show_header=False)
        for kind in ("intra", "inter"):
            drawn = facts[f"{kind}_sampled"]
            words = f"{facts[f'{kind}_pairs']:,} pairs" + (f", {drawn:,} drawn" if drawn else "")
            table.add_row(
                f"{kind}-patient",
                f"{facts[f'{kind}_mean']:.3f} ± {facts[f'{kind}_std']:.3f} ({words})",
            )
        table.add_row("separability (AUC)", f"[bold]{facts['separability']:.3f}[/bold]")
        table.add_row("overlap", f"{facts['overlap']:.3f}")
        table.add_row("patients", f"{self.patients:,} of the part {self.split}")
        if self.patients_seen:
            table.add_row("", f"[yellow]{self.patients_seen:,} were seen in training[/yellow]")
        table.add_row("frames", f"{self.frame:g} s, of one lead: {', '.join(self.leads)}")
        if self.dead_views:
            table.add_row("zero vectors", f"{self.dead_views:,} frames × leads")
        return table


def report_distances(
    checkpoint: Checkpoint,
    store: Store,
    *,
    metric: Metric = "euclidean",
    split: str = "test",
    leads: Sequence[str] | None = None,
    split_seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DistanceReport:
    """Distances between the frames of a part, of the same lead; see `clocs.api.distances`."""
    spec = frame_with_halves(store)
    made = embed_store(
        checkpoint,
        store,
        level="frame",
        spec=spec,
        leads=leads,
        split=None if split == "all" else split,
        split_seed=split_seed,
        device=device,
        progress=progress,
    )
    rows = made.rows
    patients = rows["patient"].unique(maintain_order=True)
    own = store.table.filter(store.table["patient"].is_in(patients.implode()))
    seen = seen_by(
        checkpoint, store.manifest.dataset, own["patient"].to_list(), own["digest"].to_numpy()
    )
    return DistanceReport(
        method=checkpoint.card.method,
        seed=checkpoint.card.seed,
        store=store.manifest.dataset,
        split=split,
        patients=len(patients),
        patients_seen=own["patient"].filter(seen).n_unique(),
        frame=spec.seconds,
        leads=rows["lead"].unique(maintain_order=True).to_list(),
        dead_views=made.dead_views,
        distances=distances_between(
            made.vectors,
            np.unique(rows["patient"].to_numpy(), return_inverse=True)[1],
            np.unique(rows["lead"].to_numpy(), return_inverse=True)[1],
            metric=metric,
        ),
    )

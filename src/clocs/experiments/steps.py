"""The two steps of every experiment: pre-train an encoder with all its seeds, score a job.

Each gives an `Attempt`: plain values, whether it worked or not, computed here or elsewhere.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clocs.errors import ClocsError
from clocs.evaluation.evaluate import score_against_untrained
from clocs.experiments.data import Library
from clocs.experiments.grid import CURVE_EPOCHS, FEW_LABELS, Cell, Pretraining
from clocs.experiments.ledger import pack_draws, versions
from clocs.frames.frames import Frames
from clocs.patients.distances import frame_distances
from clocs.pretraining.methods import find_method
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.sealed import spelled_for_files
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint, load_checkpoints
from clocs.training.loop import Epoch

VALIDATION = 1
BINS = 60  # of the distance histograms
FEW_BATCH = 16  # rows per step where few patients are labeled, as the paper's for Cardiology


@dataclass(frozen=True)
class Profile:
    """How long to train, for all runs of a folder: as in the paper, or briefly, to try it out."""

    name: str = "paper"  # or 'simulated', for small simulated datasets
    epochs: int = 400
    patience: int = 15  # epochs without a lower validation loss before a member stops
    lr: float = 1e-4
    curve_epochs: int = CURVE_EPOCHS  # of a curve, without early stopping
    resamples: int = 2000  # bootstrap samples of patients, for the confidence intervals
    seeds: int = 5  # by default

    def settings(
        self, batch_size: int, fixed_epochs: int | None = None, *, curve: bool = False
    ) -> Settings:
        """Those of a training with early stopping, for a fixed number of epochs, or of a curve."""
        if curve:
            return Settings(self.curve_epochs, self.curve_epochs, batch_size, self.lr)
        if fixed_epochs is None:
            return Settings(self.epochs, self.patience, batch_size, self.lr)
        epochs = min(fixed_epochs, self.epochs)
        return Settings(epochs, self.patience, batch_size, self.lr, keep="last")


PAPER = Profile()
SIMULATED = Profile(
    name="simulated", epochs=1, patience=1, lr=1e-3, curve_epochs=3, resamples=50, seeds=2
)


@dataclass(frozen=True)
class Attempt:
    """What came of a step: one result per run, or an error."""

    seconds: float = 0.0
    results: Sequence[Mapping[str, Any]] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)  # of an encoder, made on a node
    counts: Mapping[str, Any] = field(default_factory=dict)  # of a dataset, scored on a node


def attempt(act: Callable[[], Sequence[Mapping[str, Any]]], device: torch.device) -> Attempt:
    """Try a step; of an error that is not ours, the whole traceback is kept."""
    began = time.monotonic()
    try:
        results = act()
    except Exception as error:  # its text keeps no reference to memory on the device
        text = str(error) if isinstance(error, ClocsError) else traceback.format_exc()
        return Attempt(time.monotonic() - began, error=text)
    return Attempt(time.monotonic() - began, results, versions(device.type))


def learn(
    encoder: Pretraining,
    folder: Path,
    library: Library,
    profile: Profile,
    *,
    seeds: int,
    device: torch.device,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> list[dict[str, Any]]:
    """Pre-train one encoder, or resume it; returns its metrics, one value per seed, in a list.

    An exception that `on_epoch` raises stops the training.
    """
    pair = find_method(encoder.method).views.segments > 1
    changed = dict(encoder.plan)
    options = changed.pop("options", {})
    if encoder.tau_d is not None:
        options = options | {"tau_d": encoder.tau_d}
    frames = library.frames(
        encoder.dataset, leads=encoder.leads, pair=pair, split_seed=encoder.split_seed
    )
    plan = Plan(
        method=encoder.method,
        seeds=tuple(range(seeds)),
        embedding_dim=encoder.embedding_dim,
        options=options,
        perturb=encoder.perturb,
        settings=profile.settings(frames.batch_size, encoder.epochs),
        **changed,
    )
    measured = {"measured_epochs": 0, "measured_instances": 0, "measured_seconds": 0.0}

    def count(epoch: Epoch) -> None:
        measured["measured_epochs"] += 1
        measured["measured_instances"] += epoch.instances
        measured["measured_seconds"] += epoch.seconds
        on_epoch(epoch)

    checkpoints = pretrain_frames(
        frames,
        plan,
        folder,
        frame_to_use=library.sources[encoder.dataset].frame,
        device=device,
        resume=True,
        on_epoch=count,
    )
    cards = [checkpoint.card.metrics for checkpoint in checkpoints]
    return [{key: [card.get(key) for card in cards] for key in cards[0]} | measured]


def score(
    cells: Sequence[Cell],
    folders: Sequence[Path],
    library: Library,
    profile: Profile,
    *,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Score the encoders of one job, trained as one fleet; returns one result per cell.

    The cells differ only in their encoders, whose checkpoints are in `folders`.
    """
    first = cells[0]
    frames = library.frames(
        first.downstream,
        leads=first.pretraining.leads,
        pair=first.segment_frame,
        split_seed=first.split_seed,
    )
    groups = [load_checkpoints(folder) for folder in folders]
    if first.task == "distances":
        return [distances(group, frames, device) for group in groups]
    curve = first.task == "curve"  # a fixed number of epochs, the validation AUC after each
    few = first.patients is not None and first.patients <= FEW_LABELS
    batch_size = min(frames.batch_size, FEW_BATCH) if few else frames.batch_size
    scored = score_against_untrained(
        groups,
        frames,
        protocol="finetune" if curve else first.task,
        fraction=first.fraction,
        labels=first.patients,
        by="frame" if first.patients is None else "patient",
        settings=profile.settings(batch_size, curve=curve),
        resamples=profile.resamples,
        curve=curve,
        device=device,
    )
    results = []
    for one in scored[: len(groups)]:
        results.append(spelled_for_files(one.evaluation.json()))
        if one.draws is not None:
            results[-1]["draws"] = pack_draws(one.draws[: profile.resamples])
    return results


def distances(group: Sequence[Checkpoint], frames: Frames, device: torch.device) -> dict[str, Any]:
    """Distances between validation patients: mean and separability per seed, and a histogram."""
    found = [frame_distances(one, frames, split=VALIDATION, device=device) for one in group]
    largest = float(max(np.quantile(d.inter, 0.999) for d in found)) or 1.0
    edges = np.linspace(0, largest, BINS + 1)
    shares: dict[str, list[float]] = {}
    for kind in ("intra", "inter"):
        values = [getattr(d, kind) for d in found]
        each = [np.histogram(own, edges)[0] / len(own) for own in values]
        shares[kind] = np.mean(each, axis=0).tolist()
    return {
        "method": group[0].card.method,
        "embedding_dim": group[0].card.encoder["embedding_dim"],
        "seeds": [one.card.seed for one in group],
        "intra_mean": [float(d.intra.mean()) for d in found],
        "inter_mean": [float(d.inter.mean()) for d in found],
        "separability": [d.separability for d in found],
        "pairs": [len(found[0].intra), len(found[0].inter)],
        "edges": edges.tolist(),
        "histogram": shares,
    }


def counts_of(library: Library, cell: Cell) -> dict[str, Any]:
    """The size of a cell's downstream dataset, for the report."""
    frames = library.frames(cell.downstream, leads=cell.pretraining.leads)
    return {
        "recordings": len(frames.recording_ids),
        "patients": len(frames.patient_ids),
        "frames": len(frames),
        "patients_by_part": [len(frames.patients_of(part)) for part in range(3)],
    }

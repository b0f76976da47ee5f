"""Evaluation: checkpoints and labelled frames -> honest scores.

Puts the parts together: leak guard, labelled subset, frozen embeddings, protocol, scores. Knows
nothing about stores or the command line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from clocs import guard
from clocs.checkpoint import Card, Checkpoint
from clocs.embedding import embed_instances
from clocs.errors import LeakError, SettingError
from clocs.evaluation import metrics
from clocs.evaluation.linear import Labelled, LinearHead, converged, probabilities
from clocs.frames import Frames
from clocs.splits import PARTS, keys_of, labelled_subset, row_keys
from clocs.train import Epoch, Settings, fit
from clocs.views import Instances, instances, single

Protocol = Literal["linear", "linear-converged"]
PROTOCOLS: tuple[Protocol, ...] = ("linear", "linear-converged")
By = Literal["frame", "patient"]


@dataclass(frozen=True)
class Evaluation:
    """Scores of one method on one dataset; the fields are what `evaluate --json` prints.

    `auc` and what follows from it are per frame and lead, as in the paper; `auc_recording…` per
    recording; `auc_logits…` of raw logits, as the authors' code computed it.
    """

    protocol: str
    method: str
    pretrain: str | None
    downstream: str
    fraction: float
    by: str
    seeds: list[int]
    auc: list[float]
    auc_mean: float
    auc_std: float | None
    auc_recording: list[float]
    auc_recording_mean: float
    auc_logits: list[float]
    auc_logits_mean: float
    ci95: list[float] | None
    auc_per_class: dict[str, float | None]
    undefined_classes: list[str]
    embedding_dim: int
    leads: list[str]
    split_seed: int
    labelled: list[int]
    test_patients: int
    test_frames: int
    left_out_copies: int
    settings: dict[str, Any]

    def json(self) -> dict[str, Any]:
        """The same as plain values; a number that does not exist is None."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def evaluate_frames(
    checkpoints: Sequence[Checkpoint],
    frames: Frames,
    *,
    protocol: Protocol = "linear",
    fraction: float = 1.0,
    by: By = "frame",
    settings: Settings | None = None,
    resamples: int = 2000,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Evaluation:
    """Score frozen encoders by a linear layer on their embeddings.

    Args:
        checkpoints: Of one method, one a seed; each seed also draws its labelled rows.
        frames: Labelled frames, cut as the encoders are to see them.
        protocol: 'linear' as in the paper, or 'linear-converged'.
        fraction: Of the training part that is labelled.
        by: Whether `fraction` counts frames, as in the paper, or patients.
        settings: Of the linear layer's training; the paper's for this dataset where None.
        resamples: Of the bootstrap over patients; 0 for none.
        device: Where.
        on_epoch: Called after each epoch of 'linear'.
    """
    if protocol not in PROTOCOLS:
        raise SettingError(f"there is no protocol {protocol!r}; choose one of {PROTOCOLS}")
    for checkpoint in checkpoints:
        guard.check_no_leak(checkpoint, frames)
    settings = settings or Settings(batch_size=frames.batch_size)
    cards = [checkpoint.card for checkpoint in checkpoints]
    seeds = [card.seed for card in cards]
    rows = [_labelled_rows(frames, split) for split in range(len(PARTS))]
    copies = guard.copies_of_seen(checkpoints, frames)
    rows[2] = rows[2].where(~copies[frames.recording[rows[2].frame]])
    if not len(rows[2]):
        raise LeakError(f"every test recording of {frames.dataset} is a copy of one trained on")
    train, validation, test = (
        Labelled(
            embed_instances(checkpoints, frames, part, device),
            torch.from_numpy(frames.target[part.frame]).to(device),
            frames.multilabel,
        )
        for part in rows
    )
    labelled = [
        torch.from_numpy(np.flatnonzero(_subset(frames, rows[0], seed, fraction, by))).to(device)
        for seed in seeds
    ]
    chosen: dict[str, Any] = {}
    if protocol == "linear":
        head = LinearHead(train, validation, labelled)
        trained = fit(head, seeds, settings, device=torch.device(device), on_epoch=on_epoch)
        with torch.no_grad():
            logits = list(head.logits(trained.weights, test.features).double().cpu().numpy())
        chosen = asdict(settings) | {"best_epoch": trained.best_epoch, "status": trained.status}
    else:
        solved = [
            converged(train, validation, test, member, own) for member, own in enumerate(labelled)
        ]
        logits = [z for z, _ in solved]
        chosen = {"l2": [strength for _, strength in solved]}
    return _score(
        frames,
        rows[2],
        logits,
        cards,
        chosen,
        labelled=[len(own) for own in labelled],
        left_out=int(copies.sum()),
        protocol=protocol,
        fraction=fraction,
        by=by,
        resamples=resamples,
    )


def _labelled_rows(frames: Frames, split: int) -> Instances:
    """One-lead instances of a part that have a label."""
    every = instances(frames, of="lead", views=single(), split=split)
    labelled = every.where(frames.has_label[every.frame])
    if not len(labelled):
        raise SettingError(
            f"the {PARTS[split]} part of {frames.dataset} has no labelled frames; evaluation "
            "needs labels in all three parts"
        )
    return labelled


def _subset(
    frames: Frames, rows: Instances, seed: int, fraction: float, by: By
) -> NDArray[np.bool_]:
    if by == "patient":
        keys = keys_of(frames.patient_ids)[frames.patient[rows.frame]]
    else:
        keys = row_keys(
            keys_of(frames.recording_ids)[frames.recording[rows.frame]],
            frames.segment[rows.frame],
            keys_of(frames.leads)[rows.lead],
        )
    return labelled_subset(
        keys,
        dataset=frames.dataset,
        split_seed=frames.split_seed,
        seed=seed,
        fraction=fraction,
        by=by,
    )


def _score(
    frames: Frames,
    test: Instances,
    logits: list[NDArray[np.float64]],
    cards: Sequence[Card],
    chosen: dict[str, Any],
    *,
    labelled: list[int],
    left_out: int,
    protocol: Protocol,
    fraction: float,
    by: By,
    resamples: int,
) -> Evaluation:
    targets = frames.target[test.frame]
    scores = [probabilities(z, frames.multilabel) for z in logits]
    per_class = np.stack([metrics.auc_per_class(s, targets) for s in scores])
    auc = [metrics.macro(values) for values in per_class]
    recording = [
        metrics.macro(
            metrics.auc_per_class(*metrics.by_recording(s, targets, frames.recording[test.frame]))
        )
        for s in scores
    ]
    of_logits = [metrics.macro(metrics.auc_per_class(z, targets)) for z in logits]
    interval = None
    if resamples:
        patient = frames.patient[test.frame]
        drawn = metrics.bootstrap_macro_auc(scores, targets, patient, resamples=resamples)
        interval = [float(q) for q in np.nanquantile(drawn, [0.025, 0.975])]
    means = dict(zip(frames.labels, per_class.mean(axis=0).tolist(), strict=True))
    return Evaluation(
        protocol=protocol,
        method=cards[0].method,
        pretrain=cards[0].dataset,
        downstream=frames.dataset,
        fraction=fraction,
        by=by,
        seeds=[card.seed for card in cards],
        auc=auc,
        auc_mean=float(np.mean(auc)),
        auc_std=float(np.std(auc, ddof=1)) if len(auc) > 1 else None,
        auc_recording=recording,
        auc_recording_mean=float(np.mean(recording)),
        auc_logits=of_logits,
        auc_logits_mean=float(np.mean(of_logits)),
        ci95=interval,
        auc_per_class=means,
        undefined_classes=[label for label, value in means.items() if math.isnan(value)],
        embedding_dim=cards[0].encoder["embedding_dim"],
        leads=list(frames.leads),
        split_seed=frames.split_seed,
        labelled=labelled,
        test_patients=len(np.unique(frames.patient[test.frame])),
        test_frames=len(test),
        left_out_copies=left_out,
        settings=chosen,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value

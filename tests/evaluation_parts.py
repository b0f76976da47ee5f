"""Small parts that tests of the evaluation share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch

from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import (
    Comparison,
    Sampled,
    correct,
    draws_of,
    enough,
    paired,
)
from clocs.evaluation.classifier_loss import head_logits
from clocs.evaluation.groups import score_groups
from clocs.evaluation.labeled import LabeledEmbeddings
from clocs.evaluation.result import Evaluation, Predictions
from clocs.frames.frames import Frames
from clocs.training.checkpoint import Checkpoint


def evaluate_groups(
    groups: Sequence[Sequence[Checkpoint]], frames: Frames, **options: Any
) -> list[Evaluation]:
    """The scores of several methods alone."""
    return [one.evaluation for one in score_groups(groups, frames, **options)]


def evaluate_frames(
    checkpoints: Sequence[Checkpoint], frames: Frames, **options: Any
) -> Evaluation:
    """The scores of one method alone."""
    return evaluate_groups([checkpoints], frames, **options)[0]


def classifier_logits(classifier: Checkpoint, x: torch.Tensor) -> torch.Tensor:
    """x: (1, n, …) before the offset of the input -> (1, n, classes)."""
    x = x + classifier.card.input_offset
    return head_logits(classifier.encoder, classifier.weights, classifier.buffers, x)


def compare_all(methods: Sequence[Predictions], *, resamples: int = 2000) -> list[Comparison]:
    """All pairs of methods on one test part, corrected for their number."""
    pairs = list(combinations(range(len(methods)), 2))
    resamples = enough(resamples, len(pairs))
    sampled = [
        Sampled(
            one.name,
            {
                seed: metrics.macro(metrics.auc_per_class(scores, one.targets))
                for seed, scores in zip(one.seeds, one.probabilities, strict=True)
            },
            draws_of(one, resamples)[0],
        )
        for one in methods
    ]
    return correct([paired(sampled[i], sampled[j]) for i, j in pairs])


def compare(a: Predictions, b: Predictions, **options: Any) -> Comparison:
    """One paired comparison."""
    return compare_all([a, b], **options)[0]


def fingerprint(checkpoint: Checkpoint) -> str:
    """A hash of everything that a checkpoint has learned."""
    total = hashlib.sha256()
    for tensors in (checkpoint.weights, checkpoint.buffers):
        for name in sorted(tensors):
            total.update(tensors[name].numpy().tobytes())
    return total.hexdigest()


def labeled(seed: int, rows: int, multilabel: bool) -> LabeledEmbeddings:
    """Embeddings from which labels can be read, roughly."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(1, rows, 6, generator=draw)
    logits = x[0] @ torch.tensor(
        [[2.0, 0, -1], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0], [0, 0, 0]]
    )
    if multilabel:
        targets = (logits + torch.randn(rows, 3, generator=draw) > 0).to(torch.uint8)
    else:
        noise = torch.rand(rows, 3, generator=draw).log().neg().log().neg()
        targets = torch.nn.functional.one_hot((logits + noise).argmax(1), 3).to(torch.uint8)
    return LabeledEmbeddings(x, targets)


def predictions(
    method: str = "cmsc", strength: float = 1.0, *, seeds: int = 2, people: int = 60, seed: int = 0
) -> Predictions:
    """Of three classes; patients have one class each and four rows. Better with `strength`."""
    draw = np.random.default_rng(7)
    patient = np.repeat(np.arange(people), 4)
    targets = np.eye(3, dtype=np.uint8)[draw.integers(0, 3, people)][patient]
    noise = np.random.default_rng(seed).normal(size=(seeds, len(patient), 3))
    scores = np.exp(strength * targets + noise)
    return Predictions(
        method=method,
        pretrain="chapman",
        downstream="chapman",
        content="abc",
        protocol="linear",
        fraction=0.5,
        by="frame",
        split_seed=0,
        seeds=tuple(range(seeds)),
        labels=("A", "B", "C"),
        multilabel=False,
        probabilities=scores / scores.sum(axis=2, keepdims=True),
        targets=targets,
        thresholds=np.full((seeds, 3), 0.4),
        patient_ids=tuple(f"p{i}" for i in range(people)),
        recording_ids=tuple(f"r{i}" for i in range(people)),
        leads=("II", "V2"),
        patient=patient,
        recording=patient,
        frame=np.tile(np.array([0, 0, 1, 1], np.int32), people),
        lead=np.tile(np.array([0, 1, 0, 1]), people),
    )

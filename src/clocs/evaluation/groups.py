"""Groups: all methods, pre-training sets and seeds of one downstream set, evaluated at once.

Puts the parts together: leak guard, labelled rows, protocol, scores. Knows nothing about stores or
the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import LeakError, SettingError
from clocs.evaluation import metrics
from clocs.evaluation.finetune import Classifiers
from clocs.evaluation.labelled_rows import By, Share, labelled_rows, settle, subset
from clocs.evaluation.predictions import Predictions
from clocs.evaluation.protocols import PROTOCOLS, Answers, Crew, Protocol
from clocs.evaluation.result import Evaluation
from clocs.evaluation.scores import groups_of, scores_of
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS
from clocs.frames.views import Instances
from clocs.training import leak_guard
from clocs.training.checkpoint import Checkpoint
from clocs.training.loop import Epoch, Settings

K = 20


@dataclass(frozen=True)
class Scored:
    """All that is known of one group after its evaluation.

    Attributes:
        evaluation: The scores.
        predictions: On the test part.
        classifiers: One a seed, where encoders were fine-tuned.
    """

    evaluation: Evaluation
    predictions: Predictions
    classifiers: list[Classifiers]


class Options(TypedDict, total=False):
    """The keyword arguments of `score_groups`, which says what they mean and what they are else."""

    protocol: Protocol
    fraction: float
    by: By
    labels: int | None
    class_weights: bool
    k: int
    settings: Settings | None
    resamples: int
    curve: bool
    device: torch.device | str
    on_epoch: Callable[[Epoch], None]


def evaluate_frames(
    checkpoints: Sequence[Checkpoint], frames: Frames, **options: Unpack[Options]
) -> Evaluation:
    """Score the seeds of one method; see `score_groups`."""
    return evaluate_groups([checkpoints], frames, **options)[0]


def evaluate_groups(
    groups: Sequence[Sequence[Checkpoint]], frames: Frames, **options: Unpack[Options]
) -> list[Evaluation]:
    """Score several methods at once; see `score_groups`, which keeps more."""
    return [one.evaluation for one in score_groups(groups, frames, **options)]


def score_groups(
    groups: Sequence[Sequence[Checkpoint]],
    frames: Frames,
    *,
    protocol: Protocol = "linear",
    fraction: float = 1.0,
    by: By = "frame",
    labels: int | None = None,
    class_weights: bool = False,
    k: int = K,
    settings: Settings | None = None,
    resamples: int = 2000,
    curve: bool = False,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> list[Scored]:
    """Score encoders on labelled frames, all groups trained as one fleet.

    The numbers are those of each group evaluated alone. Groups whose encoders are of different
    kinds (another embedding dimension, say) are fleets of their own.

    Args:
        groups: Each the seeds of one method on one pre-training set; each seed also draws its
            labelled rows.
        frames: Labelled frames, cut as the encoders are to see them.
        protocol: 'linear' as in the paper, 'linear-converged', 'finetune' or 'knn'.
        fraction: Of the training part that is labelled.
        by: Whether `fraction` counts frames, as in the paper, patients or recordings.
        labels: How many recordings are labelled, instead of `fraction` and `by`.
        class_weights: Whether rare classes weigh as much as common ones; not for 'knn'.
        k: Neighbours of 'knn'.
        settings: Of what is trained; the paper's for this dataset where None.
        resamples: Of the bootstrap over patients; 0 for none.
        curve: Whether to note the validation AUC after every epoch.
        device: Where.
        on_epoch: Called after each epoch of 'linear' and 'finetune'.

    Returns:
        One a group.
    """
    if protocol not in PROTOCOLS:
        raise SettingError(
            f"there is no protocol {protocol!r}; choose one of {', '.join(PROTOCOLS)}"
        )
    if class_weights and protocol == "knn":
        raise SettingError("knn has no loss to weigh classes in; leave class weights out")
    if not groups or not all(groups):
        raise SettingError("there is nothing to evaluate: give at least one checkpoint a group")
    for group in groups:
        for checkpoint in group:
            leak_guard.check_no_leak(checkpoint, frames)
    settings = settings or Settings(batch_size=frames.batch_size)
    rows = [labelled_rows(frames, split) for split in range(len(PARTS))]
    share = settle(frames, rows[0], Share(fraction, by, labels))
    scored: dict[int, Scored] = {}
    for numbers in _crews(groups):
        checkpoints = [checkpoint for number in numbers for checkpoint in groups[number]]
        train, labelled = _labelled(frames, rows[0], checkpoints, share)
        crew = Crew(
            checkpoints=checkpoints,
            frames=frames,
            rows=(train, rows[1], rows[2]),
            labelled=[torch.from_numpy(own).to(device) for own in labelled],
            settings=settings,
            weighted=class_weights,
            k=k,
            curve=curve,
            device=torch.device(device),
            on_epoch=on_epoch,
        )
        answers = PROTOCOLS[protocol](crew)
        first = 0
        for number in numbers:
            members = slice(first, first + len(groups[number]))
            scored[number] = _scored(crew, answers, members, protocol, share, resamples)
            first = members.stop
    return [scored[number] for number in range(len(groups))]


def _crews(groups: Sequence[Sequence[Checkpoint]]) -> list[list[int]]:
    """Numbers of the groups whose encoders are of one kind."""
    kinds: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        kinds.setdefault(repr(sorted(group[0].card.encoder.items())), []).append(number)
    return list(kinds.values())


def _labelled(
    frames: Frames, rows: Instances, checkpoints: Sequence[Checkpoint], share: Share
) -> tuple[Instances, list[NDArray[np.int64]]]:
    """The training rows that any member may use, and which of them each may."""
    seeds = [checkpoint.card.seed for checkpoint in checkpoints]
    chosen = {seed: subset(frames, rows, seed, share) for seed in set(seeds)}
    used = np.logical_or.reduce(list(chosen.values()))
    return rows.where(used), [np.flatnonzero(chosen[seed][used]) for seed in seeds]


def _scored(
    crew: Crew,
    answers: Answers,
    members: slice,
    protocol: Protocol,
    share: Share,
    resamples: int,
) -> Scored:
    frames, test = crew.frames, crew.rows[2]
    checkpoints = crew.checkpoints[members]
    copies = leak_guard.copies_of_seen(checkpoints, frames)
    kept = ~copies[frames.recording[test.frame]]
    if not kept.any():
        raise LeakError(f"every test recording of {frames.dataset} is a copy of one trained on")
    held_out = frames.target[crew.rows[1].frame]
    card = checkpoints[0].card
    predictions = Predictions(
        method=card.method,
        pretrain=card.dataset,
        downstream=frames.dataset,
        content=frames.content,
        protocol=protocol,
        fraction=share.fraction,
        by=share.by,
        split_seed=frames.split_seed,
        seeds=tuple(crew.seeds[members]),
        labels=tuple(frames.labels),
        multilabel=frames.multilabel,
        probabilities=answers.test[members],
        targets=frames.target[test.frame],
        thresholds=np.stack(
            [metrics.best_thresholds(s, held_out) for s in answers.validation[members]]
        ),
        patient=frames.patient[test.frame],
        recording=frames.recording[test.frame],
        frame=test.frame,
        lead=test.lead,
    ).where(kept)
    device = crew.device
    evaluation = Evaluation(
        protocol=protocol,
        method=card.method,
        pretrain=card.dataset,
        downstream=frames.dataset,
        fraction=share.fraction,
        by=share.by,
        labels_count=share.labels,
        class_weights=crew.weighted,
        seeds=list(predictions.seeds),
        embedding_dim=card.encoder["embedding_dim"],
        leads=list(frames.leads),
        split_seed=frames.split_seed,
        labelled=[len(own) for own in crew.labelled[members]],
        left_out_copies=int(copies.sum()),
        settings=answers.common | {name: v[members] for name, v in answers.own.items()},
        curve=answers.curves[members] or None,
        **scores_of(
            predictions, answers.logits[members][:, kept], resamples=resamples, device=device
        ),
        **groups_of(predictions, frames, resamples=resamples, device=device),
    )
    return Scored(evaluation, predictions, answers.classifiers[members])

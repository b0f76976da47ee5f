"""The untrained encoders that every method must beat, made on the fly and evaluated beside it.

`random` is as initialised, `random-bn` has batch-norm statistics of the training frames; "beats
random" means the stronger of the two, by a paired test. Knows nothing about stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from clocs.checkpoint import Checkpoint
from clocs.evaluation.comparison import compare_all
from clocs.evaluation.groups import Scored, score_groups
from clocs.frames import Frames
from clocs.pretraining import Plan, untrained
from clocs.train import Settings

UNTRAINED = ("random", "random-bn")


def score_with_random(
    groups: Sequence[Sequence[Checkpoint]],
    frames: Frames,
    *,
    resamples: int = 2000,
    device: torch.device | str = "cpu",
    **how: Any,
) -> list[Scored]:
    """Score groups with the untrained encoders beside them, and say which are beaten.

    Args:
        groups: As of `score_groups`.
        frames: Labelled frames.
        resamples: Of patients; without any, nothing is said about who beats whom.
        device: Where.
        how: As of `score_groups`.

    Returns:
        One a group, in order; then the untrained ones that were added.
    """
    everyone = [list(group) for group in groups]
    for group in groups:
        for method in UNTRAINED:
            if not any(_is_baseline(other, method, group) for other in everyone):
                everyone.append(_baseline(method, group, frames, device))
    scored = score_groups(everyone, frames, resamples=resamples, device=device, **how)
    if not resamples:
        return scored
    pairs = []
    for number, group in enumerate(everyone):
        if group[0].card.method not in UNTRAINED:
            rivals = [
                other
                for other, candidate in enumerate(everyone)
                if any(_is_baseline(candidate, method, group) for method in UNTRAINED)
            ]
            pairs.append((number, max(rivals, key=lambda i: scored[i].evaluation.auc_mean)))
    found = compare_all(
        [one.predictions for one in scored], pairs, resamples=resamples, device=device
    )
    for (number, rival), comparison in zip(pairs, found, strict=True):
        scored[number] = replace(
            scored[number],
            evaluation=replace(
                scored[number].evaluation,
                random_method=scored[rival].evaluation.method,
                random_auc_mean=scored[rival].evaluation.auc_mean,
                random_difference=comparison.difference,
                random_difference_ci95=comparison.ci95,
                random_p=comparison.p_holm,
                beats_random=comparison.better,
            ),
        )
    return scored


def _is_baseline(candidate: Sequence[Checkpoint], method: str, of: Sequence[Checkpoint]) -> bool:
    """Whether `candidate` is that untrained method with the encoder and the seeds of `of`."""
    cards, own = [c.card for c in candidate], [c.card for c in of]
    return (
        cards[0].method == method
        and cards[0].encoder == own[0].encoder
        and [card.seed for card in cards] == [card.seed for card in own]
    )


def _baseline(
    method: str, of: Sequence[Checkpoint], frames: Frames, device: torch.device | str
) -> list[Checkpoint]:
    encoder = of[0].card.encoder
    plan = Plan(
        method=method,
        seeds=tuple(c.card.seed for c in of),
        encoder=encoder["name"],
        embedding_dim=encoder["embedding_dim"],
        dropout=encoder["dropout"],
        settings=Settings(batch_size=frames.batch_size),
    )
    return untrained(frames, plan, device=device)

"""The untrained encoders that every method must beat, made when needed and scored beside it.

`random` is as initialized, `random-bn` has batch-norm statistics of the training frames; a method
beats random where a paired test finds it better than the stronger of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch

from clocs.evaluation.comparison import ALPHA, Comparison, correct, enough, paired
from clocs.evaluation.cross_validation import NumberOfFolds, divided, pooled
from clocs.evaluation.groups import GroupResult, score_groups
from clocs.evaluation.protocols import find_protocol
from clocs.evaluation.resampling import check_resamples
from clocs.evaluation.result import distinct
from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint

UNTRAINED = ("random", "random-bn")


def score_against_untrained(
    groups: Sequence[Sequence[Checkpoint]],
    frames: Frames,
    *,
    protocol: str = "linear",
    resamples: int = 2000,
    folds: NumberOfFolds | None = None,
    baselines: bool = True,
    device: torch.device | str = "cpu",
    **options: Any,
) -> list[GroupResult]:
    """Score groups beside the untrained encoders, where the protocol has them, and compare all.

    Arguments are those of `score_groups`; with 0 `resamples`, methods are not compared; with
    `folds`, every patient that no encoder was trained on is tested on once; without `baselines`,
    there are no untrained encoders, and the scores of the others are the same. Returns one result
    per group, in order, then those of the untrained encoders that were added.
    """
    check_resamples(resamples)
    row = find_protocol(protocol)
    pairs = list(combinations(range(len(groups)), 2))
    draws = resamples
    if row.against_untrained and resamples:
        draws = enough(resamples, max(len(groups), len(pairs)))

    def scored_on(part: Frames, **more: Any) -> tuple[list[list[Checkpoint]], list[GroupResult]]:
        everyone = [list(group) for group in groups]
        if row.against_untrained and baselines:
            everyone = _with_untrained(everyone, part, device)
        given = options | more
        return everyone, score_groups(everyone, part, protocol=protocol, device=device, **given)

    if folds is None:
        everyone, scored = scored_on(frames, resamples=draws)
    else:
        parts = divided(groups, frames, folds)
        each = [scored_on(one.frames, resamples=0, check_leaks=False) for one in parts]
        everyone = each[0][0]
        scored = [
            pooled(parts, [own[number] for _, own in each], resamples=draws, device=device)
            for number in range(len(everyone))
        ]
    if not row.against_untrained:
        return scored
    against = [
        (number, _strongest(scored, everyone, group))
        for number, group in enumerate(everyone)
        if baselines and group[0].card.method not in UNTRAINED
    ]
    for number, rival in against:
        beside = scored[rival].evaluation
        scored[number] = _with_facts(
            scored[number], random_method=beside.method, random_auc_mean=beside.auc_mean
        )
    if not resamples:
        return scored
    sampled = [one.sampled for one in scored]
    beside_untrained, beside_others = (
        correct([paired(sampled[i], sampled[j]) for i, j in some]) for some in (against, pairs)
    )
    for (number, _), comparison in zip(against, beside_untrained, strict=True):
        scored[number] = _with_facts(
            scored[number],
            random_difference=comparison.difference,
            random_difference_ci95=comparison.ci95,
            random_p=comparison.p_holm,
            beats_random=comparison.better,
        )
    return _ranked(scored, len(groups), pairs, beside_others)


def _with_untrained(
    everyone: list[list[Checkpoint]], frames: Frames, device: torch.device | str
) -> list[list[Checkpoint]]:
    """These groups, and after them the untrained encoders of their kind that are missing."""
    made = list(everyone)
    for group in everyone:
        for method in UNTRAINED:
            if not any(_is_baseline(other, method, group) for other in made):
                made.append(_baseline(method, group, frames, device))
    return made


def _ranked(
    scored: list[GroupResult],
    count: int,
    pairs: list[tuple[int, int]],
    found: list[Comparison],
) -> list[GroupResult]:
    """The first `count` results, each with the names of those it is better than; the rest as is."""
    if count < 2:
        return scored
    names = distinct([one.evaluation.name for one in scored])
    beaten: list[list[str]] = [[] for _ in range(count)]
    for (i, j), comparison in zip(pairs, found, strict=True):
        if comparison.p_holm < ALPHA:
            winner, loser = (i, j) if comparison.difference > 0 else (j, i)
            beaten[winner].append(names[loser])
    return [
        _with_facts(one, better_than=beaten[number]) if number < count else one
        for number, one in enumerate(scored)
    ]


def _with_facts(one: GroupResult, **facts: Any) -> GroupResult:
    return replace(one, evaluation=replace(one.evaluation, **facts))


def _strongest(
    scored: list[GroupResult], everyone: list[list[Checkpoint]], of: Sequence[Checkpoint]
) -> int:
    """The number of the untrained group of these encoders and seeds with the higher AUC."""
    rivals = [
        number
        for number, candidate in enumerate(everyone)
        if any(_is_baseline(candidate, method, of) for method in UNTRAINED)
    ]
    return max(rivals, key=lambda number: scored[number].evaluation.auc_mean)


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
    frames = frames.for_leads(encoder["leads"]) if "leads" in encoder else frames
    plan = Plan(
        method=method,
        seeds=tuple(c.card.seed for c in of),
        encoder=encoder["name"],
        embedding_dim=encoder["embedding_dim"],
        dropout=encoder["dropout"],
        settings=Settings(batch_size=frames.batch_size),
    )
    return untrained(frames, plan, device=device)

"""Which combination of values comes next: a function of the trials before it, so that it resumes.

A grid goes through all combinations. Random draws depend on the sampler's seed and the number of
the trial alone. Optuna (TPE) is asked anew for every trial and told all earlier ones, with a seed
of that number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice
from math import prod
from typing import Any, Literal, TypeAlias, get_args

from clocs.errors import SettingError, with_extra
from clocs.experiments.sweep.space import Point, Range, Varied, combinations

SamplerName: TypeAlias = Literal["grid", "random", "optuna"]


@dataclass(frozen=True)
class Known:
    """An earlier trial: its values, and its score where it has ended with one."""

    point: Point
    score: float | None = None
    failed: bool = False


def number_of_trials(space: Sequence[Varied], sampler: str, trials: int | None) -> int:
    """How many trials there will be; refuses what does not fit the sampler."""
    if sampler not in get_args(SamplerName):
        names = ", ".join(get_args(SamplerName))
        raise SettingError(f"there is no sampler {sampler!r:.50}; choose one of {names}")
    ranges = [one.name for one in space if isinstance(one.values, Range)]
    size = prod(one.count for one in space)
    if sampler == "grid":
        if ranges:
            raise SettingError(
                f"a grid needs values, but `vary` gives {ranges[0]} a range; list its values, or "
                "choose `sampler=random` with a number of `trials`"
            )
        if trials is not None:
            raise SettingError(
                f"a grid has as many trials as combinations, here {size}; leave out `trials`, or "
                "choose `sampler=random`"
            )
        return int(size)
    if trials is None or trials < 1:
        raise SettingError(f"the sampler {sampler} needs a number of `trials`; give at least 1")
    if trials > size:
        raise SettingError(f"`trials` is {trials}, but there are only {size:g} combinations")
    if sampler == "optuna":
        _optuna()
    return trials


def propose(
    space: Sequence[Varied],
    sampler: str,
    seed: int,
    known: Sequence[Known],
    *,
    maximise: bool,
) -> Point:
    """The values of the next trial; no combination comes twice."""
    if sampler == "grid":
        return next(islice(combinations(space), len(known), None))
    earlier = [one.point for one in known]
    if sampler == "optuna":
        point = _by_optuna(space, seed + len(known), known, maximise=maximise)
        if point not in earlier:
            return point
    drawn = (_drawn(space, f"{seed}:{len(known)}:{attempt}") for attempt in count())
    return next(point for point in drawn if point not in earlier)


def _drawn(space: Sequence[Varied], key: str) -> Point:
    point: Point = {}
    for one in space:
        share = random.Random(f"{key}:{one.name}").random()
        some = one.values
        point[one.name] = (
            some.at(share) if isinstance(some, Range) else some[int(share * len(some))]
        )
    return point


def _by_optuna(
    space: Sequence[Varied], seed: int, known: Sequence[Known], *, maximise: bool
) -> Point:
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    states, kinds = optuna.trial.TrialState, optuna.distributions
    distributions: dict[str, Any] = {}
    for one in space:
        some = one.values
        if not isinstance(some, Range):  # by place, as a value may be a tuple
            distributions[one.name] = kinds.CategoricalDistribution(range(len(some)))
        elif some.whole:
            distributions[one.name] = kinds.IntDistribution(some.low, some.high, log=some.log)
        else:
            distributions[one.name] = kinds.FloatDistribution(some.low, some.high, log=some.log)
    study = optuna.create_study(
        direction="maximize" if maximise else "minimize",
        sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True),
    )
    for trial in known:
        waiting = states.FAIL if trial.failed else states.RUNNING
        study.add_trial(
            optuna.trial.create_trial(
                state=waiting if trial.score is None else states.COMPLETE,
                params={
                    one.name: trial.point[one.name]
                    if isinstance(one.values, Range)
                    else one.values.index(trial.point[one.name])
                    for one in space
                },
                distributions=distributions,
                value=trial.score,
            )
        )
    asked = study.ask(distributions).params
    return {
        one.name: _rounded(one.values, asked[one.name])
        if isinstance(one.values, Range)
        else one.values[asked[one.name]]
        for one in space
    }


def _rounded(some: Range, value: float) -> float:
    """In as many digits as random draws."""
    return value if some.whole else min(max(float(f"{value:.4g}"), some.low), some.high)


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise SettingError(
            f"the sampler optuna needs Optuna, which is not installed; {with_extra('sweep')}, "
            "or choose `sampler=random`"
        ) from None
    return optuna

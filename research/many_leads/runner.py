"""Runner: computes the items that a folder's ledger lacks, the most valuable first."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clocs.errors import SettingError
from clocs.evaluation.protocols import PROTOCOLS
from clocs.evaluation.result import plain
from clocs.experiments.ledger import Ledger, last_line, open_ledger
from clocs.experiments.runner import TimeIsOver, attempt
from clocs.training.loop import Epoch
from clocs.training.signals import pick_device
from research.many_leads.data import StudyData
from research.many_leads.items import STAGES, Item, Pretraining, Scoring, items
from research.many_leads.recipe import TINY, Recipe
from research.many_leads.steps import Bench


@dataclass(frozen=True)
class Done:
    """What a call has done."""

    computed: int
    failed: int
    left: int

    @property
    def complete(self) -> bool:
        return not self.failed and not self.left


def chosen(stages: str = STAGES, only: Sequence[str] = (), *, tiny: bool = False) -> list[Item]:
    """The items of these stages whose names contain one of `only`, and encoders they need.

    With `tiny` and without `only`, one of each kind in each stage, to try everything out.
    """
    unknown = set(stages) - set(STAGES)
    if unknown:
        raise SettingError(f"`stages` are letters of {STAGES}, not {', '.join(sorted(unknown))}")
    every = items(stages)
    named = [item for item in every if not only or any(one in item.name for one in only)]
    if tiny and not only:
        named = [item for stage in stages for item in _one_of_each(items(stage))]
    needed = {encoder for item in named for encoder in item.encoders}
    return [item for item in every if item in named or item in needed]


def _one_of_each(some: Sequence[Item]) -> list[Item]:
    """The first of every kind."""
    first: dict[tuple[object, ...], Item] = {}
    for item in some:
        if not isinstance(item, Pretraining):
            more = (item.conditions, item.leads) if isinstance(item, Scoring) else ()
            first.setdefault((_kind(item), *more), item)
    return list(first.values())


def run(
    out: Path,
    *,
    frames: Path | None = None,
    stages: str = STAGES,
    only: Sequence[str] = (),
    recipe: Recipe | None = None,
    device: str | None = None,
    seconds: float | None = None,
    retry: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Done:
    """Compute what the folder `out` lacks.

    Args:
        out: Folder of the ledger and the encoders.
        frames: Folder of saved frames; simulated ones where None.
        stages: Letters of the groups of items, from the most valuable on.
        only: Texts of which an item's name must contain one.
        recipe: How to train; the tiny one by default where data are simulated.
        device: 'cpu', 'cuda' …; the best available by default.
        seconds: Time limit; the next call resumes.
        retry: Compute again what failed.
        say: Called with a line per item.
    """
    began = time.monotonic()
    recipe = recipe or (Recipe() if frames else TINY)
    data = StudyData(frames, patients=recipe.patients)
    bench = Bench(data, recipe, out / "encoders", pick_device(device))
    with closing(open_ledger(out)) as ledger:
        ledger.require_fact("recipe", recipe.facts())
        for name, content in data.facts().items():
            ledger.require_fact(f"data of {name}", content)
        if retry:
            ledger.forget_failures()
        deadline = None if seconds is None else began + seconds
        wanted = chosen(stages, only, tiny=recipe.name == TINY.name)
        return _Runner(ledger, bench, deadline, say).work(wanted)


class _Runner:
    def __init__(
        self, ledger: Ledger, bench: Bench, deadline: float | None, say: Callable[[str], None]
    ) -> None:
        self.ledger, self.bench, self.deadline, self.say = ledger, bench, deadline, say

    def work(self, wanted: Sequence[Item]) -> Done:
        computed = 0
        for item in wanted:
            if self._why_not(item):
                continue
            self.ledger.add(item.name, _kind(item), asdict(item), len(item.encoders) or 1)
            with self.ledger.claim(item.name) as held:
                if not held:
                    continue
                if self.deadline is not None and time.monotonic() > self.deadline:
                    self.ledger.put_back(item.name, seconds=0)
                    continue
                computed += self._compute(item)
        states = self.ledger.states()
        own = [states.get(item.name, "waiting") for item in wanted if not self._missing(item)]
        return Done(
            computed, own.count("failed"), len(own) - own.count("done") - own.count("failed")
        )

    def _compute(self, item: Item) -> bool:
        began, bench = time.monotonic(), self.bench

        def on_epoch(epoch: Epoch) -> None:
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise TimeIsOver

        try:
            tried = attempt(lambda **_: [plain(bench.compute(item, on_epoch))], device=bench.device)
        except TimeIsOver:
            self.ledger.put_back(item.name, seconds=time.monotonic() - began)
            self.say(f"{item.name}: stopped by the time limit; the next call resumes it")
            return False
        gc.collect()
        if self.bench.device.type == "cuda":
            torch.cuda.empty_cache()
        if tried.error:
            self.ledger.fail(item.name, tried.error, seconds=tried.seconds)
            self.say(f"{item.name}: FAILED after {tried.seconds:.1f} s: {last_line(tried.error)}")
            return False
        (result,) = tried.results
        folder = None
        if isinstance(item, Pretraining):
            folder = str(self.bench.path(item).relative_to(self.ledger.folder))
        took, versions = tried.seconds, tried.versions
        self.ledger.finish(item.name, result, seconds=took, versions=versions, checkpoint=folder)
        self.say(f"{item.name}: {summary(result)} ({tried.seconds:.1f} s)")
        return True

    def _missing(self, item: Item) -> bool:
        """Whether its data, or its protocol, are not there."""
        lacks = set(item.needs) - set(self.bench.data.names)
        return bool(lacks) or (isinstance(item, Scoring) and item.protocol not in PROTOCOLS)

    def _why_not(self, item: Item) -> bool:
        """Whether it cannot be computed, or not yet."""
        if self._missing(item):
            return True
        for encoder in item.encoders:
            run = self.ledger.run(encoder.name)
            if run is None or run.state != "done":
                return True
        return False


def summary(result: Mapping[str, Any]) -> str:
    """The main number of a result."""
    if "auc_mean" in result:
        shown = [result["auc_mean"], *(result.get("ci95") or ()), result["auc_validation_mean"]]
        words = ["-" if number is None else f"{number:.4f}" for number in shown]
        around = f" ({words[1]} to {words[2]})" if len(words) > 2 else ""
        return f"AUC {words[0]}{around}, validation {words[-1]}"
    return str(result.get("metrics", "done"))


def _kind(item: Item) -> str:
    if isinstance(item, Pretraining):
        return "pretrain"
    return item.protocol if isinstance(item, Scoring) else item.kind

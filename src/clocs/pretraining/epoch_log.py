"""The log of a pre-training: one JSON line per member and epoch and, where wanted, event files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from clocs.files import write_atomic
from clocs.pretraining.cards import finite
from clocs.pretraining.plan import Plan
from clocs.pretraining.tensorboard import Events
from clocs.training.loop import Epoch

LOG, EVENTS = "log.jsonl", "tensorboard"


@contextmanager
def logged(
    out: Path,
    plan: Plan,
    on_epoch: Callable[[Epoch], None],
    *,
    epochs: int,
    tensorboard: bool,
) -> Iterator[Callable[[Epoch], None]]:
    """A function to call after each epoch: it writes the log, then event files, then calls back.

    Lines of epochs later than `epochs`, those done, are dropped, as these are computed again.
    """
    log, known = out / LOG, _cut(out / LOG, epochs)
    several = len(plan.chains) > 1
    runs = {
        (chain if several else None, seed): out / EVENTS / file.relative_to(out).with_suffix("")
        for (chain, seed), file in zip(plan.members, plan.files(out), strict=True)
    }
    with Events(runs, known) if tensorboard else nullcontext() as events:

        def report(epoch: Epoch) -> None:
            lines = _lines(epoch, plan)
            with log.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))
            if events is not None:
                for line in lines:
                    events.add(line)
            on_epoch(epoch)

        yield report


def _cut(log: Path, epochs: int) -> list[dict[str, Any]]:
    """Keep the lines of the first epochs, and return them."""
    if not log.exists():
        return []
    text = log.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = [(line, json.loads(line)) for line in text if line.endswith("\n")]
    kept = [(line, facts) for line, facts in lines if facts["epoch"] <= epochs]
    write_atomic(log, "".join(line for line, _ in kept).encode())
    return [facts for _, facts in kept]


def _lines(epoch: Epoch, plan: Plan) -> list[dict[str, Any]]:
    """One line per live member."""
    return [
        {
            "epoch": epoch.number,
            "seed": seed,
            **({"perturb": chain} if len(plan.chains) > 1 else {}),
            "train_loss": finite(epoch.train_loss[member]),
            **{f"validation_{name}": finite(v[member]) for name, v in epoch.validation.items()},
            "instances_per_second": round(epoch.instances / epoch.seconds, 1),  # of all members
            "seconds": round(epoch.seconds, 3),
        }
        for member, (chain, seed) in enumerate(plan.members)
        if epoch.live[member]
    ]

"""`sweep.json`: what a sweep is, and its trials; written anew after each of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from clocs.errors import CheckpointError
from clocs.experiments.sweep.space import Point, Varied
from clocs.files import leftovers, write_atomic
from clocs.locks import LOCK
from clocs.sealed import own_hash

RECORD, TABLE, TRIALS = "sweep.json", "sweep.csv", "trials"
FIGURES = ("sweep.png", "sweep.svg")
FORMAT = 1
TrialState = Literal["running", "done", "failed"]


@dataclass(frozen=True)
class Trial:
    """One pre-training of a sweep.

    Attributes:
        number: From 0; its folder is `trials/000` and so on.
        values: Of the options that are varied.
        state: 'done', 'failed' where the training diverged, or 'running', also after a kill.
        score: The mean over seeds.
        ci95: Its interval.
        per_seed: The score of each.
        seconds: That training and scoring took, since the last resumption.
        error: Why it failed.
    """

    number: int
    values: Point
    state: TrialState = "running"
    score: float | None = None
    ci95: list[float] | None = None
    per_seed: tuple[float, ...] = ()
    seconds: float | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        return f"{self.number:03d}"

    @property
    def words(self) -> str:
        """'lr=0.001 leads=II+V5'."""
        return " ".join(f"{name}={in_words(value)}" for name, value in self.values.items())


def in_words(value: Any) -> str:
    """A value as it is typed."""
    if value is None:
        return "none"
    return "+".join(value) if isinstance(value, tuple | list) else str(value)


def claim(folder: Path, definition: Mapping[str, Any], space: Sequence[Varied]) -> list[Trial]:
    """The trials that the folder holds of this sweep; refuses a folder of something else."""
    path = folder / RECORD
    if not path.is_file():
        ours = {LOCK, TRIALS, TABLE, *FIGURES, *(one.name for one in leftovers(path))}
        if any(one.name not in ours for one in folder.iterdir()):
            raise CheckpointError(f"{folder} holds other files; give a new folder as `out`")
        return []
    have, trials = _read(path)
    want = json.loads(json.dumps(definition))
    flat = [{**one, **one["options"]} for one in (have, want)]
    names = [name for name in {**flat[0], **flat[1]} if name != "options"]
    if differing := sorted(n for n in names if flat[0].get(n) != flat[1].get(n)):
        raise CheckpointError(
            f"{folder} holds a sweep with other settings ({', '.join(differing)}); give a new "
            "folder as `out`"
        )
    tuples = {one.name for one in space if any(isinstance(v, tuple) for v in one.ends)}
    return [
        Trial(
            **{
                **one,
                "values": {
                    name: tuple(value) if name in tuples and value is not None else value
                    for name, value in one["values"].items()
                },
                "per_seed": tuple(one["per_seed"]),
            }
        )
        for one in trials
    ]


def write(folder: Path, definition: Mapping[str, Any], trials: Sequence[Trial]) -> None:
    """Write the record, complete or not at all."""
    facts = {
        "format": FORMAT,
        "definition": dict(definition),
        "trials": [asdict(trial) for trial in trials],
    }
    plain = json.loads(json.dumps(facts))
    text = json.dumps(plain | {"sha256": own_hash(plain)}, indent=2, allow_nan=False)
    write_atomic(folder / RECORD, f"{text}\n".encode())


def write_table(folder: Path, trials: Sequence[Trial]) -> None:
    """Write `sweep.csv`, one row per trial in the order given."""
    text = io.StringIO()
    names = list(trials[0].values) if trials else []
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["trial", *names, "state", "score", "low", "high", "per_seed", "seconds"])
    for one in trials:
        low, high = one.ci95 or (None, None)
        rows.writerow(
            [
                one.name,
                *(in_words(value) for value in one.values.values()),
                *(one.state, one.score, low, high),
                *(" ".join(map(str, one.per_seed)), one.seconds),
            ]
        )
    write_atomic(folder / TABLE, text.getvalue().encode())


def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    remedy = "delete it, and finished trials are scored again without being trained"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        version = facts["format"]
        whole = facts.pop("sha256") == own_hash(facts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{path} is damaged; {remedy}") from None
    if version != FORMAT:
        raise CheckpointError(
            f"{path} has format {version!r:.50}, but this version of clocs reads format {FORMAT}; "
            "give a new folder as `out`"
        )
    if not whole:
        raise CheckpointError(f"{path} is damaged: it differs from its own hash; {remedy}")
    return facts["definition"], facts["trials"]

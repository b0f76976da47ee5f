"""How are the vectors of a recording's frames best made one? Scored on validation patients alone.

    PYTHONPATH=. python benchmarks/pooling.py cmsmlc-voltage stores/physionet2020
    PYTHONPATH=. python benchmarks/pooling.py cmsmlc-voltage stores/chapman --findings

Of an encoder of many leads, whose vectors are means over time, maxima over time and, in mV, numbers
of amplitudes. Logistic regressions are fitted on training patients, all of them and three draws of
a tenth; their L2 penalty is chosen on a fifth of these. Printed is the macro AUROC on validation
patients, and what it gains on the mean of all numbers. Test patients are never read. Of length 1
are vectors that `clocs embed` writes and searches compare. `--findings` takes the findings about
the form of waves that Chapman's store has beside the rhythm, with 20 recordings in both parts.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.evaluation import metrics
from clocs.evaluation.classifier_loss import classifier_loss
from clocs.evaluation.evaluate import frames_for
from clocs.evaluation.labeled import LabeledPart, rows_with_label
from clocs.evaluation.logistic import LogisticRegression, fit_logistic
from clocs.frames.frames import Frames
from clocs.store.store import Store, open_store
from clocs.training.checkpoint import load_checkpoint
from clocs.training.embed import StoreVectors, embed_instances

Array = NDArray[Any]
Pool = Callable[[Array, Array, int], Array]
L2 = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
SHARES = {"all labels": (1.0, 1), "a tenth": (0.1, 3)}  # of training patients, draws


def mean(z: Array, place: Array, count: int) -> Array:
    total = np.zeros((count, z.shape[1]))
    np.add.at(total, place, z)
    return total / np.bincount(place, minlength=count)[:, None]


def greatest(z: Array, place: Array, count: int) -> Array:
    made = np.full((count, z.shape[1]), -np.inf)
    np.maximum.at(made, place, z)
    return made


def power(z: Array, place: Array, count: int) -> Array:
    return mean(z.clip(min=0) ** 4, place, count) ** 0.25


def unit(z: Array) -> Array:
    return np.asarray(z / np.linalg.norm(z, axis=1, keepdims=True))


WAYS: dict[str, tuple[Pool, Pool, Pool]] = {  # of means, of maxima, of amplitudes
    "mean of all": (mean, mean, mean),
    "greatest of maxima": (mean, greatest, mean),
    "power mean of maxima": (mean, power, mean),
    "greatest of maxima and amplitudes": (mean, greatest, greatest),
    "greatest of all": (greatest, greatest, greatest),
    "greatest of maxima, of length 1": (mean, greatest, mean),
    "mean of vectors of length 1, of length 1": (mean, mean, mean),
}


class Part:
    """Recordings of one part: their frames' vectors, labels and patients."""

    def __init__(self, name: str, frames: Frames, cache: StoreVectors | None, split: int) -> None:
        checkpoint = load_checkpoint(name)
        rows = rows_with_label(frames, split, leads_at_once=True)
        own = LabeledPart(frames, rows, "recording")
        z = embed_instances([checkpoint], frames, rows, cache=cache)[0].double().numpy()
        first, end = checkpoint.encoder.maxima
        self.z, self.bounds = z, (first, end)
        self.place, self.patient = own.place, frames.patient[own.frame]
        self.y = torch.from_numpy(own.targets).double()
        self.ids = [frames.recording_ids[n] for n in frames.recording[own.frame]]

    def by(self, way: str) -> torch.Tensor:
        kinds = np.split(unit(self.z) if "vectors of length 1" in way else self.z, self.bounds, 1)
        made = [pool(z, self.place, len(self.y)) for pool, z in zip(WAYS[way], kinds, strict=True)]
        whole = np.concatenate(made, axis=1)
        return torch.from_numpy(unit(whole) if way.endswith(", of length 1") else whole)


def fitted(
    x: torch.Tensor, y: torch.Tensor, rows: Array, l2: float, *, multilabel: bool
) -> LogisticRegression:
    own = x[rows][None], y[rows][None]
    return fit_logistic(*own, own[0], own[1][0], multilabel=multilabel, l2_strengths=[l2])


def auc(
    train: Part, validation: Part, way: str, share: float, draw: int, *, multilabel: bool
) -> float:
    x, judged = train.by(way), validation.by(way)
    people = np.random.default_rng(draw).permutation(np.unique(train.patient))
    some = people[: math.ceil(share * len(people))]
    held = np.isin(train.patient, some[::5])
    losses = []
    for l2 in L2:
        tried = fitted(x, train.y, np.isin(train.patient, some) & ~held, l2, multilabel=multilabel)
        found = tried.logits(x[held][None])
        losses.append(float(classifier_loss(found, train.y[held], multilabel)[0]))
    best = L2[int(np.argmin(losses))]
    model = fitted(x, train.y, np.isin(train.patient, some), best, multilabel=multilabel)
    logits = model.logits(judged[None])[0]
    chances = (logits.sigmoid() if multilabel else logits.softmax(dim=-1)).numpy()
    return metrics.macro(metrics.auc_per_class(chances, validation.y.numpy().astype(np.uint8)))


def take_findings(parts: Sequence[Part], store: Store) -> None:
    rows = store.table.select("id", "extra").iter_rows()
    found = {name: set(json.loads(extra)["beat"].split()) for name, extra in rows}
    codes = sorted(set().union(*found.values()) - {"NONE"})
    for part in parts:
        part.y = torch.tensor([[code in found[name] for code in codes] for name in part.ids])
    enough = torch.stack([part.y.sum(dim=0) >= 20 for part in parts]).all(dim=0)
    for part in parts:
        part.y = part.y[:, enough].double()
    print(f"{int(enough.sum())} findings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("encoder")
    parser.add_argument("store", type=Path)
    parser.add_argument("--findings", action="store_true")
    given = parser.parse_args()
    store = open_store(given.store)
    checkpoint = load_checkpoint(given.encoder)
    frames = frames_for([[checkpoint]], store)
    cache = StoreVectors.of_frames(store, frames)
    frames = frames.for_leads(checkpoint.encoder.leads)
    train, validation = parts = [Part(given.encoder, frames, cache, n) for n in (0, 1)]
    multilabel = frames.multilabel or given.findings
    if given.findings:
        take_findings(parts, store)
    print("| | " + " | ".join(f"{name} | gain" for name in SHARES) + " |")
    print("| --- " * (2 * len(SHARES) + 1) + "|")
    first: list[float] = []
    for way in WAYS:
        own = []
        for share, draws in SHARES.values():
            each = [
                auc(train, validation, way, share, draw, multilabel=multilabel)
                for draw in range(draws)
            ]
            own.append(float(np.mean(each)))
        first = first or own
        cells = [f"{a:.4f} | {a - b:+.4f}" for a, b in zip(own, first, strict=True)]
        print(f"| {way} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

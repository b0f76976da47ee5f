"""Are explanations faithful? What they mark is deleted, and the logit must fall.

    python benchmarks/explain.py MODEL STORE [--recordings 40] [--seed 0]

For classifiers on encoders of one lead; explain_many_leads.py is for the others.

Of recordings of test patients, the most probable label is explained. Then a few of all tenths of a
second, over all leads, are deleted: those that `clocs.explain` says speak most for the label, those
of integrated gradients (from a flat line at the median of each lead, 64 steps), those with the
largest amplitude, and random ones. A control is what `clocs.explain` says of the same network with
random weights, whose explanations can know no more than the signal. A tenth of a second is deleted
in two ways: by a straight line, as the map is made, and by another tenth of a second of the same
lead, from a random place. The recordings are the same for all; frames are normalized again after
the deletion. Printed are mean falls of the logit, and their ratio to those of random places, with
the share of recordings in which the fall is greater; and the rank correlation of the maps of the
trained and the random network.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

from clocs.frames.splits import PARTS, split_patients
from clocs.models.classifier import Classifier, as_classifier
from clocs.models.explain import Explainer, module_input
from clocs.store.store import open_store

SHARES = (0.02, 0.05, 0.10)
STEPS = 64
Cells = NDArray[np.float32]


def in_cells(explainer: Explainer, x: Tensor, combine: str) -> Cells:
    """(leads, samples) -> (leads, cells): the sum in each, or its range."""
    frames = x.view(len(x), -1, explainer.module.samples)
    pieces = frames.split(np.diff(explainer.edges).tolist(), dim=-1)
    if combine == "sum":
        made = [piece.sum(dim=-1) for piece in pieces]
    else:
        made = [piece.amax(dim=-1) - piece.amin(dim=-1) for piece in pieces]
    return torch.stack(made, dim=-1).flatten(1).numpy()


def gradients(explainer: Explainer, x: Tensor, k: int) -> Cells:
    """Integrated gradients of the mean logit, summed over each cell."""
    module = explainer.module
    views, there = (one[0] for one in module.frames(x[None]))
    flat = views.nanmedian(dim=-1, keepdim=True).values
    total = torch.zeros_like(views)
    for step in range(STEPS):
        way = (flat + (step + 0.5) / STEPS * (views - flat)).requires_grad_()
        logits = explainer.logit_of(k, module.network(way))
        total += torch.autograd.grad(logits[there].sum(), way)[0]
    made = (views - flat) * total / STEPS
    by_lead = made.transpose(0, 1) if module.leads else made
    return in_cells(explainer, by_lead.reshape(len(x), -1), "sum")


def randomized(classifier: Classifier, seed: int) -> Classifier:
    """The same network as it was initialized, its last layer shuffled."""
    keys, draw = torch.tensor([seed]), torch.Generator().manual_seed(seed)
    encoders = tuple(
        replace(one, weights=one.encoder.parameters(keys), buffers=one.encoder.buffers(1))
        for one in classifier.encoders
    )
    head = {
        name: own.flatten()[torch.randperm(own.numel(), generator=draw)].view(own.shape)
        for name, own in classifier.head.items()
    }
    return replace(classifier, encoders=encoders, head=head)


def elsewhere(
    explainer: Explainer, x: Tensor, values: Cells, share: float, rng: np.random.Generator
) -> Tensor:
    """(leads, samples) with another cell of the same lead in place of those of greatest value."""
    made, edges = x.clone(), np.array(explainer.edges)
    cells = len(edges) - 1
    order = np.argsort(-np.nan_to_num(values, nan=-np.inf), axis=None, kind="stable")
    for place in order[: max(1, round(share * int(np.isfinite(values).sum())))].tolist():
        lead, cell = divmod(place, values.shape[1])
        other = int(rng.choice(np.flatnonzero(np.isfinite(values[lead]))))
        start, source = (
            number // cells * explainer.module.samples + int(edges[number % cells])
            for number in (cell, other)
        )
        width = min(int(np.diff(edges)[number % cells]) for number in (cell, other))
        piece = x[lead, source : source + width]
        made[lead, start : start + width] = piece - piece[0] + x[lead, start]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("--recordings", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    classifier, store = as_classifier(given.model), open_store(given.store)
    explainer, control = Explainer(classifier), Explainer(randomized(classifier, given.seed))
    everyone = split_patients(store, split_seed=0)
    test = np.flatnonzero(everyone.part[everyone.recording] == PARTS.index("test"))
    rng = np.random.default_rng(given.seed)
    falls: dict[tuple[str, str, float], list[float]] = {}
    alike = []
    for row in rng.permutation(test)[: given.recordings].tolist():
        x = torch.from_numpy(module_input(explainer.checkpoint, store.recording(row)))
        with torch.no_grad():
            sums, _ = explainer.frame_logits(x)
            k = int(sums.sum(dim=0).argmax())
            effects, before = explainer.effects(x, k), explainer.logit(x, k)
            unknowing = control.effects(x, k)
        absent = np.isnan(effects)
        alike.append(float(spearmanr(effects[~absent], unknowing[~absent]).statistic))
        ways = {
            "occlusion (clocs.explain)": effects,
            "integrated gradients": gradients(explainer, x, k),
            "occlusion, random weights": unknowing,
            "largest amplitude": in_cells(explainer, x, "range"),
            "random": rng.random(effects.shape, np.float32),
        }
        with torch.no_grad():
            for name, values in ways.items():
                marked = np.where(absent, np.nan, values)
                for share in SHARES:
                    lines = explainer.deleted(x, marked, share)
                    others = elsewhere(explainer, x, marked, share, rng)
                    for how, left in (("straight line", lines), ("another place", others)):
                        fall = before - explainer.logit(left, k)
                        falls.setdefault((how, name, share), []).append(fall)
    print(f"{given.recordings} recordings of test patients of {store.manifest.dataset}")
    print(f"rank correlation of maps, trained and random weights: {np.mean(alike):.2f}")
    for how in ("straight line", "another place"):
        print(f"replaced by: {how}")
        print("deleted  places                      fall of the logit  × random  more than random")
        for share in SHARES:
            random = np.array(falls[how, "random", share])
            for (by, name, own), each in falls.items():
                if (by, own) == (how, share):
                    mean, more = np.mean(each), np.mean(np.array(each) > random)
                    ratio = mean / random.mean()
                    print(f"{share:6.0%}   {name:26}  {mean:17.2f}  {ratio:8.1f}  {more:16.0%}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""Are explanations of classifiers on encoders of many leads faithful?

    python benchmarks/explain_many_leads.py MODEL STORE [--recordings 40] [--seed 0] [--quick]

Of recordings of test patients for which some label is predicted, the most probable label of the
first frame is explained. Then a share of all tenths of a second is replaced by straight lines in
all leads (deletion), or all others are (insertion): first those that speak most for the label. The
probability must fall by deletion, and stay by insertion. Compared are

- 0.3 s or 0.1 s in all leads replaced at once; `clocs.explain` uses one of them;
- 0.1 s of one lead, summed over leads, as encoders of one lead are explained; it takes most of the
  time, and is left out by --quick;
- integrated gradients from zero in normalized units, which is the mean of each lead, in 32 steps,
  summed over leads, as they are and averaged over 0.3 s;
- the tenths with the largest amplitude, and random ones.

The recordings are the same for all. Then tenths of a second are replaced in single leads: those
where the map of time and leads that `clocs.explain` draws is greatest, or where replacing them one
lead at a time changed most. Last, leads are missing instead: of those that are there, the most
important half.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.errors import ClocsError
from clocs.frames.splits import PARTS, split_patients
from clocs.models.classifier import as_classifier
from clocs.models.explain import Explainer, module_input
from clocs.store.store import open_store

SHARES = (0.1, 0.2, 0.3)
STEPS = 32
Values = NDArray[np.float32]


def gradients(explainer: Explainer, x: Tensor, k: int) -> Values:
    """(leads, samples) in mV -> (leads, cells): integrated gradients, summed over each cell."""
    views = explainer.module.frames(x[None])[0][0]
    total = torch.zeros_like(views)
    with torch.enable_grad():
        for part in torch.arange(STEPS).split(16):
            way = ((part + 0.5)[:, None, None] / STEPS * views).requires_grad_()
            logits = explainer.logit_of(k, explainer.module.network(way))
            total += torch.autograd.grad(logits.sum(), way)[0].sum(dim=0)
    pieces = (views * total / STEPS)[0].split(np.diff(explainer.edges).tolist(), dim=-1)
    return torch.stack([piece.sum(dim=-1) for piece in pieces], dim=-1).numpy()


def amplitude(explainer: Explainer, x: Tensor) -> Values:
    pieces = x.split(np.diff(explainer.edges).tolist(), dim=-1)
    return torch.stack([p.amax(dim=-1) - p.amin(dim=-1) for p in pieces], dim=-1).numpy()


def smooth(values: Values) -> Values:
    """(cells,) averaged over three."""
    return np.convolve(np.pad(values, 1, "edge"), np.ones(3) / 3, "valid").astype(np.float32)


def ways_over_time(
    explainer: Explainer, x: Tensor, k: int, random: Values, one_lead: Values | None
) -> dict[str, Values]:
    """(cells,) each; one_lead: (leads, cells), what replacing one lead at a time changes."""
    each = {} if one_lead is None else {"0.1 s of each lead, summed": one_lead.sum(axis=0)}
    by_gradients = gradients(explainer, x, k).sum(axis=0)
    return {
        "0.1 s of all leads": explainer.effects_over_time(x, k),
        **each,
        "integrated gradients": by_gradients,
        "integrated gradients, 0.3 s": smooth(by_gradients),
        "largest amplitude": amplitude(explainer, x).sum(axis=0),
        "random": random,
    }


def ways_over_cells(
    explainer: Explainer, x: Tensor, k: int, random: Values, one_lead: Values | None
) -> dict[str, Values]:
    """(leads, cells) each."""
    return {
        "as drawn (clocs.explain)": explainer.effects(x, k),
        **({} if one_lead is None else {"0.1 s of one lead at a time": one_lead}),
        "integrated gradients": gradients(explainer, x, k),
        "largest amplitude": amplitude(explainer, x),
        "random": random,
    }


def without_leads(x: Tensor, values: Values) -> Tensor:
    """The half with the greatest values missing."""
    made = x.clone()
    made[np.argsort(-values)[: len(values) // 2].copy()] = torch.nan
    return made


def recordings(explainer: Explainer, store_path: str, count: int, seed: int) -> list[Tensor]:
    """(leads, samples) of the first frame of each."""
    store = open_store(store_path)
    everyone = split_patients(store, split_seed=0)
    test = np.flatnonzero(everyone.part[everyone.recording] == PARTS.index("test"))
    found: list[Tensor] = []
    for row in np.random.default_rng(seed).permutation(test).tolist():
        if len(found) == count:
            break
        try:
            x = torch.from_numpy(module_input(explainer.checkpoint, store.recording(row)))
        except ClocsError:
            continue  # too short
        x = x[:, : explainer.module.samples]
        p = probabilities(explainer, x)
        limits = [2 if one is None else one for one in explainer.card.thresholds]
        if not bool(x.isnan().any()) and bool((p >= torch.tensor(limits)).any()):
            found.append(x)
    return found


def probabilities(explainer: Explainer, x: Tensor) -> Tensor:
    return explainer.classifier.probabilities(explainer.frame_logits(x)[0])[0]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("--recordings", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    explainer = Explainer(as_classifier(given.model))
    rng = np.random.default_rng(given.seed)
    found: dict[tuple[str, str, float], list[float]] = {}
    whole: list[float] = []
    for x in recordings(explainer, given.store, given.recordings, given.seed):
        p = probabilities(explainer, x).tolist()
        k = explainer._most_probable(p)
        whole.append(p[k])

        def left(x: Tensor, k: int = k) -> float:
            return float(probabilities(explainer, x)[k])

        cells = len(explainer.edges) - 1
        one_lead = None if given.quick else explainer.effects_of_cells(x, k)
        ways = ways_over_time(explainer, x, k, rng.random(cells, np.float32), one_lead)
        for name, values in ways.items():
            for share in SHARES:
                gone = left(explainer.deleted(x, values[None], share))
                found.setdefault(("deleted", name, share), []).append(gone)
                kept = left(explainer.deleted(x, -values[None], 1 - share))
                found.setdefault(("inserted", name, share), []).append(kept)
        own_rng = np.random.default_rng(len(whole))
        random = own_rng.random((len(x), cells), np.float32)
        for name, values in ways_over_cells(explainer, x, k, random, one_lead).items():
            for share in SHARES:
                gone = left(explainer.deleted_cells(x, values, share))
                found.setdefault(("cells", name, share), []).append(gone)
        leads = {
            "each lead missing (clocs.explain)": explainer.effects_of_leads(x, k),
            "integrated gradients": gradients(explainer, x, k).sum(axis=1),
            "random": rng.random(len(x), np.float32),
        }
        for name, by_lead in leads.items():
            found.setdefault(("leads", name, 0.5), []).append(left(without_leads(x, by_lead)))
        print(f"{len(whole)} …", end="\r", flush=True)
    print(f"{len(whole)} recordings, mean probability {np.mean(whole):.3f}")
    print("            probability after deleting   after keeping alone   greater fall than")
    print("tenths of          10 %   20 %   30 %    10 %   20 %   30 %   random, at 10 %")
    for name in dict.fromkeys(name for what, name, _ in found if what == "deleted"):
        row = [np.mean(found[what, name, s]) for what in ("deleted", "inserted") for s in SHARES]
        more = np.array(found["deleted", name, 0.1]) < np.array(found["deleted", "random", 0.1])
        print(f"{name:28}" + "".join(f"  {value:.3f}" for value in row) + f"  {more.mean():.0%}")
    print("probability after deleting tenths of single leads       fall × random, at 10 %")
    for name in dict.fromkeys(name for what, name, _ in found if what == "cells"):
        row = [np.mean(found["cells", name, share]) for share in SHARES]
        fall, usual = (np.mean(whole) - np.mean(found["cells", n, 0.1]) for n in (name, "random"))
        print(f"{name:28}" + "".join(f"  {value:.3f}" for value in row) + f"  {fall / usual:.1f}")
    print("probability without half of the leads")
    for (what, name, _), own in found.items():
        if what == "leads":
            print(f"{name:36} {np.mean(own):.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""How well the ECG's share of the power tells frames that people marked as noise from all others.

    python benchmarks/ecg_share.py STORE LABEL [--frames 500]

Frames of the store are cut as the dataset says, at most so many of each kind, chosen at random.
Printed are the chance that a marked frame has the lower share (AUROC), beside that of two common
measures of single numbers: kurtosis, and the share of power between 5 and 15 Hz of that up to
40 Hz.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import clocs
from clocs.evaluation import metrics
from clocs.frames.make import FramePlan, plan_frames
from clocs.models.classifier import ecg_share_and_flat


def frames_of(plan: FramePlan, chosen: NDArray[np.int64]) -> Tensor:
    """(frames, samples) of the first lead."""
    first = np.concatenate(([0], np.cumsum(plan.counts)))
    made = {}
    for i, values, _ in plan.windows(np.unique(plan.cuts.recording[chosen])):
        for row in chosen[plan.cuts.recording[chosen] == i]:
            made[row] = values[0, row - first[i]]
    return torch.from_numpy(np.stack([made[row] for row in chosen]))


def kurtosis(x: Tensor) -> Tensor:
    x = x.float() - x.float().mean(dim=-1, keepdim=True)
    return x.pow(4).mean(dim=-1) / x.square().mean(dim=-1).clamp(min=1e-9).square()


def power_share(x: Tensor, rate: float) -> Tensor:
    power = torch.fft.rfft(x.float()).abs().square()
    hertz = torch.fft.rfftfreq(x.shape[-1], 1 / rate)
    whole = power[:, (hertz >= 5) & (hertz < 40)].sum(dim=-1)
    share: Tensor = power[:, (hertz >= 5) & (hertz < 15)].sum(dim=-1) / whole.clamp(min=1e-9)
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("label")
    parser.add_argument("--frames", type=int, default=500)
    given = parser.parse_args()
    store = clocs.open_store(given.store)
    plan = plan_frames(store)
    rate, random = plan.spec.rate, np.random.default_rng(0)
    marked = plan.target[:, store.manifest.labels.index(given.label)] > 0
    kinds = [np.flatnonzero(plan.kept & plan.target.any(axis=1) & (marked == m)) for m in (0, 1)]
    some = [np.sort(random.permutation(kind)[: given.frames]) for kind in kinds]
    x = [frames_of(plan, rows) for rows in some]
    target = np.repeat([0, 1], [len(rows) for rows in some])[:, None].astype(np.uint8)
    print(f"{store.path.name}: {len(some[1])} frames of {given.label}, {len(some[0])} others, "
          f"{plan.spec.seconds:g} s each")  # fmt: skip
    measures = {
        "ECG's share of the power": [ecg_share_and_flat(one, rate)[0] for one in x],
        "kurtosis": [kurtosis(one) for one in x],
        "power between 5 and 15 Hz": [power_share(one, rate) for one in x],
    }
    for name, found in measures.items():
        value = -torch.cat(found).double().numpy()[:, None]
        print(f"{name}: AUROC {metrics.auc_per_class(value, target)[0]:.3f}")


if __name__ == "__main__":
    main()

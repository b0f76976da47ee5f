"""Measure the bootstrap over seeds and patients: the quadratic form against resampling rows.

Also of two sexes and five ages beside all patients: together, and one by one.

Simulated predictions of five seeds, the size of PhysioNet 2020's test part (1,375 patients, 16,000
rows, nine classes). On a CPU, the slow way is timed on fewer resamples, and its time scaled up; a
GPU has one way.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from clocs.evaluation import bootstrap
from clocs.evaluation.bootstrap import Resampling

PATIENTS, ROWS, CLASSES = 1375, 16_000, 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--members", type=int, default=5, help="seeds per method")
    parser.add_argument("--methods", type=int, default=1)
    parser.add_argument("--resamples", type=int, default=2000)
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    patient = draw.integers(0, PATIENTS, ROWS)
    has = draw.random((PATIENTS, CLASSES)) < np.linspace(0.04, 0.27, CLASSES)
    targets = has.astype(np.uint8)[patient]
    scores = draw.normal(size=(options.members, ROWS, CLASSES)) + targets

    age, sex = draw.integers(0, 5, PATIENTS)[patient], draw.integers(0, 2, PATIENTS)[patient]
    groups = [sex == number for number in range(2)] + [age == number for number in range(5)]

    def seconds(
        resamples: int, methods: int, *, parts: Sequence[Any] = (), alone: Any = ...
    ) -> float:
        began = time.perf_counter()
        for _ in range(methods):
            plan = Resampling.of(
                "physionet2020",
                [str(number) for number in range(PATIENTS)],
                range(options.members),
                resamples=resamples,
                device=options.device,
            )
            own = scores[:, alone], targets[alone], patient[alone]
            bootstrap.macro_auc_draws(*own, plan, parts)
        return time.perf_counter() - began

    if options.device != "cpu":
        torch.empty(1, device=options.device)
        seconds(10, 1)  # the first call loads what the device needs
    form = seconds(options.resamples, options.methods)
    members = options.members * options.methods
    print(f"{members} members, {options.resamples} resamples on {options.device}: {form:.2f} s")
    together = seconds(options.resamples, options.methods, parts=groups)
    each = form + sum(seconds(options.resamples, options.methods, alone=rows) for rows in groups)
    print(f"with 7 groups {together:.2f} s, one by one {each / together:.1f} times as long")
    if options.device == "cpu":
        few = max(1, options.resamples // 100)
        bootstrap._LARGEST = 0
        slow = seconds(few, 1) * options.methods * options.resamples / few
        print(f"from rows {slow:.2f} s (from {few} resamples), {slow / form:.0f} times as long")


if __name__ == "__main__":
    main()

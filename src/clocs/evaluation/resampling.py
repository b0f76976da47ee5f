"""The resampling plan: what every draw of the bootstrap does, one plan for all results.

Draw r is a function of the names of things alone: of (dataset, patient, r) for a patient's weight,
and of (seed, r) for a seed's. So results that were scored at different times and places share their
draws, and two of them are compared by subtracting draw from draw: paired over patients and seeds.

A patient counts 0, 1, 2, … times (Poisson, mean 1; independent patients, so that leaving one out
changes no other). Few seeds need more care: resampling five of them with replacement understates
how much their mean varies, and finds differences that are not there. Their weights are normal and
scaled so that, were the patients fixed, the interval would be Student's for that many seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import chdtri, ndtri
from torch import Tensor

from clocs.errors import SettingError
from clocs.frames.splits import keys_of
from clocs.kernels.keyed_random import fold, stream, uniform

_BLOCK = 1000  # draws made at once; part of the plan
_PATIENTS = 10_000  # drawn at once
_POISSON = tuple(accumulate(math.exp(-1) / math.factorial(k) for k in range(18)))  # P(weight ≤ k)


@dataclass(frozen=True)
class Resampling:
    """The weights of some patients and seeds in the first draws of the plan."""

    patients: list[Tensor]  # blocks of draws: (draws, patients) float32 each
    seeds: NDArray[np.float64]  # (seeds, draws), adding up to 1 in every draw

    @classmethod
    def of(
        cls,
        dataset: str,
        patient_ids: Sequence[str],
        seeds: Sequence[int],
        *,
        resamples: int,
        device: torch.device | str = "cpu",
    ) -> Resampling:
        """The plan for these patients and seeds; more `resamples` leave the first as they are."""
        check_resamples(resamples)
        weights = mean_weights("seed", seeds, resamples)
        return cls(patient_weights(dataset, patient_ids, resamples, device), weights)

    @property
    def resamples(self) -> int:
        return int(self.seeds.shape[1])


def check_resamples(resamples: int) -> None:
    """SettingError where there cannot be as many draws; asked before anything is computed."""
    if resamples < 0:
        raise SettingError(f"`resamples` is {resamples}; give 0 or more")


def patient_weights(
    dataset: str, patient_ids: Sequence[str], resamples: int, device: torch.device | str = "cpu"
) -> list[Tensor]:
    """How often each patient counts: blocks of (draws, patients) whole numbers in float32."""
    names = keys_of(f"{dataset}:{patient}" for patient in patient_ids).view(np.int64)
    keys = fold(torch.from_numpy(names.copy()).to(device), stream("patient"))
    table = torch.tensor(_POISSON, dtype=torch.float64, device=device)
    blocks = []
    for number, start in enumerate(range(0, resamples, _BLOCK)):
        size = min(_BLOCK, resamples - start)
        counts = [
            torch.bucketize(uniform(some, size), table, right=True).float().T
            for some in fold(keys, number).split(_PATIENTS)
        ]
        blocks.append(torch.cat(counts, dim=1).contiguous())
    return blocks


def mean_weights(kind: str, numbers: Sequence[int], resamples: int) -> NDArray[np.float64]:
    """(numbers, draws) weights of a mean over seeds, or over patient splits.

    With one value per number, the weighted means of all draws are distributed as Student's t around
    the plain mean, with the scale of its standard error; a single number has weight 1.

    Args:
        kind: What the numbers count: 'seed' or 'split'.
        numbers: Which of them, each once.
        resamples: How many draws.
    """
    n = len(numbers)
    if n < 2:
        return np.ones((n, resamples))
    keys = fold(torch.tensor(list(numbers)), stream(kind))
    normal = ndtri(_open_uniform(keys, resamples))
    normal -= normal.mean(axis=0)
    spread = _open_uniform(fold(torch.zeros(1, dtype=torch.int64), stream(f"{kind}s")), resamples)
    chi_square = chdtri(n - 1, spread[0])  # with n − 1 degrees of freedom
    weights: NDArray[np.float64] = 1 / n + normal / np.sqrt(n * chi_square)
    return weights


def _open_uniform(keys: Tensor, count: int) -> NDArray[np.float64]:
    """keys: (n,) -> (n, count) uniform in (0, 1)."""
    draws: NDArray[np.float64] = uniform(keys, count).numpy()
    return draws + 2.0**-54

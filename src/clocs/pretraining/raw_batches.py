"""Batches of views in mV, perturbed but not normalised: to measure what normalising does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from clocs import keyed_random
from clocs.frames.views import Views
from clocs.pretraining.batches import Batch, BatchMaker, Part
from clocs.pretraining.perturbations import parse
from clocs.training.signals import Signals


class RawBatchMaker(BatchMaker):
    """Views as they are recorded, in mV."""

    def __init__(
        self, signals: Signals, views: Views, members: int, perturb: Sequence[str], multilabel: bool
    ) -> None:
        super().__init__(signals, views, members, perturb, multilabel)
        each = [(chain,) * len(views.copies) for chain in perturb] or [views.copies] * members
        # for each member the chains of its copies
        self._each = [[parse(chain) if chain else None for chain in copies] for copies in each]

    def batch(self, part: Part, rows: Tensor, keys: Tensor) -> Batch:
        starts = self.signals.located(part.windows[rows].transpose(1, 2).flatten(1))
        x = self.signals.raw(starts, part.scale[rows].transpose(1, 2).flatten(1))
        copies = []
        for i in range(len(self._each[0])):
            key = keyed_random.fold(keys, keyed_random.stream("copy"), i)
            own = [
                chain(x[m : m + 1], key[m : m + 1]) if (chain := chains[i]) else x[m : m + 1]
                for m, chains in enumerate(self._each)
            ]
            copies.append(torch.cat(own))
        views = torch.cat(copies, dim=1).to(self.signals.dtype)
        return replace(super().batch(part, rows, keys), x=views)

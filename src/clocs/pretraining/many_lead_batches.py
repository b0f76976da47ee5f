"""Batches for encoders that see many leads at once: views through all leads or random subsets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clocs.frames.frames import ABSENT
from clocs.frames.views import Views
from clocs.kernels import keyed_random
from clocs.pretraining.batches import Batch, Copies, Part, by_view, chains_of, members_alike
from clocs.pretraining.perturbations import Chain
from clocs.training.signals import Signals, standardize


def random_subsets(present: Tensor, keys: Tensor, most: int) -> Tensor:
    """present: (members, n, leads) bool -> the same: 1 to `most` leads of those present."""
    lead, kept = random_leads(present, keys, most)
    return torch.zeros_like(present).scatter_(2, lead, kept)


def random_leads(present: Tensor, keys: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """present: (members, n, leads) bool -> (members, n, most): leads, and whether they are kept.

    How many is uniform in 1 … the lesser of `most` and those present, and so is which; those kept
    come first, and all are different. A function of key, row and lead; nothing waits for the host.
    """
    members, n, leads = present.shape
    key = keyed_random.fold(keys, keyed_random.stream("leads"))
    draws = keyed_random.bits(key, n * leads).view(present.shape)
    last = torch.iinfo(torch.int64).max
    lead = draws.masked_fill(~present, last).argsort(dim=-1, stable=True)[..., :most]
    size_key = keyed_random.fold(keys, keyed_random.stream("number of leads"))
    share = keyed_random.uniform(size_key, n).view(members, n, 1)
    limit = present.sum(dim=-1, keepdim=True).clamp(max=most)
    number = torch.arange(lead.shape[-1], device=lead.device)
    return lead, (number < 1 + (share * limit).to(torch.int64)) & present.gather(2, lead)


class ManyLeadBatchMaker:
    """Gathers, perturbs and standardizes the leads that each view sees.

    Leads are perturbed in mV (or the steps of the file, where its gain is unknown), each by its own
    random numbers, but all of a view are moved in time together; then they are standardized, or
    before that, if the views say so.
    """

    def __init__(
        self,
        signals: Signals,
        views: Views,
        members: int,
        perturb: Sequence[str],
        *,
        multilabel: bool,
    ) -> None:
        """`perturb` is one chain per member, in place of those of the views."""
        self.signals, self.views, self.multilabel = signals, views, multilabel
        self.copies = len(views.copies)
        self._runs = members_alike(chains_of(views, members, perturb))

    def batch(self, part: Part, rows: Tensor, keys: Tensor) -> Batch:
        """rows: (members, batch) -> their views: every copy of every window."""
        views = self.copies * part.windows.shape[1]
        if not rows.numel():  # of a batch that processes share
            shape = (len(rows), 0, part.windows.shape[2], self.signals.samples)
            x = rows.new_empty(shape, dtype=self.signals.dtype)
            return Batch(x, part, rows, self.multilabel, views)
        starts = self.signals.located(part.starts(rows, keys))
        scale = by_view(part.scale, rows)
        copies = [
            torch.cat([self._copy(starts, scale, keys, i, *run) for run in self._runs])
            for i in range(self.copies)
        ]
        return Batch(torch.cat(copies, dim=1), part, rows, self.multilabel, views)

    def _copy(
        self,
        starts: Tensor,
        scale: Tensor,
        keys: Tensor,
        number: int,
        members: slice,
        chains: Copies,
    ) -> Tensor:
        """(members, windows·batch, leads, samples) of the copies of that number."""
        starts, scale, chain = starts[members], scale[members], chains[number]
        key = keyed_random.fold(keys[members], keyed_random.stream("copy"), number)
        if not self.views.most_leads:
            return self._perturbed(starts, scale, key, chain)
        # only what is seen is gathered and perturbed, and then put into its place
        lead, kept = random_leads(starts != ABSENT, key, self.views.most_leads)
        own = torch.where(kept, starts.gather(2, lead), ABSENT)
        seen = self._perturbed(own, scale.gather(2, lead), key, chain)
        x = seen.new_full((*starts.shape, seen.shape[-1]), torch.nan)
        return x.scatter_(2, lead[..., None].expand_as(seen), seen)

    def _perturbed(self, starts: Tensor, scale: Tensor, key: Tensor, chain: Chain | None) -> Tensor:
        """starts, scale: (members, n, leads) -> (members, n, leads, samples), nan where absent."""
        if chain is None:
            return self.signals.standardized(starts)
        if self.views.normalized_first:
            x = self.signals.standardized(starts)
        else:
            x = self.signals.raw(starts, torch.where(starts == ABSENT, torch.nan, scale))
        x = chain(x, key)
        return (x if self.views.normalized_first else standardize(x)).to(self.signals.dtype)

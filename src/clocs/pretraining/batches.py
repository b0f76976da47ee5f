"""The instances of a dataset on the device, and batches of all their views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clocs.frames.frames import ABSENT, Frames
from clocs.frames.views import Instances, Views
from clocs.kernels import keyed_random
from clocs.kernels.gpu import can_use_triton
from clocs.kernels.ranks import Ranks, Share, sharing
from clocs.pretraining.perturbations import PERTURBATIONS, Chain, parse
from clocs.training.card import CENTERED, INPUT_OFFSETS
from clocs.training.signals import Signals, min_max, standardize

Program = tuple[tuple[float, ...], ...]  # a chain as `kernels.windows_triton` reads it

MAX_PIECES = 64  # the kernel goes through a view once for each of them


@dataclass(frozen=True)
class DeviceInstances:
    """Instances of the training or validation part."""

    windows: Tensor  # (instances, windows), or (instances, windows, leads) of many leads at once
    scale: Tensor  # the same shape
    patients: Tensor  # (instances,)
    targets: Tensor  # (instances, classes)
    room: Tensor | None  # (instances,) of random crops: how far a window can be moved
    on_host: tuple[Tensor, Tensor | None]  # copies of `windows` and `room`

    @classmethod
    def from_instances(
        cls, frames: Frames, rows: Instances, device: torch.device
    ) -> DeviceInstances:
        shape = (len(rows), -1, rows.leads_at_once) if rows.leads_at_once else (len(rows), -1)
        arrays: list[Any] = [
            rows.windows.reshape(shape),
            rows.scale.reshape(shape),
            frames.patient[rows.frame].astype(np.int64),
            frames.target[rows.frame],
        ]
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        room = None if rows.room is None else torch.from_numpy(rows.room)
        on_device: list[Any] = [None if x is None else x.to(device) for x in (*tensors, room)]
        return cls(*[*on_device, (tensors[0], room)])

    def starts(self, rows: Tensor, keys: Tensor) -> Tensor:
        """rows: (members, batch), keys: (members,) -> (members, windows·batch[, leads]) starts.

        On the device of `rows`, the same on each. Random crops are functions of key, row of the
        batch and view.
        """
        at_home = rows.device == self.windows.device
        windows, room = (self.windows, self.room) if at_home else self.on_host
        starts = by_view(windows, rows)
        if room is None:
            return starts
        count = windows.shape[1]
        draws = keyed_random.uniform(
            keyed_random.fold(keys, keyed_random.stream("crop")), count * rows.shape[1]
        )
        moved = (draws * (room[rows].repeat(1, count) + 1)).to(torch.int64)
        if starts.ndim == 3:  # all leads together, as they are recorded
            moved = moved[..., None]
        return torch.where(starts == ABSENT, ABSENT, starts + moved)


@dataclass(frozen=True)
class Batch:
    """All views of a batch, and what is known of its instances, looked up where it is used."""

    x: Tensor  # (members, views·batch, samples), or (members, views·batch, leads, samples)
    part: DeviceInstances
    rows: Tensor  # (members, batch) of the part
    multilabel: bool
    views: int  # of each instance
    share: Share | None = None  # where processes share a batch: of which of its instances `x` is

    @property
    def patients(self) -> Tensor:
        """(members, batch)."""
        return self.part.patients[self.rows]

    @property
    def targets(self) -> Tensor:
        """(members, batch, classes)."""
        return self.part.targets[self.rows]

    def by_view(self, z: Tensor) -> Tensor:
        """(members, views·batch, dim) -> (members, views, batch, dim)."""
        return z.view(len(z), self.views, z.shape[1] // self.views, z.shape[-1])


class BatchMaker:
    """Gathers, perturbs and normalizes the views of a batch on the device.

    On a GPU one kernel makes the views of encoders of one lead, where the chains allow it.
    """

    def __init__(
        self,
        signals: Signals,
        views: Views,
        *,
        multilabel: bool,
        leads_at_once: bool = False,
        in_mv: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        """Prepare the chains.

        `leads_at_once` is for encoders of many leads; `in_mv` leaves views in mV; `ranks` are the
        processes that share every batch.
        """
        self.signals, self.views, self.multilabel, self.ranks = signals, views, multilabel, ranks
        self._at_once, self._in_mv = leads_at_once, in_mv
        self.chains = [parse(chain) if chain else None for chain in views.copies]
        # centered on zero: otherwise negation and scaling are invisible
        self._offset = INPUT_OFFSETS[CENTERED] if views.normalized_first and not in_mv else None
        self._normalized = self._offset is None and not in_mv  # after perturbing
        self._plain = self._normalized and not any(self.chains)
        programs = [program(chain, signals.samples) for chain in self.chains]
        self._programs = tuple(dict.fromkeys(one for one in programs if one is not None))
        self._table: Tensor | None = None  # (1, copies) numbers of programs, where they are fused
        if None not in programs and can_use_triton(signals.flat, signals.dtype) and not ranks:
            numbers = [[self._programs.index(one) for one in programs if one is not None]]
            self._table = torch.tensor(numbers, dtype=torch.int32, device=signals.flat.device)

    def batch(self, part: DeviceInstances, rows: Tensor, keys: Tensor) -> Batch:
        """rows: (members, batch) -> their views: every copy of every window.

        Of a batch that processes share, those of the rows of this one.
        """
        windows, share = part.windows.shape[1], self._share(rows)
        own = rows if share is None else rows[:, share.rows]
        make = self._leads_at_once if self._at_once else self._one_lead
        if own.numel():
            with sharing(share, windows, rows.device):
                x = make(part, own, keys)
        else:
            leads = part.windows.shape[2:] if self._at_once else ()
            shape = (len(rows), 0, *leads, self.signals.samples)
            x = rows.new_empty(shape, dtype=self.signals.dtype)
        return Batch(x, part, rows, self.multilabel, len(self.chains) * windows, share)

    def starts(self, part: DeviceInstances, rows: Tensor, keys: Tensor) -> Tensor:
        """Where the windows of `batch` begin; all on the host."""
        share = self._share(rows)
        own = rows if share is None else rows[:, share.rows]
        with sharing(share, part.windows.shape[1], rows.device):
            return part.starts(own, keys)

    def _share(self, rows: Tensor) -> Share | None:
        return Share(self.ranks, rows.shape[1]) if self.ranks else None

    def _one_lead(self, part: DeviceInstances, rows: Tensor, keys: Tensor) -> Tensor:
        """rows: (members, batch) -> (members, copies·windows·batch, samples)."""
        signals, starts, scale, located = self.signals, part.windows, part.scale, False
        chains = self.chains
        if signals.streamed or self._table is None or part.room is not None or starts.ndim == 3:
            starts, located = signals.located(part.starts(rows, keys)), True
            scale = by_view(scale, rows)
        if starts.ndim == 3:  # a random lead for each view, so that every copy has its windows
            starts, scale = self._of_random_leads(starts, scale, keys)
            chains = chains[:1]
        if self._table is not None:
            return self._fused(rows, keys, starts, scale, located=located, copies=len(chains))
        if self._plain:
            return signals.normalized(starts)
        if self._offset is None:
            x = signals.raw(starts, scale)
        else:
            x = signals.normalized(starts) + self._offset
        copies = []
        for number, chain in enumerate(chains):
            key = keyed_random.fold(keys, keyed_random.stream("copy"), number)
            copy = chain(x, key) if chain else x
            copies.append(min_max(copy) if self._normalized else copy)
        return torch.cat(copies, dim=1).to(signals.dtype)

    def _of_random_leads(
        self, starts: Tensor, scale: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        """starts, scale: (members, n, leads) -> (members, copies·n): of one lead of each."""
        found = []
        for number in range(len(self.chains)):
            key = keyed_random.fold(keys, keyed_random.stream("copy"), number)
            lead, _ = random_leads(starts != ABSENT, key, 1)
            found.append((starts.gather(2, lead)[..., 0], scale.gather(2, lead)[..., 0]))
        return torch.cat([one[0] for one in found], 1), torch.cat([one[1] for one in found], 1)

    def _fused(
        self,
        rows: Tensor,
        keys: Tensor,
        starts: Tensor,
        scale: Tensor,
        *,
        located: bool,
        copies: int,
    ) -> Tensor:
        from clocs.kernels.windows_triton import perturbed_windows

        assert self._table is not None
        signals, n = self.signals, starts.shape[1] * (1 if located else rows.shape[1])
        x = rows.new_empty(len(rows), copies * n, signals.samples, dtype=signals.dtype)
        perturbed_windows(
            signals.flat, starts, rows,
            scale if self._offset is None and not self._plain else None,
            keys, located=located, table=self._table[:, :copies].repeat(len(rows), 1),
            programs=self._programs, offset=self._offset, normalized=self._normalized, out=x,
        )  # fmt: skip
        return x

    def _leads_at_once(self, part: DeviceInstances, rows: Tensor, keys: Tensor) -> Tensor:
        """rows: (members, batch) -> (members, copies·windows·batch, leads, samples).

        Leads are perturbed in mV (or the steps of the file, where its gain is unknown), each by its
        own random numbers, but all of a view are moved in time together; then they are
        standardized, or before that, if the views say so, or stay in mV.
        """
        starts = self.signals.located(part.starts(rows, keys))
        scale = by_view(part.scale, rows)
        copies = []
        for number, chain in enumerate(self.chains):
            key = keyed_random.fold(keys, keyed_random.stream("copy"), number)
            if not self.views.most_leads:
                copies.append(self._perturbed(starts, scale, key, chain))
                continue
            # only what is seen is gathered and perturbed, and then put into its place
            lead, kept = random_leads(starts != ABSENT, key, self.views.most_leads)
            own = torch.where(kept, starts.gather(2, lead), ABSENT)
            seen = self._perturbed(own, scale.gather(2, lead), key, chain)
            x = seen.new_full((*starts.shape, seen.shape[-1]), torch.nan)
            copies.append(x.scatter_(2, lead[..., None].expand_as(seen), seen))
        return torch.cat(copies, dim=1)

    def _perturbed(self, starts: Tensor, scale: Tensor, key: Tensor, chain: Chain | None) -> Tensor:
        """starts, scale: (members, n, leads) -> (members, n, leads, samples), nan where absent."""
        if not self._in_mv and (chain is None or self.views.normalized_first):
            x = self.signals.standardized(starts)
            return x if chain is None else chain(x, key).to(self.signals.dtype)
        x = self.signals.raw(starts, torch.where(starts == ABSENT, torch.nan, scale))
        x = x if chain is None else chain(x, key)
        return (x if self._in_mv else standardize(x)).to(self.signals.dtype)


def program(chain: Chain | None, samples: int) -> Program | None:
    """A chain as the kernel reads it, or None where torch has to compute it.

    The kernel computes each sample of a view by itself, from the window's samples that it is made
    of. So at most one step may move samples, and no step before it may need the whole view.
    """
    steps = chain.steps if chain else ()
    kinds = [PERTURBATIONS[step.name].fused for step in steps]
    if None in kinds or kinds.count("places") > 1:
        return None
    if "places" in kinds and "view" in kinds[: kinds.index("places")]:
        return None
    pieces = [value for step in steps for name, value in step.options if name == "pieces"]
    if max(pieces, default=0) > min(MAX_PIECES, samples - 1):
        return None
    return tuple(
        (keyed_random.stream(step.name), *(value for _, value in step.options)) for step in steps
    )


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


def by_view(values: Tensor, rows: Tensor) -> Tensor:
    """values: (instances, windows, …), rows: (members, batch) -> (members, windows·batch, …)."""
    window = torch.arange(values.shape[1], device=values.device)
    return values[rows[:, None], window[:, None]].flatten(1, 2)

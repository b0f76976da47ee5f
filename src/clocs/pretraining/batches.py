"""The instances of a dataset on the device, and batches of all their views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clocs import keyed_random
from clocs.frames.frames import Frames
from clocs.frames.views import Instances, Views
from clocs.pretraining.perturbations import Chain, parse
from clocs.training.card import CENTRED, INPUT_OFFSETS
from clocs.training.signals import Signals, min_max


@dataclass(frozen=True)
class Part:
    """Instances of the training or validation part; `starts` is a copy of `windows` on the host."""

    windows: Tensor  # (instances, windows)
    scale: Tensor  # (instances, windows)
    patients: Tensor  # (instances,)
    recordings: Tensor  # (instances,)
    days: Tensor  # (instances,)
    targets: Tensor  # (instances, classes)
    starts: Tensor

    @classmethod
    def of(cls, frames: Frames, rows: Instances, device: torch.device) -> Part:
        recording = frames.recording[rows.frame].astype(np.int64)
        arrays: list[Any] = [
            rows.windows,
            rows.scale,
            frames.patient[rows.frame].astype(np.int64),
            recording,
            frames.day[recording],
            frames.target[rows.frame],
        ]
        tensors = [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
        there = [tensor.to(device) for tensor in tensors]
        return cls(*[*there, tensors[0]])

    def host_starts(self, rows: Tensor) -> Tensor:
        """rows: (members, batch) -> (members, windows·batch) starts, on the host."""
        return _by_view(self.starts, rows)


@dataclass(frozen=True)
class Batch:
    """All views of a batch, and what is known of its instances, looked up where it is used."""

    x: Tensor  # (members, views·batch, samples)
    part: Part
    rows: Tensor  # (members, batch) of the part
    multilabel: bool

    @property
    def patients(self) -> Tensor:
        """(members, batch)."""
        return self.part.patients[self.rows]

    @property
    def recordings(self) -> Tensor:
        """(members, batch)."""
        return self.part.recordings[self.rows]

    @property
    def days(self) -> Tensor:
        """(members, batch)."""
        return self.part.days[self.rows]

    @property
    def targets(self) -> Tensor:
        """(members, batch, classes)."""
        return self.part.targets[self.rows]

    def by_view(self, z: Tensor) -> Tensor:
        """(members, views·batch, dim) -> (members, views, batch, dim)."""
        return z.view(len(z), -1, self.rows.shape[1], z.shape[-1])


class BatchMaker:
    """Gathers, perturbs and normalises the views of a batch on the device."""

    def __init__(
        self, signals: Signals, views: Views, members: int, perturb: Sequence[str], multilabel: bool
    ) -> None:
        """`perturb` is one chain per member, in place of those of the views."""
        self.signals, self.views, self.multilabel = signals, views, multilabel
        # for each copy of a window: chains, each with the number of consecutive members that use it
        self.chains = [
            [(parse(chain) if chain else None, len(list(same))) for chain, same in groupby(each)]
            for each in (list(perturb) or [copy] * members for copy in views.copies)
        ]

    def batch(self, part: Part, rows: Tensor, keys: Tensor) -> Batch:
        """rows: (members, batch) -> their views: every copy of every window."""
        starts = self.signals.located(_by_view(part.windows, rows))
        if self.views.copies == ("",) and not self.views.normalised_first:
            x = self.signals.normalised(starts)
        else:
            x = self._copies(starts, _by_view(part.scale, rows), keys)
        return Batch(x.to(self.signals.dtype), part, rows, self.multilabel)

    def _copies(self, starts: Tensor, scale: Tensor, keys: Tensor) -> Tensor:
        first = self.views.normalised_first
        if first:  # centred on zero: otherwise negation and scaling are invisible
            x = self.signals.normalised(starts) + INPUT_OFFSETS[CENTRED]
        else:
            x = self.signals.raw(starts, scale)
        copies = []
        for i, chains in enumerate(self.chains):
            copy = _perturbed(x, chains, keyed_random.fold(keys, keyed_random.stream("copy"), i))
            copies.append(copy if first else min_max(copy))
        return torch.cat(copies, dim=1)


@dataclass(frozen=True)
class PatientLimit:
    """A limit on instances per patient and epoch, so that long recordings do not dominate."""

    patients: Tensor  # (instances,) numbered from 0 without gaps
    first: Tensor  # (patients,) index of a patient's first instance when sorted by patient
    most: int  # instances per patient
    count: int  # instances per epoch

    @classmethod
    def of(cls, patients: Tensor, most: int | None) -> PatientLimit | None:
        """The limit, or None where it excludes nothing."""
        if most is None:
            return None
        _, number, sizes = torch.unique(patients, return_inverse=True, return_counts=True)
        count = int(sizes.clamp(max=most).sum())
        return cls(number, sizes.cumsum(0) - sizes, most, count) if count < len(patients) else None

    def applied(self, order: Tensor) -> Tensor:
        """order: (members, instances) -> (members, count): the first `most` of each patient."""
        patients = self.patients[order]
        sorted_by = patients.argsort(dim=1, stable=True)
        places = torch.arange(order.shape[1], device=order.device).expand_as(order)
        rank = torch.empty_like(order).scatter_(1, sorted_by, places) - self.first[patients]
        kept_first = (rank >= self.most).argsort(dim=1, stable=True)[:, : self.count]
        return order.gather(1, kept_first)


def _perturbed(x: Tensor, chains: list[tuple[Chain | None, int]], keys: Tensor) -> Tensor:
    """x: (members, n, samples), each member by its own chain."""
    sizes = [members for _, members in chains]
    done = [
        own if chain is None else chain(own, key)
        for (chain, _), own, key in zip(chains, x.split(sizes), keys.split(sizes), strict=True)
    ]
    return done[0] if len(done) == 1 else torch.cat(done)


def _by_view(values: Tensor, rows: Tensor) -> Tensor:
    """values: (instances, windows), rows: (members, batch) -> (members, windows·batch)."""
    window = torch.arange(values.shape[1], device=values.device)
    return values[rows[:, None], window[:, None]].flatten(1)

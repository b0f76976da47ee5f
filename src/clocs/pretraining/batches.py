"""The instances of a dataset on the device, and batches of all their views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clocs.frames.frames import ABSENT, Frames
from clocs.frames.views import Instances, Views
from clocs.kernels import keyed_random
from clocs.kernels.collectives import Share
from clocs.kernels.gpu import can_use_triton
from clocs.pretraining.fused_views import FusedViews
from clocs.pretraining.perturbations import Chain, parse
from clocs.training.card import CENTERED, INPUT_OFFSETS
from clocs.training.signals import Signals, min_max


@dataclass(frozen=True)
class Part:
    """Instances of the training or validation part."""

    windows: Tensor  # (instances, windows), or (instances, windows, leads) of many leads at once
    scale: Tensor  # the same shape
    patients: Tensor  # (instances,)
    recordings: Tensor  # (instances,)
    days: Tensor  # (instances,)
    targets: Tensor  # (instances, classes)
    room: Tensor | None  # (instances,) of random crops: how far a window can be moved
    on_host: tuple[Tensor, Tensor | None]  # copies of `windows` and `room`

    @classmethod
    def of(cls, frames: Frames, rows: Instances, device: torch.device) -> Part:
        recording = frames.recording[rows.frame].astype(np.int64)
        shape = (len(rows), -1, rows.leads_at_once) if rows.leads_at_once else (len(rows), -1)
        arrays: list[Any] = [
            rows.windows.reshape(shape),
            rows.scale.reshape(shape),
            frames.patient[rows.frame].astype(np.int64),
            recording,
            frames.day[recording],
            frames.target[rows.frame],
        ]
        tensors = [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
        there: list[Any] = [tensor.to(device) for tensor in tensors]
        room = None if rows.room is None else torch.from_numpy(rows.room)
        on_device = None if room is None else room.to(device)
        return cls(*[*there, on_device, (tensors[0], room)])

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
    part: Part
    rows: Tensor  # (members, batch) of the part
    multilabel: bool
    views: int  # of each instance
    # where processes share a batch: which of its instances these are, and (members, all) the rows
    # of all of them
    share: Share | None = None
    all_rows: Tensor | None = None

    @property
    def whole(self) -> Batch:
        """What is known of the instances of all processes; without their views."""
        return (
            self
            if self.all_rows is None
            else replace(self, rows=self.all_rows, share=None, all_rows=None)
        )

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
        return z.view(len(z), self.views, self.rows.shape[1], z.shape[-1])


Copies = tuple[Chain | None, ...]  # the chain of each copy of a window; None for none


def chains_of(views: Views, members: int, perturb: Sequence[str]) -> list[Copies]:
    """For each member the chains of its copies; `perturb`, one per member, replaces the views'."""
    count = len(views.copies)
    each = [(chain,) * count for chain in perturb] or [views.copies] * members
    return [tuple(parse(chain) if chain else None for chain in copies) for copies in each]


def members_alike(chains: Sequence[Copies]) -> list[tuple[slice, Copies]]:
    """Members next to one another that have the same chains."""
    made = []
    for copies, same in groupby(range(len(chains)), key=chains.__getitem__):
        run = list(same)
        made.append((slice(run[0], run[-1] + 1), copies))
    return made


class BatchMaker:
    """Gathers, perturbs and normalizes the views of a batch on the device."""

    def __init__(
        self,
        signals: Signals,
        views: Views,
        members: int,
        perturb: Sequence[str],
        *,
        multilabel: bool,
        in_mv: bool = False,
        shared: bool = False,
    ) -> None:
        """Decide how the views are made.

        `perturb` is one chain per member, in place of those of the views; `in_mv` leaves views in
        mV instead of normalizing them; `shared` says that other processes make the other rows.
        """
        self.signals, self.multilabel = signals, multilabel
        self.copies = len(views.copies)
        chains = chains_of(views, members, perturb)
        # centered on zero: otherwise negation and scaling are invisible
        self._offset = INPUT_OFFSETS[CENTERED] if views.normalized_first and not in_mv else None
        self._normalized = self._offset is None and not in_mv  # after perturbing
        self._plain = self._normalized and not any(map(any, chains))
        self._fused: FusedViews | None = None
        if can_use_triton(signals.flat, signals.dtype) and not shared:
            self._fused = FusedViews.of(chains, signals.samples, signals.flat.device)
        # the other members, those of the same chains together
        self._in_torch = [
            (some, copies)
            for some, copies in members_alike(chains)
            if not (self._fused and self._fused.has(some.start))
        ]

    def batch(self, part: Part, rows: Tensor, keys: Tensor) -> Batch:
        """rows: (members, batch) -> their views: every copy of every window."""
        views = self.copies * part.windows.shape[1]
        return Batch(self._views(part, rows, keys), part, rows, self.multilabel, views)

    def _views(self, part: Part, rows: Tensor, keys: Tensor) -> Tensor:
        """rows: (members, batch) -> (members, copies·windows·batch, samples)."""
        signals, starts, located = self.signals, part.windows, False
        if not rows.numel():  # of a batch that processes share
            return rows.new_empty(len(rows), 0, signals.samples, dtype=signals.dtype)
        if signals.streamed or self._in_torch or part.room is not None:
            starts, located = signals.located(part.starts(rows, keys)), True
        if self._plain and not self._fused:
            return signals.normalized(starts)
        n = rows.shape[1] * part.windows.shape[1]
        x = rows.new_empty(len(rows), self.copies * n, signals.samples, dtype=signals.dtype)
        if self._fused:
            scale = part.scale if self._offset is None and not self._plain else None
            self._fused.fill(
                x, signals.flat, starts, rows, scale, keys,
                located=located, offset=self._offset, normalized=self._normalized,
            )  # fmt: skip
        if self._in_torch:
            scale = by_view(part.scale, rows)
            for members, chains in self._in_torch:
                own = self._unperturbed(starts[members], scale[members])
                for i, chain in enumerate(chains):
                    key = keyed_random.fold(keys[members], keyed_random.stream("copy"), i)
                    copy = chain(own, key) if chain else own
                    copy = min_max(copy) if self._normalized else copy
                    x[members, i * n : (i + 1) * n] = copy
        return x

    def _unperturbed(self, starts: Tensor, scale: Tensor) -> Tensor:
        if self._offset is None:
            return self.signals.raw(starts, scale)
        return self.signals.normalized(starts) + self._offset


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


def by_view(values: Tensor, rows: Tensor) -> Tensor:
    """values: (instances, windows, …), rows: (members, batch) -> (members, windows·batch, …)."""
    window = torch.arange(values.shape[1], device=values.device)
    return values[rows[:, None], window[:, None]].flatten(1, 2)

"""What is changed at random in the rows that a classifier learns from, anew in every epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clocs.errors import SettingError
from clocs.evaluation.labeled_rows import LabeledPart
from clocs.frames.frames import ABSENT
from clocs.frames.views import room
from clocs.kernels import keyed_random
from clocs.pretraining.batches import random_subsets
from clocs.pretraining.perturbations import normals


@dataclass(frozen=True)
class Augmentation:
    """Crops, subsets of leads and noise; all functions of the step's keys."""

    # (rows,) how many samples a row may begin earlier, and later; None: rows stay in place
    room: tuple[Tensor, Tensor] | None = None
    lead_subsets: float = 0.0  # share of rows that are seen through a random subset of their leads
    gaussian: float = 0.0  # the greatest standard deviation of noise, in units of the input

    @classmethod
    def of(
        cls,
        part: LabeledPart,
        device: torch.device,
        *,
        crops: bool,
        lead_subsets: float,
        gaussian: float,
    ) -> Augmentation:
        """For the rows of a training part."""
        if lead_subsets and not part.rows.leads_at_once:
            raise SettingError("`lead_subsets` is for encoders that see many leads at once")
        found = None
        if crops:
            early, late = (
                torch.from_numpy(one[part.rows.frame]).to(device) for one in room(part.frames)
            )
            found = early, late
        return cls(found, lead_subsets, gaussian)

    def on_host(self) -> Augmentation:
        """The same for rows and keys in the host's memory."""
        if self.room is None:
            return self
        early, late = (one.cpu() for one in self.room)
        return replace(self, room=(early, late))

    def starts(self, starts: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
        """starts: (members, batch) or (members, batch, leads); rows: (members, batch)."""
        if self.room is not None:
            early, late = (one[rows] for one in self.room)
            key = keyed_random.fold(keys, keyed_random.stream("crop"))
            share = keyed_random.uniform(key, rows.shape[1])
            moved = (share * (early + late + 1)).to(torch.int64) - early
            moved = moved if starts.ndim == 2 else moved[..., None]
            starts = torch.where(starts == ABSENT, ABSENT, starts + moved)
        if self.lead_subsets:
            some = random_subsets(starts != ABSENT, keys, starts.shape[-1])
            key = keyed_random.fold(keys, keyed_random.stream("subset"))
            chosen = keyed_random.uniform(key, rows.shape[1]) < self.lead_subsets
            starts = torch.where(some | ~chosen[..., None], starts, ABSENT)
        return starts

    def signals(self, x: Tensor, keys: Tensor) -> Tensor:
        """x: (members, batch, …, samples) -> the same with noise; nan stays nan."""
        if not self.gaussian:
            return x
        key = keyed_random.fold(keys, keyed_random.stream("gaussian"))
        size = x[0].numel()
        noise = normals(keyed_random.bits(key, -(-size // 2)), torch.float32)[:, :size]
        strength_key = keyed_random.fold(key, keyed_random.stream("strength"))
        strength = keyed_random.uniform(strength_key, x.shape[1], torch.float32) * self.gaussian
        strength = strength.view(*x.shape[:2], *[1] * (x.ndim - 2))
        return (x + strength * noise.view(x.shape)).to(x.dtype)

"""Contrast: learning an encoder by comparing views of instances, as a task for the engine.

Signals stay on the device as int16; a batch is a gather, normalised there. Knows nothing about
labels, files or how training proceeds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clocs import counter
from clocs.encoders import Encoder, Weights
from clocs.encoders.block import fused
from clocs.errors import SettingError
from clocs.frames import Frames
from clocs.losses import same_patient_pairs
from clocs.methods import Method
from clocs.views import Instances, instances

FLAT = 1e-6  # floor of a frame's range, in mV: a flat frame becomes zeros, not a division by zero


def min_max(x: Tensor) -> Tensor:
    """(…, samples) -> the same in [0, 1], each frame by its own least and greatest value."""
    low, high = torch.aminmax(x, dim=-1, keepdim=True)
    return (x - low) / (high - low).clamp(min=FLAT)


@dataclass(frozen=True)
class Signals:
    """Signals on a device.

    Attributes:
        flat: (samples,) int16.
        samples: Of a window.
        dtype: Of what `windows` gives.
    """

    flat: Tensor
    samples: int
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(
        cls, frames: Frames, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Signals:
        return cls(torch.from_numpy(frames.signals).to(device), frames.spec.samples, dtype)

    def windows(self, starts: Tensor) -> Tensor:
        """starts: (…) -> (…, samples), normalised, so that mV a step do not matter."""
        if fused(self.flat, self.dtype):
            from clocs.encoders.kernels import normalised_windows

            return normalised_windows(self.flat, starts, self.samples)
        return min_max(self.flat.unfold(0, self.samples, 1)[starts].to(self.dtype))


@dataclass(frozen=True)
class _Part:
    windows: Tensor  # (instances, views)
    patients: Tensor  # (instances,)

    @classmethod
    def of(cls, frames: Frames, rows: Instances, device: torch.device) -> _Part:
        return cls(
            torch.from_numpy(rows.windows).to(device),
            torch.from_numpy(frames.patient[rows.frame].astype("int64")).to(device),
        )


class Contrast:
    """The task of one contrastive method on one dataset."""

    def __init__(
        self,
        frames: Frames,
        method: Method,
        encoder: Encoder,
        *,
        members: int,
        batch_size: int,
        temperature: float,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if method.loss is None:
            raise SettingError("a method without a loss has nothing to train")
        self.method, self.encoder, self.loss = method, encoder, method.loss
        self.batch_size, self.temperature = batch_size, temperature
        self.signals = Signals.of(frames, device, dtype)
        train, validation = (
            instances(frames, of=method.of, views=method.views, split=split) for split in (0, 1)
        )
        for name, part in (("training", train), ("validation", validation)):
            if len(part) < 2:
                raise SettingError(
                    f"the {name} part of {frames.dataset} has {len(part)} instances for this "
                    "method; it needs at least 2, so prepare more patients or longer recordings"
                )
        self.train = _Part.of(frames, train, device)
        self.validation = _Part.of(frames, validation, device)
        self.counts = torch.full((members,), len(train), device=device)

    def parameters(self, keys: Tensor) -> Weights:
        return self.encoder.parameters(keys)

    def buffers(self, members: int) -> Weights:
        return self.encoder.buffers(members)

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        """rows: (members, batch) -> (members,) losses, and the buffers after this batch."""
        x, patients = self._batch(self.train, rows)
        z, buffers = self.encoder.encode_training(weights, buffers, x, keys)
        return self.loss(self._by_view(z, rows), patients, self.temperature), buffers

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        """Mean over full batches in the same order every epoch, the last filled by wrapping.

        A contrastive loss depends on the batch's size and mix, so these must not change.
        """
        count = len(self.validation.windows)
        size = min(self.batch_size, count)
        steps = -(-count // size)
        order = counter.permutation(counter.fold(keys, counter.stream("validation")), count)
        order = order[:, torch.arange(steps * size, device=order.device) % count]
        sums: dict[str, Tensor] = {}
        for step in range(steps):
            rows = order[:, step * size : (step + 1) * size]
            x, patients = self._batch(self.validation, rows)
            z = self._by_view(self.encoder.encode(weights, buffers, x), rows)
            metrics = {
                "loss": self.loss(z, patients, self.temperature),
                "same_patient_pairs": same_patient_pairs(patients).sum(dim=(1, 2)).to(z.dtype),
                "dead": (z == 0).all(dim=-1).to(z.dtype).mean(dim=(1, 2)),
            }
            for name, value in metrics.items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value / steps
        return sums

    def _batch(self, part: _Part, rows: Tensor) -> tuple[Tensor, Tensor]:
        """rows: (members, batch) -> (members, views·batch, samples), (members, batch) patients."""
        starts = part.windows[rows].transpose(1, 2)  # (members, views, batch)
        return self.signals.windows(starts.flatten(1)), part.patients[rows]

    def _by_view(self, z: Tensor, rows: Tensor) -> Tensor:
        """(members, views·batch, dim) -> (members, views, batch, dim)."""
        return z.view(len(z), -1, rows.shape[1], z.shape[-1])

"""Signals on a device: int16, gathered window by window, normalised there.

Knows nothing about methods or training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clocs.encoders.block import fused
from clocs.frames import Frames

FLAT = 1e-6  # floor of a frame's range: a flat frame becomes zeros, not a division by zero


def min_max(x: Tensor) -> Tensor:
    """(…, samples) -> the same in [0, 1], each frame by its own least and greatest value."""
    low, high = torch.aminmax(x, dim=-1, keepdim=True)
    return (x - low) / (high - low).clamp(min=FLAT)


@dataclass(frozen=True)
class Signals:
    """All signals of a dataset.

    Attributes:
        flat: (samples,) int16.
        samples: Of a window.
        dtype: Of the windows that come out.
    """

    flat: Tensor
    samples: int
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(
        cls, frames: Frames, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Signals:
        return cls(torch.from_numpy(frames.signals).to(device), frames.spec.samples, dtype)

    def raw(self, starts: Tensor, scale: Tensor) -> Tensor:
        """starts, scale: (…) -> (…, samples) in mV."""
        steps = self.flat.unfold(0, self.samples, 1)[starts].to(self.dtype)
        return steps * scale.to(self.dtype)[..., None]

    def normalised(self, starts: Tensor) -> Tensor:
        """starts: (…) -> (…, samples) in [0, 1] each, so that mV a step do not matter."""
        if fused(self.flat, self.dtype):
            from clocs.encoders.fused import normalised_windows

            return normalised_windows(self.flat, starts, self.samples)
        return min_max(self.flat.unfold(0, self.samples, 1)[starts].to(self.dtype))

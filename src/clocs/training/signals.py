"""Signals on a device: int16, gathered window by window, normalised there.

Knows nothing about methods or training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clocs.frames.frames import Frames
from clocs.kernels import triton_support
from clocs.kernels.windows import native_windows

FLAT = 1e-6  # floor of a frame's range: a flat frame becomes zeros, not a division by zero


def min_max(x: Tensor) -> Tensor:
    """(…, samples) -> the same in [0, 1], each frame by its own least and greatest value."""
    low, high = torch.aminmax(x, dim=-1, keepdim=True)
    return (x - low) / (high - low).clamp(min=FLAT)


@dataclass
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
        cls,
        frames: Frames,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        windows: int = 0,
        stream: bool | None = None,
    ) -> Signals:
        """All of them on the device, or streamed to it where they are too large.

        Args:
            frames: What holds them.
            device: Where they are wanted.
            dtype: Of the windows that come out.
            windows: The most that are wanted at once.
            stream: Whether to stream; where None, if they would take half of a GPU's free memory.
        """
        host = torch.from_numpy(frames.signals)
        if stream is None:
            on_gpu = device.type == "cuda"
            stream = on_gpu and host.nbytes > torch.cuda.mem_get_info(device)[0] // 2
        if stream:
            from clocs.training.streaming import Streamed

            return Streamed(host, frames.spec.samples, dtype, device, windows)
        return cls(host.to(device), frames.spec.samples, dtype)

    def located(self, starts: Tensor) -> Tensor:
        """Where windows lie in `flat`."""
        return starts

    def staged(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """Batches of starts, on the host -> where their windows lie in `flat`, ready to be read."""
        for starts in batches:
            yield starts.to(self.flat.device)

    def raw(self, starts: Tensor, scale: Tensor) -> Tensor:
        """starts, scale: (…) -> (…, samples) in mV."""
        exact = torch.promote_types(self.dtype, torch.float32)
        steps = self.flat.unfold(0, self.samples, 1)[starts].to(exact)
        return steps * scale.to(exact)[..., None]

    def normalised(self, starts: Tensor) -> Tensor:
        """starts: (…) -> (…, samples) in [0, 1] each, so that mV a step do not matter."""
        if triton_support.serves(self.flat, self.dtype):
            from clocs.kernels.windows_triton import normalised_windows

            return normalised_windows(self.flat, starts, self.samples, self.dtype)
        if self.flat.device.type == "cpu" and self.dtype == torch.float32:
            windows = native_windows(self.flat, starts, self.samples)
            if windows is not None:
                return windows
        exact = torch.promote_types(self.dtype, torch.float32)  # of values in the thousands
        return min_max(self.flat.unfold(0, self.samples, 1)[starts].to(exact)).to(self.dtype)

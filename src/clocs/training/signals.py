"""Signals on a device: int16, gathered window by window and normalized there; and the device.

Signals too large for the device are streamed: threads gather the windows of the next batches on the
host, in pinned memory, from where they are copied to the device. Which windows make up a batch is
decided elsewhere, so it is the same either way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import SettingError
from clocs.files import prefetch
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.signals import process_memory
from clocs.kernels.gpu import can_use_triton
from clocs.kernels.native import native_windows
from clocs.training.card import Card

FLAT = 1e-6  # floor of a frame's range: a flat frame becomes zeros, not a division by zero
AHEAD = 3  # batches gathered before they are needed
TRAINED = 5  # weights, their gradient, Adam's two moments and the best weights so far


def min_max(x: Tensor) -> Tensor:
    """(…, samples) -> the same in [0, 1], each frame by its own least and greatest value."""
    low, high = torch.aminmax(x, dim=-1, keepdim=True)
    return (x - low) / (high - low).clamp(min=FLAT)


def standardize(x: Tensor) -> Tensor:
    """(…, samples) -> the same with mean 0 and variance 1; a flat frame becomes zeros."""
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return (x - mean) / variance.sqrt().clamp(min=FLAT)


@dataclass
class Signals:
    """All signals of a dataset."""

    flat: Tensor  # (samples,) int16
    samples: int  # of a window
    dtype: torch.dtype = torch.float32  # of the windows that come out
    streamed: ClassVar[bool] = False  # whether `flat` holds the windows of a batch only

    @classmethod
    def from_frames(
        cls,
        frames: Frames,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        windows: int = 0,
        stream: bool | None = None,
    ) -> Signals:
        """All of them on the device, or streamed to it, at most `windows` at once.

        Where `stream` is None, they are streamed if they would take half of a GPU's free memory.
        """
        host = torch.from_numpy(frames.signals)
        if stream is None:
            on_gpu = device.type == "cuda"
            stream = on_gpu and host.nbytes > torch.cuda.mem_get_info(device)[0] // 2
        if stream:
            return StreamedSignals(host, frames.spec.samples, dtype, device, windows)
        return cls(host.to(device), frames.spec.samples, dtype)

    def located(self, starts: Tensor) -> Tensor:
        """Where the windows are in `flat`."""
        return starts

    def staged(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """Batches of starts, on the host -> where their windows are in `flat`, ready to be read."""
        for starts in batches:
            yield starts.to(self.flat.device)

    def raw(self, starts: Tensor, scale: Tensor) -> Tensor:
        """starts, scale: (…) -> (…, samples) in mV; nan where absent."""
        steps = self._steps(starts.clamp(min=0))
        steps = steps * scale.to(steps.dtype)[..., None]
        return steps.masked_fill_((starts == ABSENT)[..., None], torch.nan)

    def standardized(self, starts: Tensor) -> Tensor:
        """starts: (…) -> (…, samples) with mean 0 and variance 1 each; nan where absent."""
        made = standardize(self._steps(starts.clamp(min=0)))
        return made.masked_fill_((starts == ABSENT)[..., None], torch.nan).to(self.dtype)

    def normalized(self, starts: Tensor) -> Tensor:
        """starts: (…) -> (…, samples) in [0, 1] each, so the scale in mV does not matter."""
        if can_use_triton(self.flat, self.dtype):
            from clocs.kernels.windows_triton import normalized_windows

            return normalized_windows(self.flat, starts, self.samples, self.dtype)
        if self.flat.device.type == "cpu" and self.dtype == torch.float32:
            windows = native_windows(self.flat, starts, self.samples)
            if windows is not None:
                return windows
        return min_max(self._steps(starts)).to(self.dtype)

    def as_input(self, card: Card, starts: Tensor, scale: Tensor) -> Tensor:
        """starts, scale: (…) -> (…, samples) as the encoder of this card learned on them."""
        if card.standardized:
            return self.standardized(starts)
        if card.in_mv:
            return self.raw(starts, scale).to(self.dtype)
        many = "leads" in card.encoder  # a window of one lead is never absent
        x = self.normalized(starts.clamp(min=0) if many else starts)
        x = (x + card.input_offset).to(x.dtype) if card.input_offset else x
        return x.masked_fill_((starts == ABSENT)[..., None], torch.nan) if many else x

    def _steps(self, starts: Tensor) -> Tensor:
        """starts: (…) -> (…, samples) as in the file; values are in the thousands."""
        exact = torch.promote_types(self.dtype, torch.float32)
        return self.flat.unfold(0, self.samples, 1)[starts].to(exact)


class StreamedSignals(Signals):
    """Signals of which the device holds the windows of one batch only.

    `flat` is their place on the device; `host` holds everything, in memory or mapped from a file.
    """

    streamed = True

    def __init__(
        self, host: Tensor, samples: int, dtype: torch.dtype, device: torch.device, windows: int
    ) -> None:
        """windows: the most that a batch has, over all members."""
        flat = torch.zeros(windows * samples, dtype=torch.int16, device=device)
        super().__init__(flat, samples, dtype)
        self.host = host

    def located(self, starts: Tensor) -> Tensor:
        """Where the windows of the current batch are in `flat`, wherever they are in `host`."""
        number = torch.arange(starts.numel(), device=self.flat.device).view(starts.shape)
        return torch.where(starts.to(number.device) == ABSENT, ABSENT, number * self.samples)

    def staged(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """For each batch of starts, on the host: copy its windows over, then yield where they are.

        Whatever reads them must be enqueued before the next batch is requested.
        """
        windows = self.host.unfold(0, self.samples, 1)

        def gathered(starts: Tensor) -> tuple[Tensor, Tensor]:
            shape = (starts.numel(), self.samples)
            out = torch.empty(shape, dtype=torch.int16, pin_memory=self.flat.is_cuda)
            torch.index_select(windows, 0, starts.flatten().clamp(min=0), out=out)
            return starts, out

        for starts, batch in prefetch(gathered, batches, AHEAD):
            self.flat[: batch.numel()].copy_(batch.flatten(), non_blocking=True)
            yield self.located(starts)


def require_memory(what: Any, *, members: int, device: torch.device, copies: int = TRAINED) -> None:
    """Refuse a task or an encoder whose weights and buffers cannot be trained here.

    `copies` are those of the weights, 1 where nothing is trained. The estimate is the least that is
    needed, so that nothing is refused that would have worked.
    """
    weights = what.parameters(torch.zeros(0, dtype=torch.int64, device=device))
    numbers = copies * _numbers(weights) + 2 * _numbers(what.buffers(0))
    needed, free = 4 * members * numbers, free_memory(device)
    if needed > free:
        raise SettingError(
            f"training needs at least {needed / 1e9:,.0f} GB of memory on {device.type}, where "
            f"{free / 1e9:,.0f} GB are free; choose a smaller `embedding_dim`, or fewer `seeds` or "
            "a smaller `batch_size`"
        )


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated there, as far as the system says."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return process_memory()


def _numbers(tensors: Weights) -> int:
    return sum(math.prod(tensor.shape[1:]) for tensor in tensors.values())


def pick_device(name: str | None) -> torch.device:
    """The device of that name, or the best available."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingError(
            f"the device {name!r} cannot be used here ({str(error).splitlines()[0]}); "
            "give 'cpu' as `device`"
        ) from error
    return device

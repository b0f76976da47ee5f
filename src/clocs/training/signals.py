"""Signals on a device: int16, gathered window by window and normalized there; and the device.

Signals too large for the device are streamed: a thread gathers the windows of a batch on the host
into a pinned buffer, which is copied to one of two slots on the device while the step before still
reads the other. Which windows make up a batch is decided elsewhere, so it is the same either way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import SettingError
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.signals import memory_limits, physical_memory
from clocs.kernels.gpu import can_use_triton
from clocs.kernels.native import native_windows
from clocs.training.card import Card

FLAT = 1e-6  # floor of a frame's range: a flat frame becomes zeros, not a division by zero
SLOTS = 2  # one is filled while the other is read
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
    def of(
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
        return steps * scale.to(steps.dtype)[..., None]  # which is nan where absent

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

    def _steps(self, starts: Tensor) -> Tensor:
        """starts: (…) -> (…, samples) as in the file; values are in the thousands."""
        exact = torch.promote_types(self.dtype, torch.float32)
        return self.flat.unfold(0, self.samples, 1)[starts].to(exact)


class StreamedSignals(Signals):
    """Signals of which the device holds the windows of two batches only.

    `flat` is their place on the device; `host` holds everything, in memory or mapped from a file.
    """

    streamed = True

    def __init__(
        self, host: Tensor, samples: int, dtype: torch.dtype, device: torch.device, windows: int
    ) -> None:
        """windows: the most that a batch has, over all members."""
        flat = torch.zeros(SLOTS * windows * samples, dtype=torch.int16, device=device)
        super().__init__(flat, samples, dtype)
        self.host, self.windows = host, windows
        self.first = 0  # windows of the batch before those that are located next
        self.slot = torch.zeros((), dtype=torch.int64, device=device)
        self._on_gpu = device.type == "cuda"
        self._buffers = [
            torch.empty((windows, samples), dtype=torch.int16, pin_memory=self._on_gpu)
            for _ in range(SLOTS)
        ]
        if self._on_gpu:
            self._side = torch.cuda.Stream(device)
            self._side.wait_stream(torch.cuda.current_stream(device))  # which fills with zeros
            self._copied = [torch.cuda.Event() for _ in range(SLOTS)]
            self._read = [torch.cuda.Event() for _ in range(SLOTS)]

    def located(self, starts: Tensor) -> Tensor:
        """Where the windows of the current batch are in `flat`, wherever they are in `host`."""
        number = torch.arange(starts.numel(), device=self.flat.device).view(starts.shape)
        places = (number + self.first + self.slot * self.windows) * self.samples
        return torch.where(starts.to(places.device) == ABSENT, ABSENT, places)

    def staged(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """For each batch of starts, on the host: copy its windows over, then yield where they are.

        Whatever reads them must be enqueued before the next batch is requested.
        """
        with ThreadPoolExecutor(1) as pool:
            waiting: list[tuple[int, Tensor, Future[None]]] = []
            for number, starts in enumerate(batches):
                slot = number % SLOTS
                waiting.append((slot, starts, pool.submit(self._gather, slot, starts)))
                if len(waiting) == SLOTS:
                    yield self._bring(*waiting.pop(0))
            for rest in waiting:
                yield self._bring(*rest)

    def _gather(self, slot: int, starts: Tensor) -> None:
        """Host memory -> pinned buffer, once its last content has left it."""
        if self._on_gpu:
            self._copied[slot].synchronize()
        windows = self.host.unfold(0, self.samples, 1)
        out = self._buffers[slot][: starts.numel()]
        torch.index_select(windows, 0, starts.flatten().clamp(min=0), out=out)

    def _bring(self, slot: int, starts: Tensor, gathered: Future[None]) -> Tensor:
        """Pinned buffer -> its slot on the device."""
        gathered.result()
        size, begin = starts.numel() * self.samples, slot * self.windows * self.samples
        with self._beside(slot):
            source = self._buffers[slot].view(-1)[:size]
            self.flat[begin : begin + size].copy_(source, non_blocking=True)
        self.slot.fill_(slot)
        return self.located(starts)

    @contextmanager
    def _beside(self, slot: int) -> Iterator[None]:
        """On a side stream: after the last step that reads this slot, before the next that does."""
        if not self._on_gpu:
            yield
            return
        self._read[1 - slot].record()  # all that was enqueued until now reads the other slot
        self._side.wait_event(self._read[slot])
        with torch.cuda.stream(self._side):
            yield
            self._copied[slot].record()
        torch.cuda.current_stream().wait_event(self._copied[slot])


def require_memory(
    weights: Weights,
    buffers: Weights,
    *,
    members: int,
    device: torch.device,
    copies: int = TRAINED,
) -> None:
    """Refuse weights and buffers that cannot be trained here; only the shapes (…, *shape) count.

    `copies` are those of the weights, 1 where nothing is trained. The estimate is the least that is
    needed, so that nothing is refused that would have worked.
    """
    numbers = copies * _numbers(weights) + 2 * _numbers(buffers)
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
    return min(_available(), *memory_limits())


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return int(kilobytes) * 1024
    except (OSError, ValueError):
        return physical_memory()


def _numbers(tensors: Weights) -> int:
    return sum(math.prod(tensor.shape[1:]) for tensor in tensors.values())


@dataclass(frozen=True)
class EncoderInput:
    """How the input of each member is made of signals: as its encoder learned on it."""

    offset: Tensor | None  # (members, 1, 1) to add to normalized frames; None where all are 0
    in_mv: Tensor | None  # (members, 1, 1) bool: who takes frames in mV; None where nobody does
    standardized: bool = False  # whether all take frames that are standardized, of many leads

    @classmethod
    def of(cls, cards: Sequence[Card], device: torch.device | str) -> EncoderInput:
        if all(card.standardized for card in cards):
            return cls(None, None, standardized=True)
        offsets, in_mv = (
            torch.tensor(values, device=device)[:, None, None] if any(values) else None
            for values in ([card.input_offset for card in cards], [card.in_mv for card in cards])
        )
        return cls(offsets, in_mv)

    def of_members(self, members: list[int]) -> EncoderInput:
        """That of some members."""
        offset, in_mv = (None if x is None else x[members] for x in (self.offset, self.in_mv))
        return EncoderInput(offset, in_mv, self.standardized)

    def __call__(self, signals: Signals, starts: Tensor, scale: Tensor) -> Tensor:
        """starts, scale: (rows,) or (members, rows) -> (…, rows, samples).

        Of many leads, (…, rows, leads) -> (…, rows, leads, samples).
        """
        if self.standardized:
            return signals.standardized(starts)
        x = signals.normalized(starts)
        if self.offset is not None:
            x = (x + self.offset).to(x.dtype)
        if self.in_mv is not None:
            x = torch.where(self.in_mv, signals.raw(starts, scale).to(x.dtype), x)
        return x


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

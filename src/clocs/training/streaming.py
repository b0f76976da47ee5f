"""Streaming: signals too large for the device, brought to it batch by batch ahead of use.

The windows of a batch are gathered on the host into a pinned buffer by a thread, copied to one of
two places on the device while the step before still reads the other, and found there by their
number. Which windows make up a batch is decided elsewhere, so it is the same either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from clocs.training.signals import Signals

PLACES = 2  # one is filled while the other is read


class Streamed(Signals):
    """Signals of which the device holds the windows of two batches only.

    `flat` is their place on the device; `host` holds everything, in memory or mapped from a file.
    """

    def __init__(
        self, host: Tensor, samples: int, dtype: torch.dtype, device: torch.device, windows: int
    ) -> None:
        """windows: the most that a batch has, over all members."""
        flat = torch.zeros(PLACES * windows * samples, dtype=torch.int16, device=device)
        super().__init__(flat, samples, dtype)
        self.host, self.windows = host, windows
        self.place = torch.zeros((), dtype=torch.int64, device=device)
        self._on_gpu = device.type == "cuda"
        self._buffers = [
            torch.empty((windows, samples), dtype=torch.int16, pin_memory=self._on_gpu)
            for _ in range(PLACES)
        ]
        if self._on_gpu:
            self._side = torch.cuda.Stream(device)
            self._copied = [torch.cuda.Event() for _ in range(PLACES)]
            self._read = [torch.cuda.Event() for _ in range(PLACES)]

    def located(self, starts: Tensor) -> Tensor:
        """Where the windows of the batch at hand lie in `flat`, whatever they were in `host`."""
        number = torch.arange(starts.numel(), device=self.flat.device).view(starts.shape)
        return (number + self.place * self.windows) * self.samples

    def staged(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """For each batch of starts, on the host: bring its windows, then yield where they are.

        What reads them must be enqueued before the next batch is asked for.
        """
        with ThreadPoolExecutor(1) as pool:
            waiting: list[tuple[int, Tensor, Future[None]]] = []
            for number, starts in enumerate(batches):
                place = number % PLACES
                waiting.append((place, starts, pool.submit(self._gather, place, starts)))
                if len(waiting) == PLACES:
                    yield self._bring(*waiting.pop(0))
            for rest in waiting:
                yield self._bring(*rest)

    def _gather(self, place: int, starts: Tensor) -> None:
        """Host memory -> pinned buffer, once its last content has left it."""
        if self._on_gpu:
            self._copied[place].synchronize()
        windows = self.host.unfold(0, self.samples, 1)
        out = self._buffers[place][: starts.numel()]
        torch.index_select(windows, 0, starts.flatten(), out=out)

    def _bring(self, place: int, starts: Tensor, gathered: Future[None]) -> Tensor:
        """Pinned buffer -> its place on the device."""
        gathered.result()
        size, begin = starts.numel() * self.samples, place * self.windows * self.samples
        with self._beside(place):
            source = self._buffers[place].view(-1)[:size]
            self.flat[begin : begin + size].copy_(source, non_blocking=True)
        self.place.fill_(place)
        return self.located(starts)

    @contextmanager
    def _beside(self, place: int) -> Iterator[None]:
        """Beside the steps: after the last that reads this place, before the next that does."""
        if not self._on_gpu:
            yield
            return
        self._read[1 - place].record()  # all that was enqueued until now reads the other place
        self._side.wait_event(self._read[place])
        with torch.cuda.stream(self._side):
            yield
            self._copied[place].record()
        torch.cuda.current_stream().wait_event(self._copied[place])

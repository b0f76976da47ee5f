"""A step captured as a CUDA graph and replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor

from clocs.kernels.gpu import streams
from clocs.training.fleet import Fleet


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A graph of an earlier training that is freed during a capture would break it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Captured:
    """A function captured as a CUDA graph when first called, and replayed."""

    _WARM_UP = 3
    _one_at_a_time = Lock()

    def __init__(self, function: Callable[[], dict[str, Tensor]], fleet: Fleet) -> None:
        self._function, self._fleet = function, fleet
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: dict[str, Tensor] = {}

    def __call__(self) -> dict[str, Tensor]:
        self.ready()
        assert self._graph is not None  # ready() has made it
        self._graph.replay()
        return self._result

    def release(self) -> None:
        """Free the graph and its memory now, rather than whenever garbage is collected."""
        self._graph, self._result = None, {}

    def ready(self) -> None:
        """Warm up and capture with no member live, so that nothing changes."""
        if self._graph is not None:
            return
        live = self._fleet.live.clone()
        self._fleet.live.zero_()
        side = streams.get("capture")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self._WARM_UP):
                self._function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # several fleets may train in threads of one process, each on its own stream
        with (
            self._one_at_a_time,
            _no_garbage_collection(),
            torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"),
        ):
            self._result = self._function()
        self._fleet.live.copy_(live)
        self._graph = graph

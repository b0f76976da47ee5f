"""Work beside other work on a GPU: each thread has streams of its own for it."""

from __future__ import annotations

from collections.abc import Callable
from threading import local
from typing import Literal

import torch
from torch import Tensor

from clocs.kernels.collectives import is_shared

Purpose = Literal["capture", "beside"]


class _Streams(local):
    """One stream per thread, device and purpose.

    Torch has 32 and then hands them out again: with a new one each time, one would in the end be
    in use by another thread, which breaks a capture.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[int, Purpose], torch.cuda.Stream] = {}

    def get(self, purpose: Purpose) -> torch.cuda.Stream:
        key = torch.cuda.current_device(), purpose
        if key not in self._of:
            self._of[key] = torch.cuda.Stream()
        return self._of[key]


streams = _Streams()


def beside(
    there: Tensor, one: Callable[[], Tensor], other: Callable[[], Tensor]
) -> tuple[Tensor, Tensor]:
    """Both results; on a GPU, `one` is computed while `other` is.

    `one` must not change or free what `other` reads. Its parts keep their order, and so do those of
    `other`: the results are the same as one after the other, also in a captured graph.
    """
    if not there.is_cuda or is_shared():  # what processes exchange keeps its order
        return one(), other()
    now, side = torch.cuda.current_stream(), streams.get("beside")
    side.wait_stream(now)
    with torch.cuda.stream(side):
        first = one()
    second = other()
    now.wait_stream(side)
    first.record_stream(now)
    return first, second

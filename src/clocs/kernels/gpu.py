"""What runs on a GPU: Triton kernels, functions that torch compiles, streams of each thread.

The modules `…_triton` import Triton: ask `can_use_triton` first.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cache, cached_property
from importlib.util import find_spec
from threading import local
from typing import Generic, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

SHAPES = 64  # for which a function is compiled; beyond, it runs uncompiled
P = ParamSpec("P")
R = TypeVar("R")


def can_use_triton(x: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether Triton kernels can be used: by device and type alone, so that runs are repeatable."""
    return x.is_cuda and dtype in (torch.float32, torch.bfloat16) and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def is_compiled_for(x: Tensor) -> bool:
    """Whether `Compiled` functions of this input are compiled: by device, type, CLOCS_COMPILE."""
    return os.environ.get("CLOCS_COMPILE") != "0" and can_use_triton(x, x.dtype)


class Compiled(Generic[P, R]):
    """A function that `torch.compile` fuses when first called; uncompiled where that fails.

    Compiling takes up to a minute, once for each shape. A compiled function may be captured in a
    CUDA graph once it has been called.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._failed = False

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._failed:
            return self._function(*args, **kwargs)
        try:
            with torch._dynamo.config.patch(recompile_limit=SHAPES):
                return self._fast(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of the compiler, whose kinds of errors are many
            self._failed = True
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"torch.compile failed ({reason}); the encoder works without it, but slower "
                "(CLOCS_COMPILE=0 leaves it out)",
                stacklevel=2,
            )
            return self._function(*args, **kwargs)

    @cached_property
    def _fast(self) -> Callable[P, R]:
        return torch.compile(self._function, fullgraph=True, dynamic=False)


class _Streams(local):
    """One stream per thread, device and purpose.

    Torch has 32 and then hands them out again: with a new one each time, one would in the end be
    in use by another thread, which breaks a capture.
    """

    def __init__(self) -> None:
        self._streams: dict[tuple[int, str], torch.cuda.Stream] = {}

    def get(self, purpose: Literal["capture", "concurrent"]) -> torch.cuda.Stream:
        key = torch.cuda.current_device(), purpose
        if key not in self._streams:
            self._streams[key] = torch.cuda.Stream()
        return self._streams[key]


streams = _Streams()

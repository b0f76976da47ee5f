"""Functions of tensors that `torch.compile` fuses where they run on a GPU.

Compiling takes up to a minute, once for each shape. CLOCS_COMPILE=0 in the environment leaves it
out; so does a machine without Triton. A compiled function may be captured in a CUDA graph once it
has been called.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from clocs.kernels.triton_support import can_use_triton

SHAPES = 64  # for which a function is compiled; beyond, it runs as it is
P = ParamSpec("P")
R = TypeVar("R")


def is_compiled_for(x: Tensor) -> bool:
    """Whether functions of this input are compiled: by device, type and CLOCS_COMPILE alone."""
    return os.environ.get("CLOCS_COMPILE") != "0" and can_use_triton(x, x.dtype)


class Compiled(Generic[P, R]):
    """A function that is compiled when first called, or called as it is where that fails."""

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

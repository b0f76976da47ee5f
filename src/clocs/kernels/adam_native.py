"""Adam's step in compiled C: forty small tensor operations as one call."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from clocs.kernels.compiler import compiled_library

_SIZES = ("members", "weights", "statistics", "threads")
_NUMBERS = ("lr", "beta1", "beta2", "epsilon")
_POINTERS = (
    "on", "loss", "gradient", "after", "theta", "moment1", "moment2", "buffers", "steps", "live",
    "broken", "moved",
)  # fmt: skip


class _Step(ctypes.Structure):
    """`Step` of adam.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _SIZES),
        *((name, ctypes.c_float) for name in _NUMBERS),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    )


def adam(
    numbers: dict[str, float], on: Tensor, loss: Tensor, given: dict[str, Tensor], **state: Tensor
) -> Tensor | None:
    """One step in place; (members,) bool: which moved. None where compiled C cannot be used.

    Args:
        numbers: lr, beta1, beta2 and epsilon.
        on: (members,) bool: which have a batch.
        loss: (members,).
        given: gradient, (members, weights), and after, (members, statistics).
        state: Changed in place: theta, moment1, moment2, buffers, steps, live, broken.
    """
    theta = state["theta"]
    floats = (theta, state["moment1"], state["moment2"], state["buffers"], loss, *given.values())
    usable = theta.device.type == "cpu" and all(x.dtype == torch.float32 for x in floats)
    library = compiled_library("adam") if usable else None
    if library is None or not all(x.is_contiguous() for x in state.values()):
        return None
    moved = torch.empty_like(on)
    # kept by name until the call is over
    tensors = {k: v.contiguous() for k, v in (given | {"on": on, "loss": loss}).items()}
    tensors |= state | {"moved": moved}
    members, weights = theta.shape
    step = _Step(
        members=members,
        weights=weights,
        statistics=state["buffers"].shape[1],
        threads=torch.get_num_threads(),
        **numbers,
        **{k: v.data_ptr() for k, v in tensors.items()},
    )
    library.adam(ctypes.byref(step))
    return moved

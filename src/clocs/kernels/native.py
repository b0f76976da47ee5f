"""Small hot loops in compiled C, each one call; all return None where C cannot be used."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from clocs.kernels.compiler import c_struct, compiled_library

_Adam = c_struct(  # `Step` of adam.c
    int64=("members", "weights", "statistics", "threads"),
    float32=("lr", "beta1", "beta2", "epsilon"),
    pointers=(
        "on", "loss", "gradient", "after", "theta", "moment1", "moment2", "buffers", "steps",
        "live", "broken", "moved",
    ),
)  # fmt: skip
_Contrast = c_struct(  # as in contrast.c
    int64=("members", "pairs", "batch", "threads"),
    pointers=("similarity", "positives", "neither", "value", "slope", "scratch"),
)


def adam(
    numbers: dict[str, float], on: Tensor, loss: Tensor, given: dict[str, Tensor], **state: Tensor
) -> Tensor | None:
    """`Fleet.step` for `given` a gradient and the buffers after it; `state` changes in place.

    Returns (members,) bool: which moved.
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
    step = _Adam(
        members=members,
        weights=weights,
        statistics=state["buffers"].shape[1],
        threads=torch.get_num_threads(),
        **numbers,
        **{k: v.data_ptr() for k, v in tensors.items()},
    )
    library.adam(ctypes.byref(step))
    return moved


def contrast(
    similarity: Tensor, positives: Tensor, neither: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """The contrastive loss: (members, pairs) values, and the gradient of each.

    Args:
        similarity: (members, pairs, batch, batch).
        positives: (members, batch, batch) bool.
        neither: The same: pairs that count in neither sum.
    """
    usable = similarity.device.type == "cpu" and similarity.dtype == torch.float32
    library = compiled_library("contrast") if usable else None
    if library is None:
        return None
    members, pairs, batch, _ = similarity.shape
    threads, wide = torch.get_num_threads(), -(-batch // 4) * 4
    value, slope = similarity.new_empty(members, pairs), similarity.new_empty(similarity.shape)
    tensors = {
        "similarity": similarity.contiguous(),
        "positives": positives.contiguous(),
        "neither": neither if neither is None else neither.contiguous(),
        "value": value,
        "slope": slope,
        "scratch": similarity.new_empty(threads, 2 * wide + 7, wide),
    }
    pointers = {k: v.data_ptr() for k, v in tensors.items() if v is not None}
    given = _Contrast(members=members, pairs=pairs, batch=batch, threads=threads, **pointers)
    library.contrast(ctypes.byref(given))
    return value, slope


def native_windows(flat: Tensor, starts: Tensor, samples: int) -> Tensor | None:
    """flat: (samples,) int16, starts: (…) -> (…, samples) float32 in [0, 1] each."""
    library = compiled_library("gather")
    if library is None or not starts.numel():
        return None
    flat, starts = flat.contiguous(), starts.contiguous()
    least, greatest = map(int, torch.aminmax(starts))
    if least < 0 or greatest > len(flat) - samples:
        raise IndexError(f"windows from {least} to {greatest} are not within {len(flat)} samples")
    out = torch.empty(*starts.shape, samples)
    pointers = (ctypes.c_void_p(x.data_ptr()) for x in (flat, starts, out))
    sizes = map(ctypes.c_int64, (starts.numel(), samples, torch.get_num_threads()))
    library.gather(*pointers, *sizes)
    return out

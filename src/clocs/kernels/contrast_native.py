"""The contrastive loss of similarities and its gradient, in compiled C."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from clocs.kernels.compiler import compiled_library


class _Contrast(ctypes.Structure):
    """`Contrast` of contrast.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("members", "pairs", "batch", "threads")),
        *(
            (name, ctypes.c_void_p)
            for name in ("similarity", "positives", "neither", "value", "slope", "scratch")
        ),
    )


def contrast(
    similarity: Tensor, positives: Tensor, neither: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """(members, pairs) values and the gradient of each; None where compiled C cannot be used.

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

"""Whether a training fits into memory, estimated before anything is allocated."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from clocs.encoders.base import Encoder, Weights
from clocs.errors import SettingError
from clocs.frames.signals import memory_limits, physical_memory

TRAINED = 5  # weights, their gradient, Adam's two moments and the best weights so far
_NUMBER = 4  # bytes


def require_memory_to_encode(
    encoder: Encoder, *, members: int, batch: int, device: torch.device, copies: int = TRAINED
) -> None:
    """Refuse an encoder that cannot be trained here for want of memory.

    Its weights and embeddings count, what is between them does not. `batch` are the frames that a
    member encodes at once, `copies` those of the weights: 1 where nothing is trained.
    """
    no_keys = torch.zeros(0, dtype=torch.int64)
    numbers = max(1, len(encoder.leads)) * encoder.samples
    activations = batch * (numbers + 2 * encoder.embedding_dim)  # and their gradient
    require_memory(
        encoder.parameters(no_keys),
        encoder.buffers(0),
        members=members,
        device=device,
        activations=activations,
        copies=copies,
    )


def require_memory(
    weights: Weights,
    buffers: Weights,
    *,
    members: int,
    device: torch.device,
    activations: int = 0,
    copies: int = TRAINED,
) -> None:
    """Refuse weights and buffers that cannot be trained here; only the shapes (…, *shape) count.

    The estimate is the least that is needed, so that nothing is refused that would have worked.
    """
    numbers = copies * _numbers(weights) + 2 * _numbers(buffers) + activations
    needed, free = _NUMBER * members * numbers, free_memory(device)
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

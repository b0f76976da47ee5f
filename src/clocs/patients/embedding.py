"""Embedding a store or recordings, streaming: signals -> batches -> vectors -> their means.

A few thousand frames are in memory at a time, whatever the size of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from clocs.checkpoint import Checkpoint
from clocs.patients.embeddings import Embeddings, Level
from clocs.recording import FrameSpec, Recording
from clocs.store import Store


def embed_store(
    checkpoint: Checkpoint,
    store: Store,
    *,
    level: Level = "patient",
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
    split: str | None = None,
    split_seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Embeddings:
    """Embeddings of a store's recordings, or of those of one part.

    Args:
        checkpoint: The encoder.
        store: Prepared recordings.
        level: What a vector stands for.
        spec: The frame; the dataset's own where None.
        leads: By name; the checkpoint's where the store has them, else the store's default.
        split: Only this part: 'train', 'validation' or 'test'.
        split_seed: Of the split by patient.
        device: Where to encode.
        progress: Called with (recordings done, recordings in all).
    """
    raise NotImplementedError


def embed_recordings(
    checkpoint: Checkpoint,
    recordings: Iterable[Recording],
    *,
    level: Level = "recording",
    leads: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> Embeddings:
    """Embeddings of recordings that belong to no store, by the checkpoint's own frame.

    A recording that cannot be embedded (too short, without the leads) is named in `problems`.
    """
    raise NotImplementedError

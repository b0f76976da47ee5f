from __future__ import annotations

import pytest

from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain_frames import pretrain_frames
from clocs.training.checkpoint import Checkpoint
from clocs.training.loop import Settings


@pytest.fixture(scope="module")
def groups(
    small_frames: Frames, tmp_path_factory: pytest.TempPathFactory
) -> list[list[Checkpoint]]:
    """Two methods of two seeds, and one with another embedding dimension."""
    folder = tmp_path_factory.mktemp("groups")
    quick = Settings(epochs=2, batch_size=64)
    plans = [
        Plan("cmsc", (0, 1), embedding_dim=16, settings=quick),
        Plan("random-bn", (0, 1), embedding_dim=16),
        Plan("random-bn", (0,), embedding_dim=8),
    ]
    return [pretrain_frames(small_frames, p, folder / str(i)) for i, p in enumerate(plans)]

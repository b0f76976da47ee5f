"""What cannot fit is refused in words, before it is allocated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from clocs.encoders.make import ENCODERS, is_multilead, make_encoder
from clocs.errors import FileError, SettingError
from clocs.frames.frames import Frames
from clocs.frames.signals import allocate_signals, memory_for_signals
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training.replicas import Replicas
from clocs.training.signals import free_memory, require_memory

CPU = torch.device("cpu")


@pytest.mark.parametrize("encoder", [n for n in ENCODERS if not is_multilead(n)])
@pytest.mark.parametrize("method", ["cmsc", "byol", "random"])
def test_an_embedding_larger_than_memory_is_refused_and_leaves_no_folder(
    small_frames: Frames, tmp_path: Path, method: str, encoder: str
) -> None:
    plan = Plan(method, encoder=encoder, embedding_dim=1_000_000_000)
    with pytest.raises(SettingError, match=r"needs at least .* GB .* smaller `embedding_dim`"):
        pretrain_frames(small_frames, plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_predictor_larger_than_memory_is_refused(small_frames: Frames, tmp_path: Path) -> None:
    """BYOL's is the square of the embedding: the encoder alone would fit."""
    plan = Plan("byol", encoder="resnet", embedding_dim=200_000)
    with pytest.raises(SettingError, match="smaller `embedding_dim`"):
        pretrain_frames(small_frames, plan, tmp_path / "run")


def test_a_usual_encoder_fits() -> None:
    encoder = make_encoder("cnn", embedding_dim=320, samples=2500)
    require_memory(encoder, members=5, device=CPU)
    assert free_memory(CPU) > 1e6


def test_a_limit_in_the_environment_maps_larger_signals_from_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOCS_MEMORY_GIB", "0.1")
    assert memory_for_signals() == int(0.1 * 2**30) // 2
    assert free_memory(CPU) == int(0.1 * 2**30)
    assert isinstance(allocate_signals(27_000_000), np.memmap)
    assert not isinstance(allocate_signals(26_000_000), np.memmap)
    monkeypatch.setenv("CLOCS_MEMORY_GIB", "plenty")
    with pytest.raises(SettingError, match="CLOCS_MEMORY_GIB is 'plenty' in the environment"):
        memory_for_signals()


def test_a_state_that_may_not_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    state.mkdir()  # as unreadable as a file without permission, for root, too
    with pytest.raises(FileError, match="cannot be read") as caught:
        Replicas.load(state, CPU)
    assert "delete" not in str(caught.value)

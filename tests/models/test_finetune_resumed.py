"""Fine-tunings that are killed or fail, and what is left of them."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import clocs
import warm
from clocs import Checkpoint, Frames, Store
from clocs.errors import CheckpointError, SettingError
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames

EPOCHS = 6
HOW: dict[str, Any] = {
    "head": "whole",
    "epochs": EPOCHS,
    "batch_size": 32,
    "lr": 1e-3,
    "resamples": 0,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def folder(small_frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two untrained encoders."""
    run = tmp_path_factory.mktemp("random") / "run"
    pretrain_frames(small_frames, Plan("random-bn", (0, 1), embedding_dim=8), run)
    return run


@pytest.fixture(scope="module")
def whole(folder: Path, small_store: Store) -> bytes:
    """The file of a training that nobody disturbed."""
    file = folder.parent / "whole" / "rhythm.safetensors"
    clocs.finetune(folder, small_store, out=file, **HOW)
    return file.read_bytes()


# A training that stops for ever at the end of its third epoch, and makes a file to say so.
HALTING = """
import json, pathlib, sys, time
import clocs
folder, store, out, stopped, how = sys.argv[1:]
def halt(epoch):
    while epoch.number == 3:
        pathlib.Path(stopped).touch()
        time.sleep(1)
clocs.finetune(folder, store, out=out, save_every=0, on_epoch=halt, **json.loads(how))
"""


def test_killed_it_resumes_and_ends_with_the_same_bytes(
    folder: Path, small_store: Store, whole: bytes, tmp_path: Path
) -> None:
    out, stopped = tmp_path / "made" / "rhythm.safetensors", tmp_path / "stopped"
    words = [folder, small_store.path, out, stopped, json.dumps(HOW)]
    child = warm.Process("-c", HALTING, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not stopped.exists():
        assert child.poll() is None, child.communicate()
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert not out.exists()
    with pytest.raises(CheckpointError, match="interrupted; add `resume`"):
        clocs.finetune(folder, small_store, out=out, **HOW)
    with pytest.raises(CheckpointError, match=r"other settings \(class_weights\)"):
        clocs.finetune(folder, small_store, out=out, class_weights=True, resume=True, **HOW)
    epochs: list[int] = []
    clocs.finetune(
        folder,
        small_store,
        out=out,
        resume=True,
        on_epoch=lambda epoch: epochs.append(epoch.number),
        **HOW,
    )
    assert epochs == list(range(3, EPOCHS + 1))
    assert out.read_bytes() == whole
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_interrupted_after_its_training_it_does_not_train_again(
    folder: Path,
    small_store: Store,
    whole: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "rhythm.safetensors"

    def stop(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("clocs.models.finetune.calibrated", stop)
        clocs.finetune(folder, small_store, out=out, **HOW)
    assert (tmp_path / "rhythm.training" / "state-0.safetensors").exists()
    epochs: list[object] = []
    clocs.finetune(folder, small_store, out=out, resume=True, on_epoch=epochs.append, **HOW)
    assert not epochs
    assert out.read_bytes() == whole


def test_a_refused_fine_tuning_leaves_nothing_behind(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SettingError("too few labels")

    monkeypatch.setattr("clocs.models.finetune.score_groups", refuse)
    with pytest.raises(SettingError, match="too few labels"):
        clocs.finetune(checkpoint, small_store, out=tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_somebody_else_is_left_alone(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    (tmp_path / "a.training").mkdir()
    (tmp_path / "a.training" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="holds other files"):
        clocs.finetune(checkpoint, small_store, out=tmp_path / "a.safetensors")
    assert [path.name for path in (tmp_path / "a.training").iterdir()] == ["notes.txt"]


def test_damaged_settings_of_an_interrupted_training_are_not_taken_for_the_same(
    folder: Path, small_store: Store, tmp_path: Path
) -> None:
    work = tmp_path / "a.training"
    work.mkdir()
    (work / "settings.json").write_text(json.dumps({"head": "whole"})[:-1])
    (work / "state-0.safetensors").write_text("")
    with pytest.raises(CheckpointError, match="with other settings"):
        clocs.finetune(folder, small_store, out=tmp_path / "a.safetensors", resume=True, **HOW)

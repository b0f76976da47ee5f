"""Trainings in several processes, compared with the same in one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import clocs
import warm
from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.kernels.ranks import ALONE, Ranks, Share
from clocs.pretraining import Objective
from clocs.pretraining.methods.contrastive import NTXent
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.pretraining.task import _is_shareable, check_shareable
from clocs.recording import FrameSpec
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint, load_checkpoint
from rank_processes import CASES, KILLED, saved

TESTS = Path(__file__).resolve().parent.parent
SPEC = FrameSpec(5.0, 401)  # an odd number: random numbers that are drawn in pairs cross rows
# A command whose process 1 kills itself in the third epoch.
DYING = """
import os, signal
from clocs.training.loop import Engine
train_epoch = Engine.train_epoch
def dying(self, on_step):
    if os.environ["RANK"] == "1" and int(self.replicas.epoch) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return train_epoch(self, on_step)
Engine.train_epoch = dying
from clocs.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    out = tmp_path_factory.mktemp("ranks") / "store"
    return clocs.prepare("synthetic", out=out, patients=12, seed=3)


@pytest.fixture(scope="module")
def frames(store: Store) -> Frames:
    return make_frames(store, spec=SPEC)


@pytest.fixture(scope="module")
def learned(frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What 2 and 4 processes have learned, and what 3 did of what 2 had begun."""
    out = tmp_path_factory.mktemp("learned")
    frames.save(out / "frames")
    done = warm.run(TESTS / "rank_processes.py", out / "frames", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("name", CASES)
def test_two_and_four_processes_learn_what_one_does(
    learned: Path, frames: Frames, name: str
) -> None:
    alone = saved(CASES[name].train(frames, ALONE))
    for size in CASES[name].sizes:
        found = load_file(learned / f"{size} {name}")
        assert found.keys() == alone.keys()
        for each, tensor in alone.items():
            assert torch.allclose(found[each], tensor, rtol=0, atol=1e-10), (size, each)


def differences(a: Checkpoint, b: Checkpoint) -> float:
    return max(float((a.weights[name] - b.weights[name]).abs().max()) for name in a.weights)


def test_a_killed_process_ends_the_training_which_goes_on_in_another_number_of_them(
    learned: Path, frames: Frames, tmp_path: Path
) -> None:
    assert [file.name for file in learned.glob("said by *")] == ["said by 0"]
    said = (learned / "said by 0").read_text()
    assert said.startswith("another process of this training has ended or does not answer (")
    assert said.endswith("run the same command with `resume` to continue, with any number of "
                         "processes")  # fmt: skip
    (whole,) = pretrain_frames(frames, KILLED, tmp_path / "whole")
    resumed = load_checkpoint(learned / "killed" / "seed-0.safetensors")
    assert differences(whole, resumed) < 1e-5
    assert resumed.card.environment["processes"] == 3
    assert resumed.card.metrics["epochs"] == KILLED.settings.epochs
    names = {"log.jsonl", "seed-0.json", "seed-0.safetensors", "settings.json"}
    assert {file.name for file in (learned / "killed").iterdir()} == names


def test_torchrun_says_one_sentence_about_a_killed_process_and_the_command_resumes(
    store: Store, tmp_path: Path
) -> None:
    dying, out, whole = tmp_path / "dying.py", tmp_path / "out", tmp_path / "whole"
    dying.write_text(DYING)
    options: dict[str, Any] = {
        "epochs": 4,
        "batch_size": 16,
        "embedding_dim": 8,
        "lr": 1e-3,
        "save_every": 0,
    }
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    run = warm.run(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, dying),
        *("pretrain", store.path, "--out", out, "--rate", 80, *words),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert run.returncode != 0
    assert run.stdout == ""
    sentences = [line for line in run.stderr.splitlines() if line.startswith("clocs: ")]
    assert len(sentences) == 1, run.stderr
    assert sentences[0].endswith("with --resume to continue, with any number of processes")
    assert (out / "state.safetensors").exists()
    (resumed,) = clocs.pretrain(store, out=out, rate=80, resume=True, **options)
    (one,) = clocs.pretrain(store, out=whole, rate=80, **options)
    assert differences(one, resumed) < 1e-5
    assert resumed.card.metrics == pytest.approx(one.card.metrics)


def test_rows_and_members_are_divided_among_the_processes_in_order() -> None:
    assert Ranks(0, 3).divided(7) == [range(2), range(2, 4), range(4, 7)]
    assert [Share(Ranks(rank, 3), 2).rows for rank in range(3)] == [
        slice(0, 0), slice(0, 1), slice(1, 2)
    ]  # fmt: skip
    assert [Ranks(0, 4).share(members) for members in (3, 4)] == [True, False]
    assert not ALONE.share(1)


def test_what_processes_cannot_share_is_refused(frames: Frames) -> None:
    from clocs.encoders.make import ENCODERS

    class Custom(Objective):
        def train_loss(self, *args: object) -> None:  # type: ignore[override]
            raise NotImplementedError

    assert _is_shareable(NTXent)
    assert not _is_shareable(Custom)
    with pytest.MonkeyPatch.context() as patch:
        module = lambda embedding_dim, samples, dropout: torch.nn.Sequential(  # noqa: E731
            torch.nn.Flatten(), torch.nn.Linear(samples, embedding_dim)
        )
        patch.setitem(ENCODERS, "own", module)
        with pytest.raises(SettingError, match="'own' cannot be trained by several processes"):
            check_shareable(Plan("cmsc", encoder="own"), frames)

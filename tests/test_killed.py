"""Pre-trainings killed with SIGKILL, resumed, and compared with one that nobody disturbed."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

import warm
from clocs.errors import CheckpointError, ClocsWarning
from clocs.files import leftovers
from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import LOG, STATE, pretrain_frames
from clocs.store.store import Store
from clocs.training import Settings
from clocs.training.loop import Epoch
from clocs.training.replicas import Replicas
from command_line import clocs

EPOCHS = 6
PREVIOUS = "state.previous.safetensors"
# A command that stops for ever, and makes a file to say so, when it has written a state for the
# n-th time but not yet put it in its place: however late it is killed, it has not ended.
HALTING = """
import os, pathlib, sys, time
n, stopped, sys.argv = int(sys.argv[1]), pathlib.Path(sys.argv[2]), ["clocs", *sys.argv[3:]]
replace, left = pathlib.Path.replace, [n]
def halting(self, target):
    if self.name.startswith(".state.safetensors"):
        left[0] -= 1
        while not left[0]:
            stopped.touch()
            time.sleep(1)
    return replace(self, target)
pathlib.Path.replace = halting
from clocs.cli.main import main
main()
"""


def command(store: Store, out: Path) -> list[str]:
    return [str(word) for word in (
        "pretrain", store.path, "--out", out, "--seeds", 2, "--epochs", EPOCHS, "--batch-size", 32,
        "--embedding-dim", 8, "--lr", 0.001, "--save-every", 0, "--rate", 80,
    )]  # fmt: skip


def lines(out: Path) -> list[dict[str, Any]]:
    text = (out / LOG).read_text() if (out / LOG).exists() else ""
    return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]


def wait_until(child: warm.Process, ready: Callable[[], bool]) -> None:
    while not ready():
        assert child.poll() is None, child.communicate()
        time.sleep(0.005)


def test_killed_at_any_moment_it_ends_with_the_same_bytes(few_store: Store, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "killed"
    draw = random.Random(0)
    more: list[str] = []
    for moment in ("as soon as the folder is there", "in an epoch", "while it saves"):
        stopped = tmp_path / moment
        saves = "2" if moment == "while it saves" else "3"
        child = warm.Process(
            *("-c", HALTING, saves, stopped, *command(few_store, out), *more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if moment == "while it saves":
            wait_until(child, stopped.exists)
        elif moment == "in an epoch":
            wait_until(child, lambda: len(lines(out)) >= 2)
            time.sleep(draw.uniform(0, 0.15))
        else:
            wait_until(child, out.exists)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert child.returncode == -signal.SIGKILL
        assert not list(out.glob("seed-*"))
        assert leftovers(out / STATE) or moment != "while it saves"
        more = ["--resume"]
    clocs(*command(few_store, whole))
    clocs(*command(few_store, out), "--resume")
    names = sorted(path.name for path in whole.iterdir())
    assert sorted(path.name for path in out.iterdir()) == names
    assert len(names) == 6
    for name in names:
        if name != LOG:
            assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    measured = ("seconds", "instances_per_second")
    for a, b in zip(lines(out), lines(whole), strict=True):
        assert {k: a[k] for k in a if k not in measured} == {
            k: b[k] for k in b if k not in measured
        }
    every = [(epoch, seed) for epoch in range(1, EPOCHS + 1) for seed in (0, 1)]
    assert [(line["epoch"], line["seed"]) for line in lines(out)] == every


PLAN = Plan("cmsc", (0,), embedding_dim=8, settings=Settings(epochs=6, batch_size=64, lr=1e-3))


class StopError(Exception):
    pass


def interrupted(frames: Frames, out: Path, *, at: int) -> None:
    def stop(epoch: Epoch) -> None:
        if epoch.number == at:
            raise StopError

    with pytest.raises(StopError):
        pretrain_frames(frames, PLAN, out, save_every=0, on_epoch=stop)


@pytest.fixture(scope="module")
def stopped(few_frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted in epoch 5: the state is of epoch 4, the previous one of 3."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    interrupted(few_frames, folder, at=5)
    return folder


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def weights(frames: Frames, out: Path) -> bytes:
    pretrain_frames(frames, PLAN, out, resume=True)
    return (out / "seed-0.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(few_frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of a run that nobody interrupted."""
    return weights(few_frames, tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.parametrize("damage", [b"", b"not a state", None])
def test_where_the_last_state_is_damaged_the_one_before_serves(
    run: Path, few_frames: Frames, undisturbed: bytes, damage: bytes | None
) -> None:
    state = run / STATE
    state.write_bytes(state.read_bytes()[:-9] if damage is None else damage)
    with pytest.warns(ClocsWarning, match=rf"{STATE} is not .* resuming from {PREVIOUS}, epoch 3"):
        resumed = weights(few_frames, run)
    assert resumed == undisturbed
    assert [line["epoch"] for line in lines(run)] == [1, 2, 3, 4, 5, 6]
    assert not (run / PREVIOUS).exists()


@pytest.mark.parametrize("part", [0.001, 0.5])  # of the file: in its header, in its tensors
def test_a_flipped_bit_in_the_last_state_is_noticed(
    run: Path, few_frames: Frames, undisturbed: bytes, part: float
) -> None:
    """The run goes on from the state before, and ends with the weights of an undisturbed one."""
    content = bytearray((run / STATE).read_bytes())
    content[int(part * len(content))] ^= 1
    (run / STATE).write_bytes(content)
    with pytest.warns(ClocsWarning, match=f"{STATE} is not .* resuming from {PREVIOUS}, epoch 3"):
        resumed = weights(few_frames, run)
    assert resumed == undisturbed


def test_no_flipped_bit_of_a_state_is_taken_for_sound(run: Path) -> None:
    (run / PREVIOUS).unlink()
    content, whole = (run / STATE).read_bytes(), Replicas.load(run / STATE, torch.device("cpu"))
    header = 8 + int.from_bytes(content[:8], "little")
    draw = random.Random(0)
    places = [*range(8 * header), *(draw.randrange(8 * len(content)) for _ in range(300))]
    refused = 0
    for place in draw.sample(places, 400):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        (run / STATE).write_bytes(damaged)
        try:
            found = Replicas.load(run / STATE, torch.device("cpu"))
        except CheckpointError as error:
            assert len(str(error).splitlines()) == 1
            refused += 1
            continue
        for field in fields(Replicas):
            assert torch.equal(getattr(found, field.name), getattr(whole, field.name)), place
    assert refused > 350


def test_a_state_without_a_digest_is_not_resumed(run: Path, few_frames: Frames) -> None:
    for name in (STATE, PREVIOUS):
        (run / name).write_bytes(save(load((run / name).read_bytes())))
    with pytest.raises(CheckpointError, match="is not a training state that can be resumed"):
        pretrain_frames(few_frames, PLAN, run, resume=True)


def test_the_state_of_another_training_is_not_resumed(run: Path, few_frames: Frames) -> None:
    small = Replicas.start(torch.zeros(1, 3), torch.zeros(1, 2))
    small.save(run / STATE)
    with pytest.raises(CheckpointError, match="is of another training; delete it"):
        pretrain_frames(few_frames, PLAN, run, resume=True)


@pytest.mark.parametrize("damage", [b"{}\n", b"[1]\n", b"\xff\n", b'{"epoch": "x"}\n'])
def test_a_damaged_log_stops_no_training(run: Path, few_frames: Frames, damage: bytes) -> None:
    log = run / "log.jsonl"
    log.write_bytes(damage + log.read_bytes())
    with pytest.warns(ClocsWarning, match=r"log.jsonl has 1 line\(s\) that cannot be read"):
        pretrain_frames(few_frames, PLAN, run, resume=True)
    assert [line["epoch"] for line in lines(run)] == [1, 2, 3, 4, 5, 6]


def test_the_command_says_once_that_it_goes_on_from_the_state_before(
    run: Path, few_store: Store
) -> None:
    (run / STATE).write_bytes(b"not a state")
    done = clocs(
        "pretrain", few_store.path, "--out", run, "--resume", "--rate", 80, "--embedding-dim", 8,
        "--epochs", 6, "--batch-size", 64, "--lr", 0.001, "--json",
    )  # fmt: skip
    assert done.stderr.count(f"resuming from {PREVIOUS}, epoch 3") == 1
    assert len(done.stderr.splitlines()) == 1
    assert json.loads(done.stdout)[0]["metrics"]["epochs"] == 6


def test_killed_between_the_two_renames_the_previous_state_serves(
    run: Path, few_frames: Frames, undisturbed: bytes
) -> None:
    (run / STATE).replace(run / PREVIOUS)
    assert weights(few_frames, run) == undisturbed


def test_where_both_states_are_damaged_it_says_so_and_touches_nothing(
    run: Path, few_frames: Frames
) -> None:
    for name in (STATE, PREVIOUS):
        (run / name).write_bytes(b"not a state")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(CheckpointError, match=f"{STATE} is not .*delete it and the previous one"):
        pretrain_frames(few_frames, PLAN, run, resume=True)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_killed_after_its_last_checkpoint_it_only_tidies_up(run: Path, few_frames: Frames) -> None:
    state = (run / STATE).read_bytes()
    done = weights(few_frames, run)
    (run / STATE).write_bytes(state)
    (run / PREVIOUS).write_bytes(state)
    assert weights(few_frames, run) == done
    assert not list(run.glob("*state*"))


def test_killed_before_its_settings_were_written_the_folder_is_as_new(
    few_frames: Frames, tmp_path: Path
) -> None:
    (tmp_path / ".settings.json.partial").write_text("{")
    (tmp_path / ".lock").write_text("1")
    pretrain_frames(few_frames, PLAN, tmp_path)
    assert (tmp_path / "seed-0.json").exists()
    assert not list(tmp_path.glob(".*"))

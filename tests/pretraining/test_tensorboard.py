from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.pretraining.log import Events
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.store.store import Store
from clocs.training import Settings
from clocs.training.loop import Epoch

PLAN = Plan("cmsc", (0, 3), embedding_dim=8, settings=Settings(epochs=4, batch_size=64))
TAGS = {
    "train/loss",
    "validation/loss",
    "validation/dead",
    "validation/same_patient_pairs",
    "instances_per_second",
}


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What tensorboard itself reads from a run, every event of every file."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(run.iterdir()):
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def assert_as_logged(out: Path, seed: int) -> None:
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    own = [line for line in log if line["seed"] == seed]
    found = scalars(out / "tensorboard" / f"seed-{seed}")
    assert found.keys() >= TAGS
    for tag, values in found.items():
        name = tag.replace("/", "_")
        assert [step for step, _ in values] == [line["epoch"] for line in own], tag
        assert [value for _, value in values] == pytest.approx([line[name] for line in own]), tag


def test_event_files_hold_what_the_log_says_one_run_a_seed(
    small_frames: Frames, tmp_path: Path
) -> None:
    pretrain_frames(small_frames, PLAN, tmp_path, tensorboard=True)
    for seed in (0, 3):
        assert_as_logged(tmp_path, seed)
    assert len(scalars(tmp_path / "tensorboard" / "seed-0")["train/loss"]) == 4


def test_tensorboard_finds_the_runs_and_their_curves(small_frames: Frames, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    pretrain_frames(small_frames, PLAN, tmp_path, tensorboard=True)
    board = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    assert set(board.Runs()) == {"tensorboard/seed-0", "tensorboard/seed-3"}
    assert [e.step for e in board.Scalars("tensorboard/seed-3", "train/loss")] == [1, 2, 3, 4]
    times = [e.wall_time for e in board.Scalars("tensorboard/seed-3", "train/loss")]
    assert times == sorted(times)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_resumed_run_has_every_epoch_once(
    small_frames: Frames, tmp_path: Path, from_the_start: bool
) -> None:
    class StopError(Exception):
        pass

    def stop(epoch: Epoch) -> None:
        if epoch.number == 3:
            raise StopError

    with pytest.raises(StopError):
        pretrain_frames(
            small_frames, PLAN, tmp_path, tensorboard=from_the_start, save_every=0, on_epoch=stop
        )
    if from_the_start:  # as a killed run may leave it
        file = next((tmp_path / "tensorboard" / "seed-0").iterdir())
        file.write_bytes(file.read_bytes()[:-7])
    pretrain_frames(small_frames, PLAN, tmp_path, tensorboard=True, resume=True)
    for seed in (0, 3):
        assert_as_logged(tmp_path, seed)
        assert len(scalars(tmp_path / "tensorboard" / f"seed-{seed}")["train/loss"]) == 4


def test_a_value_that_is_not_finite_is_shown_as_such(tmp_path: Path) -> None:
    line = {"epoch": 1, "seed": 0, "train_loss": None, "seconds": 0.1}
    events = Events({0: tmp_path}, [])
    events.add(line, 0.0)
    events.close()
    ((step, value),) = scalars(tmp_path)["train/loss"]
    assert step == 1
    assert math.isnan(value)


def test_without_the_package_the_extra_is_named(
    small_frames: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "clocs.pretraining.log.find_spec",
        lambda name: None if name == "tensorboard" else real(name),
    )
    with pytest.raises(SettingError, match=r"\.\[tensorboard\]"):
        pretrain_frames(small_frames, PLAN, tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()


def test_the_command_writes_them_and_training_without_never_imports_it(
    small_store: Store, tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "from clocs.cli.main import root_command\n"
        "app = root_command()\n"
        f"common = ['pretrain', {str(small_store.path)!r}, '--epochs', '1', '--json', '--out']\n"
        f"app([*common, {str(tmp_path / 'a')!r}], standalone_mode=False)\n"
        "assert not [name for name in sys.modules if name.startswith('tensorboard')]\n"
        f"app([*common, {str(tmp_path / 'b')!r}, '--tensorboard'], standalone_mode=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "a" / "tensorboard").exists()
    assert_as_logged(tmp_path / "b", 0)

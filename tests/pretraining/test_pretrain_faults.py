"""What cannot be learned is refused at once, and a training that diverged is no result."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clocs
from clocs import Frames, Store
from clocs.errors import CheckpointError, SettingError, TrainingError
from clocs.pretraining import pretrain as module
from clocs.pretraining.methods import METHODS
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training import Settings
from clocs.training.card import NOT_FINITE
from clocs.training.loop import Epoch, Trained, fit

QUICK = Settings(epochs=2, batch_size=32, lr=1e-3)


def test_one_lead_is_refused_where_leads_are_compared(small_store: Store, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"cmlc compares views.*II alone.*at least two `leads`"):
        clocs.pretrain(small_store, method="cmlc", leads=["II"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["cmsc", "cmlc", "cmsmlc"])
def test_a_single_patient_is_refused_where_patients_are_compared(
    small_frames: Frames, tmp_path: Path, method: str
) -> None:
    alone = replace(small_frames, patient=np.zeros_like(small_frames.patient))
    with pytest.raises(SettingError, match=f"too few patients \\(1\\) for {method}"):
        pretrain_frames(alone, Plan(method, settings=QUICK), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_batches_of_one_instance_are_refused_where_instances_are_compared() -> None:
    one = Settings(batch_size=1)
    for name, row in METHODS.items():
        if row.objective is not None and row.objective.compares_views:
            with pytest.raises(SettingError, match=f"`batch_size` must be at least 2 for {name}"):
                Plan(name, settings=one)
    Plan("supervised", settings=one)


@pytest.mark.parametrize("options", [{"lr": float("inf")}, {"temperature": 1e-40}], ids=str)
def test_a_training_that_diverged_is_an_error_and_leaves_no_checkpoint(
    small_store: Store, tmp_path: Path, options: dict[str, Any]
) -> None:
    seen: list[Epoch] = []
    with pytest.raises(TrainingError, match="the training of seed 0, seed 1 diverged"):
        clocs.pretrain(
            small_store, out=tmp_path, seeds=2, embedding_dim=8, on_epoch=seen.append, **options
        )
    assert len(seen) == 1
    assert not list(tmp_path.glob("seed-*"))
    log = (tmp_path / "log.jsonl").read_text()
    assert "NaN" not in log
    assert "Infinity" not in log


def test_members_that_converged_are_kept_and_the_others_named(
    small_frames: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second_breaks(*arguments: object, **settings: object) -> Trained:
        trained = fit(*arguments, **settings)  # type: ignore[arg-type]
        return replace(trained, status=["all epochs", NOT_FINITE])

    monkeypatch.setattr(module, "fit", second_breaks)
    plan = Plan("cmsc", (3, 5), embedding_dim=8, settings=QUICK)
    with pytest.raises(TrainingError, match=r"seed 5 diverged.*checkpoints of seed 3 are in"):
        pretrain_frames(small_frames, plan, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("seed-*")) == [
        "seed-3.json",
        "seed-3.safetensors",
    ]


def test_the_same_store_twice_is_refused_also_under_another_path(
    small_store: Store, tmp_path: Path
) -> None:
    shutil.copytree(small_store.path, tmp_path / "copy")
    for other in (small_store.path, tmp_path / "copy"):
        with pytest.raises(SettingError, match="is given twice; give it once"):
            clocs.pretrain([small_store, other], out=tmp_path / "run")


def test_an_option_of_another_method_is_refused_with_those_it_takes(
    small_store: Store, tmp_path: Path
) -> None:
    takes = "`projection`, `positives`, `most_leads`, `temperature`, `segments`"
    expected = f"cmsc does not take `tau_d`; it has {takes}"
    with pytest.raises(SettingError, match=expected):
        clocs.pretrain(small_store, method="cmsc", tau_d=0.5, out=tmp_path / "run")
    with pytest.raises(SettingError, match="random does not take `temperature`; it has no options"):
        clocs.pretrain(small_store, method="random", temperature=0.5, out=tmp_path / "run")
    with pytest.raises(SettingError, match="supervised does not take `perturb`, which is for byol"):
        clocs.pretrain(small_store, method="supervised", perturb="flip_x", out=tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("cmsc", {"temperature": 0}, "`temperature` must be a number above 0, not 0.0"),
        ("cmsc", {"temperature": "warm"}, "`temperature` must be a number above 0, not 'warm'"),
        ("cmsc", {"segments": 0}, "`segments` must be a whole number at least 1, not 0"),
        ("cmsc", {"segments": 2.5}, "`segments` must be a whole number at least 1, not 2.5"),
        ("cmlc", {"temperature": float("nan")}, "must be a number above 0, not nan"),
        ("byol", {"tau_d": 2}, "`tau_d` must be a number at least 0 and at most 1, not 2.0"),
        ("mtssl", {"tasks": "noise, hiccup"}, "there is no task hiccup; choose `tasks` from noise"),
    ],
)  # fmt: skip
def test_a_value_outside_an_options_range_is_refused(
    method: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        Plan(method, options=options).views_on("chapman")


def test_epochs_and_learning_rate_are_given_as_on_the_command_line_or_as_settings(
    small_store: Store, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"epochs": 1, "patience": 3, "batch_size": 32, "lr": 1e-3}
    (checkpoint,) = clocs.pretrain(small_store, out=tmp_path / "a", embedding_dim=8, **given)
    assert given.items() <= checkpoint.card.training.items()
    with pytest.raises(SettingError, match="give `settings` or `lr`, not both"):
        clocs.pretrain(small_store, out=tmp_path / "b", settings=QUICK, lr=1e-3)


def test_a_run_that_an_earlier_version_began_is_resumed(
    small_frames: Frames, tmp_path: Path
) -> None:
    plan = Plan("cmsc", embedding_dim=8, settings=QUICK)
    pretrain_frames(small_frames, plan, tmp_path)
    settings = json.loads((tmp_path / "settings.json").read_text())
    before = {  # version 0.1.0 wrote the options of all methods
        "method": "cmsc", "seeds": [0], "encoder": "cnn", "embedding_dim": 8, "dropout": 0.1,
        "temperature": 0.1, "tau_d": 0.9, "segments": None, "perturb": None, "tasks": None,
        "positives_within": None, "instances_per_patient": None, "precision": "float32",
        "settings": {"epochs": 2, "patience": 15, "batch_size": 32, "lr": 0.001},
    }  # fmt: skip
    data = {name: settings[name] for name in ("data", "split_seed", "leads", "frame", "init")}
    # options that it did not have
    later = {"positives", "batch_norm", "normalisation", "projection", "crops", "most_leads"}
    assert settings.keys() - (before | data).keys() == later
    assert all(settings[name] == before[name] for name in settings.keys() & before.keys())
    (tmp_path / "settings.json").write_text(json.dumps(before | data))
    assert len(pretrain_frames(small_frames, plan, tmp_path, resume=True)) == 1
    (tmp_path / "settings.json").write_text(json.dumps(before | data | {"queue": 64}))
    with pytest.raises(CheckpointError, match=r"other settings \(queue\)"):  # which is gone
        pretrain_frames(small_frames, plan, tmp_path, resume=True)


def test_interrupting_a_training_says_how_to_resume_it(
    small_frames: Frames, tmp_path: Path
) -> None:
    def interrupt(epoch: Epoch) -> None:
        raise KeyboardInterrupt

    plan = Plan("cmsc", embedding_dim=8, settings=QUICK)
    with pytest.raises(KeyboardInterrupt) as stopped:
        pretrain_frames(small_frames, plan, tmp_path, on_epoch=interrupt)
    assert "the same command with `resume`" in stopped.value.__notes__[0]

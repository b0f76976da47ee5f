"""Whole sweeps: trials of an epoch or two on simulated patients."""

from __future__ import annotations

import csv
import json
import pickle
import shlex
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clocs
from clocs import Store, ray_cluster
from clocs.cli.sweep import pretrain_command
from clocs.errors import BusyError, CheckpointError, ClocsError, SettingError, TrainingError
from clocs.experiments.sweep import trial_run
from clocs.experiments.sweep.record import Trial
from clocs.experiments.sweep.sweep import Sweep
from clocs.locks import locked
from clocs.ray_cluster import Needs, Node
from clocs.training.loop import Epoch
from command_line import clocs as command

SMALL: dict[str, Any] = {"epochs": 1, "embedding_dim": 8, "batch_size": 64}
VARY = {"lr": "0.0001,0.01", "temperature": "0.1,0.5"}


def flags(options: dict[str, Any]) -> list[str]:
    return [word for k, v in options.items() for word in (f"--{k.replace('_', '-')}", str(v))]


@pytest.fixture(scope="module")
def swept(small_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return clocs.sweep(
        small_store, out=tmp_path_factory.mktemp("swept") / "sweep", vary=VARY, seeds=2, **SMALL
    )


@pytest.fixture
def copied(swept: Sweep, tmp_path: Path) -> Path:
    """A folder of the finished sweep, to be changed."""
    return Path(shutil.copytree(swept.folder, tmp_path / "sweep"))


def test_trials_are_sorted_by_their_score_on_validation_patients(
    swept: Sweep, small_store: Store
) -> None:
    assert [len(trial.per_seed) for trial in swept.trials] == [2] * 4
    scores = [trial.score or 0 for trial in swept.trials]
    assert scores == sorted(scores, reverse=True)
    assert {tuple(trial.values.values()) for trial in swept.trials} == {
        *((0.0001, 0.1), (0.0001, 0.5), (0.01, 0.1), (0.01, 0.5))
    }
    whole = clocs.evaluate(
        swept.best_folder, small_store, protocol="linear-converged", per="recording", resamples=0
    )
    assert whole.auc_validation == list(swept.best.per_seed)


def test_table_record_and_figure_are_written(swept: Sweep) -> None:
    names = {path.name for path in swept.folder.iterdir()}
    assert names == {"sweep.json", "sweep.csv", "sweep.png", "sweep.svg", "trials"}
    rows = list(csv.DictReader((swept.folder / "sweep.csv").open()))
    assert [row["trial"] for row in rows] == [trial.name for trial in swept.trials]
    best = rows[0]
    assert float(best["low"]) <= float(best["score"]) <= float(best["high"])
    assert {row["lr"] for row in rows} == {"0.0001", "0.01"}
    record = json.loads((swept.folder / "sweep.json").read_text())
    assert [one["number"] for one in record["trials"]] == [0, 1, 2, 3]


def test_the_command_line_repeats_nothing_and_prints_how_the_best_trial_was_made(
    copied: Path, small_store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trial_run, "pretrain", never)
    vary = [word for name, given in VARY.items() for word in ("--vary", f"{name}={given}")]
    arguments = ["sweep", small_store.path, "--out", copied, *vary, "--seeds", 2, *flags(SMALL)]
    done = command(*arguments)
    assert "[4/4] lr=0.01 temperature=0.5: 0." in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("  clocs pretrain")]
    assert line.strip() == json.loads(command(*arguments, "--json").stdout)["command"]
    words = shlex.split(line)
    best = Path(words[-1])
    assert f"clocs evaluate {best} {small_store.path}" in done.stdout
    assert "optimistic" in done.stdout
    command(*words[1:-1], tmp_path / "again")
    for name in ("seed-0.safetensors", "seed-1.json"):
        assert (tmp_path / "again" / name).read_bytes() == (best / name).read_bytes()


def test_options_are_typed_as_pretrain_takes_them() -> None:
    options = {"recording_hashes": False, "leads": ("II", "V2"), "clip": None, "warm_up": 0.05}
    typed = pretrain_command([Path("a b")], {**options, "perturb": "gaussian>sa_t"}, Path("out"))
    assert typed == (
        "clocs pretrain 'a b' --no-recording-hashes --leads II,V2 --warm-up 0.05 "
        "--perturb 'gaussian>sa_t' --out out"
    )


def never(*given: Any, **options: Any) -> None:
    raise AssertionError("a finished trial was trained again")


def test_interrupted_in_a_trial_it_goes_on_there_and_ends_with_the_same_scores(
    swept: Sweep, small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def stopping(on: Callable[[Epoch], None], *given: Any, **options: Any) -> Any:
        begun.append(options["out"].name)
        watch = on if len(begun) == 2 else lambda epoch: None
        return clocs.pretrain(*given, on_epoch=watch, **options)

    def stop(epoch: Epoch) -> None:
        raise KeyboardInterrupt

    def sweep() -> Sweep:
        vary = {"lr": VARY["lr"]}
        return clocs.sweep(
            small_store, out=tmp_path / "sweep", vary=vary, seeds=2, save_every=0, **SMALL
        )

    monkeypatch.setattr(trial_run, "pretrain", lambda *a, **o: stopping(stop, *a, **o))
    with pytest.raises(KeyboardInterrupt):
        sweep()
    record = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [one["state"] for one in record["trials"]] == ["done", "running"]
    found = sweep()
    assert begun == ["000", "001", "001"]
    whole = [trial for trial in swept.trials if trial.values["temperature"] == 0.1]  # the default
    assert [t.per_seed for t in found.trials] == [t.per_seed for t in whole]
    assert [t.ci95 for t in found.trials] == [t.ci95 for t in whole]


def test_another_sweep_in_the_same_folder_is_refused(copied: Path, small_store: Store) -> None:
    def again(vary: dict[str, str] = VARY, **changed: Any) -> Sweep:
        options = {**SMALL, "seeds": 2, **changed}
        return clocs.sweep(small_store, out=copied, vary=vary, **options)

    assert again().best.score is not None
    for changed, named in (
        ({"vary": {"lr": "0.0001,0.01", "temperature": "0.1,0.6"}}, "vary"),
        ({"epochs": 2}, "epochs"),
        ({"seeds": 3, "dropout": 0.2}, "dropout, seeds"),
        ({"score": "loss", "vary": {"lr": "0.0001,0.01"}}, "score, score_on, vary"),
    ):
        with pytest.raises(CheckpointError, match=rf"other settings \({named}\); give a new"):
            again(**changed)
    with locked(copied), pytest.raises(BusyError):
        again()


def test_a_damaged_record_is_refused_and_without_it_trials_are_scored_again(
    copied: Path, small_store: Store, swept: Sweep
) -> None:
    def again() -> Sweep:
        return clocs.sweep(small_store, out=copied, vary=VARY, seeds=2, **SMALL)

    record = copied / "sweep.json"
    text = record.read_text()
    for damaged in (text[:-20], text.replace('"score": 0.', '"score": 1.', 1), "[]"):
        record.write_text(damaged)
        with pytest.raises(CheckpointError, match=r"is damaged.*delete it"):
            again()
    record.unlink()
    assert [t.score for t in again().trials] == [t.score for t in swept.trials]


def test_a_folder_of_something_else_is_refused(small_store: Store, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(CheckpointError, match="holds other files"):
        clocs.sweep(small_store, out=tmp_path, vary=VARY)
    with pytest.raises(CheckpointError, match="is a file"):
        clocs.sweep(small_store, out=tmp_path / "thesis.txt", vary=VARY)


def test_a_diverged_trial_is_last_and_the_others_count(small_store: Store, tmp_path: Path) -> None:
    found = clocs.sweep(small_store, out=tmp_path, vary={"lr": [1e30, 1e-3]}, **SMALL)
    assert [trial.state for trial in found.trials] == ["done", "failed"]
    assert "diverged" in (found.trials[1].error or "")
    with pytest.raises(TrainingError, match="all 1 trials failed; the first: the training of seed"):
        clocs.sweep(small_store, out=tmp_path / "all", vary={"lr": [1e30]}, **SMALL)


def test_a_random_sweep_goes_on_when_more_trials_are_wanted(
    small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep(trials: int) -> Sweep:
        return clocs.sweep(
            small_store,
            out=tmp_path / "sweep",
            vary={"lr": "log:1e-4..1e-2", "leads": "II+V2,II"},
            sampler="random",
            trials=trials,
            **SMALL,
        )

    one, two = sweep(1), sweep(2)
    assert one.best in two.trials
    assert len(two.trials) == 2
    assert {type(trial.values["leads"]) for trial in two.trials} == {tuple}
    monkeypatch.setattr(trial_run, "pretrain", never)
    assert sweep(1).trials == two.trials


def test_without_labels_losses_are_compared_the_lowest_first(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    store = clocs.from_arrays(
        draw.normal(size=(24, 1, 1000)).cumsum(axis=2) / 10, range(24), rate=100, leads=["II"]
    )
    vary = {"lr": "0.0001,0.01"}
    with pytest.raises(SettingError, match="have no labels to score with; name a labelled store"):
        clocs.sweep(store, out=tmp_path / "sweep", vary=vary, **SMALL)
    assert not (tmp_path / "sweep").exists()
    options = {**SMALL, "batch_size": 8}
    found = clocs.sweep(store, out=tmp_path / "sweep", vary=vary, score="loss", **options)
    losses = [trial.score or 0 for trial in found.trials]
    assert losses == sorted(losses)
    assert found.best.ci95 is None  # of one seed


def test_of_several_stores_one_is_named_for_its_labels(small_store: Store, tmp_path: Path) -> None:
    signals = np.random.default_rng(0).normal(size=(12, 1, 5000)).cumsum(axis=2) / 10
    other = clocs.from_arrays(signals, range(12), rate=500, leads=["II"], name="other")
    both = [small_store, other]
    with pytest.raises(SettingError, match="name the one whose labels count with `score_on`"):
        clocs.sweep(both, out=tmp_path / "sweep", vary={"lr": [1e-3]})
    found = clocs.sweep(
        both, out=tmp_path / "sweep", vary={"lr": [1e-3]}, score_on=small_store, **SMALL
    )
    assert found.score_on == small_store.path


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"resume": True}, "does not take `resume`"),
        ({"perturb": ["gaussian", "sa_t"]}, "vary `perturb`"),
        ({"score": "f1"}, "`score` is auc or loss"),
        ({"score": "loss", "score_on": "x", "vary": {"lr": "1,2"}}, "`score_on` is for labels"),
        ({"sampler": "random"}, "needs a number of `trials`"),
    ],
)
def test_what_a_sweep_does_not_take_is_refused_before_anything_is_written(
    options: dict[str, Any], sentence: str, small_store: Store, tmp_path: Path
) -> None:
    with pytest.raises(ClocsError, match=sentence):
        clocs.sweep(small_store, out=tmp_path / "new", **{"vary": VARY, **options})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("text", ["lr", "=1,2", "lr="])
def test_vary_without_a_name_or_values_is_a_sentence(text: str, small_store: Store) -> None:
    said = command("sweep", small_store.path, "--out", "x", "--vary", text, code=1).stderr
    assert "give each option once, with its values, such as lr=0.0001,0.001" in said
    assert "--vary" in said


class TasksHere:
    """Stands for `clocs.ray_cluster.Tasks`: runs tasks in this process, the newest first."""

    most = 0

    def __init__(self) -> None:
        self._waiting: list[tuple[Any, Callable[[], Any]]] = []

    def __class_getitem__(cls, kind: Any) -> type[TasksHere]:
        return cls

    def __enter__(self) -> TasksHere:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self, key: Any, act: Any, *arguments: Any, needs: Needs) -> None:
        assert needs == Needs(cpus=1, gpus=0)
        assert pickle.dumps(act.__self__)  # it can be sent
        self._waiting.append((key, lambda: act(*arguments)))
        TasksHere.most = max(TasksHere.most, len(self))

    def finished(self) -> list[tuple[Any, Callable[[], Any]]]:
        return [self._waiting.pop()]


def test_trials_on_a_cluster_end_in_any_order_and_this_process_records_them(
    swept: Sweep, small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "connect", lambda address: nullcontext())
    monkeypatch.setattr(ray_cluster, "Tasks", TasksHere)
    monkeypatch.setattr(ray_cluster, "nodes", lambda: [Node(cpus=2, gpus=0, memory=0)])
    monkeypatch.chdir(tmp_path)
    ended: list[int] = []
    found = clocs.sweep(
        small_store,
        out="sweep",
        vary={"lr": VARY["lr"], "temperature": [0.1]},
        seeds=2,
        ray="auto",
        on_trial=lambda trial, total: ended.append(trial.number),
        **SMALL,
    )
    assert TasksHere.most == 2
    assert ended == [1, 0]
    whole = [trial for trial in swept.trials if trial.values["temperature"] == 0.1]
    assert [t.per_seed for t in found.trials] == [t.per_seed for t in whole]
    record = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [one["state"] for one in record["trials"]] == ["done", "done"]


def test_a_cluster_that_writes_elsewhere_is_noticed(
    small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "connect", lambda address: nullcontext())
    monkeypatch.setattr(ray_cluster, "Tasks", TasksHere)
    monkeypatch.setattr(ray_cluster, "nodes", lambda: [Node(cpus=1, gpus=0, memory=0)])
    monkeypatch.setattr(trial_run.TrialRun, "__call__", lambda run, trial: trial)
    with pytest.raises(SettingError, match="give a folder on a disk that all machines"):
        clocs.sweep(small_store, out=tmp_path, vary={"lr": [1e-3]}, ray="auto", **SMALL)


def test_a_trial_whose_lost_process_still_ends_is_tried_again(
    swept: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trial_run.TrialRun((), swept.folder, {}, None)
    busy = iter([True, True, False])

    def once(self: trial_run.TrialRun, trial: Trial) -> Trial:
        if next(busy):
            raise BusyError
        return trial

    monkeypatch.setattr(trial_run.TrialRun, "__call__", once)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert run.on_node(swept.best) is swept.best

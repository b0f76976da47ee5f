from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import clocs
from clocs.cli.main import Root
from clocs.errors import SettingError
from clocs.evaluation.result import Predictions
from clocs.store.store import Store
from clocs.training import Settings
from command_line import clocs as run
from evaluation_parts import compare

QUICK = ("--epochs", 2, "--batch-size", 64, "--resamples", 50)


def evaluate(*arguments: object) -> str:
    done = CliRunner().invoke(Root(), ["evaluate", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def runs(small_store: Store, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    for method in ("cmsc", "simclr"):
        settings = Settings(epochs=2, batch_size=64)
        clocs.pretrain(
            small_store, method=method, out=folder / method, embedding_dim=16, settings=settings
        )
    return [folder / "cmsc", folder / "simclr"]


def test_one_checkpoint_is_one_object_compared_with_untrained_encoders(
    runs: list[Path], small_store: Store
) -> None:
    found: dict[str, Any] = json.loads(
        evaluate(runs[0], small_store.path, *QUICK, "--labels", 20, "--json")
    )
    assert found["method"] == "cmsc"
    assert found["labels_count"] == 20
    assert found["random_method"] in ("random", "random-bn")
    assert found["beats_random"] in (True, False)
    for name in ("ap_mean", "f1_mean", "accuracy_mean", "thresholds", "by_sex", "by_age"):
        assert found[name] is not None


def test_a_classifier_that_diverged_ends_the_command_with_an_error(
    runs: list[Path], small_store: Store
) -> None:
    done = run("evaluate", runs[0], small_store.path, "--lr", "inf", "--json", code=1)
    assert done.stdout == ""
    assert "diverged" in done.stderr and "try a lower --lr" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_several_checkpoints_are_a_list_with_untrained_encoders_last(
    runs: list[Path], small_store: Store, tmp_path: Path
) -> None:
    words = evaluate(
        *runs, small_store.path, *QUICK, "--json", "--plots", tmp_path / "figures",
        "--predictions", tmp_path / "predictions",
    )  # fmt: skip
    found = json.loads(words)
    assert [row["method"] for row in found] == ["cmsc", "simclr", "random", "random-bn"]
    assert found[0]["better_than"] is not None
    figures = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert figures == [
        f"{method}-synthetic-{kind}.png"
        for method in ("cmsc", "simclr")
        for kind in ("calibration", "confusion", "roc")
    ]
    saved = {path.stem: Predictions.load(path) for path in (tmp_path / "predictions").iterdir()}
    assert len(saved) == 4
    comparison = compare(saved["cmsc-synthetic"], saved["random"], resamples=50)
    expected = found[0]["auc_mean"] - found[2]["auc_mean"]
    assert comparison.difference == pytest.approx(expected)


@pytest.mark.parametrize("protocol", ["finetune", "knn", "linear-converged"])
def test_every_protocol_prints_a_table_and_comparisons(
    runs: list[Path], small_store: Store, protocol: str
) -> None:
    words = evaluate(*runs, small_store.path, *QUICK, "--protocol", protocol)
    assert "simclr (synthetic)" in words
    assert ("random-bn" in words) == (protocol != "finetune")
    assert ("beat" in words) == (protocol != "finetune")
    assert "No AUC for SVT" in words


def test_one_method_is_shown_in_full(runs: list[Path], small_store: Store) -> None:
    words = evaluate(runs[0], small_store.path, *QUICK)
    for expected in (
        "(trained on ",
        "against untrained",
        "random-bn (untrained)",
        "female",
        "accuracy",
        "AUC of",
    ):
        assert expected in words


def test_a_fraction_and_a_number_of_labels_are_refused_together(
    runs: list[Path], small_store: Store
) -> None:
    with pytest.raises(SettingError, match="`labels` is a number and `fraction` a share"):
        evaluate(runs[0], small_store.path, "--labels", 9, "--fraction", 0.5)


OPTIMIZER = (
    "--optimizer", "adamw", "--schedule", "cosine", "--warm-up", 0.1, "--average", 0.9,
)  # fmt: skip
CHOSEN = {
    "optimizer": "adamw",
    "schedule": "cosine",
    "warm_up": 0.1,
    "average": 0.9,
}


def test_the_optimizer_is_chosen_on_the_command_line_and_said_in_the_json(
    runs: list[Path], small_store: Store, tmp_path: Path
) -> None:
    pretrained = CliRunner().invoke(
        Root(),
        [str(word) for word in (
            "pretrain", small_store.path, "--out", tmp_path / "run", "--embedding-dim", 8,
            "--epochs", 1, "--batch-size", 64, *OPTIMIZER, "--json",
        )],
        catch_exceptions=False,
    )  # fmt: skip
    (card,) = json.loads(pretrained.stdout)
    assert CHOSEN.items() <= card["training"].items()
    given = ("--protocol", "finetune", "--encoder-lr", 0.1, "--json")
    words = evaluate(runs[0], small_store.path, *QUICK, *given)
    assert json.loads(words)["settings"]["encoder_lr"] == 0.1
    with pytest.raises(SettingError, match="linear does not take `encoder_lr`"):
        evaluate(runs[0], small_store.path, *QUICK, "--encoder-lr", 0.1)


def test_a_forgotten_store_is_named(runs: list[Path]) -> None:
    done = run("evaluate", runs[0], code=2)
    assert "clocs evaluate CHECKPOINT... STORE" in done.stderr

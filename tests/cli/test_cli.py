from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clocs.store.store import Store
from command_line import as_json, clocs


@pytest.fixture(scope="module")
def run(small_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "cmsc"
    cards = as_json(
        "pretrain", small_store.path, "--out", folder, "--seeds", 2, "--epochs", 2,
        "--batch-size", 64, "--embedding-dim", 16,
    )  # fmt: skip
    assert [card["seed"] for card in cards] == [0, 1]
    return folder


def test_prepare_prints_json_alone(tmp_path: Path) -> None:
    facts = as_json("prepare", "synthetic", "--patients", 5, "--out", tmp_path / "store")
    assert facts["dataset"] == "synthetic"
    assert facts["recordings"] == 10
    assert facts["quarantined"] == 0
    again = as_json("prepare", "synthetic", "--patients", 5, "--out", tmp_path / "store")
    assert again["content_hash"] == facts["content_hash"]


def test_info_counts_a_store(small_store: Store) -> None:
    facts = as_json("info", small_store.path, "--verify")
    assert facts["frames"] == 80 * 2 * 4
    assert facts["instances"]["cmsc"]["total"] == 80 * 4
    assert facts["instances"]["cmsmlc"]["total"] == 80
    assert facts["leads"] == ["II", "V2", "aVL", "aVR"]
    assert facts["verified"] is True
    keys = "dataset recordings patients frames leads rate labels splits instances quarantined"
    assert set(keys.split()) <= facts.keys()


def test_info_shows_a_checkpoint(run: Path) -> None:
    card = as_json("info", run / "seed-1.safetensors")
    assert card["method"] == "cmsc"
    assert card["seed"] == 1
    assert "identify a person" in clocs("info", run).stdout


def test_evaluate_scores_every_seed_of_a_folder(run: Path, small_store: Store) -> None:
    result = as_json(
        "evaluate", run, small_store.path, "--fraction", 0.5, "--epochs", 3, "--resamples", 20
    )
    assert result["seeds"] == [0, 1]
    assert result["fraction"] == 0.5
    words = clocs("evaluate", run / "seed-0.safetensors", small_store.path, "--epochs", 1).stdout
    assert "AUC per frame" in words


def test_an_interrupted_pretraining_is_refused_or_resumed(run: Path, small_store: Store) -> None:
    same = ("--seeds", 2, "--epochs", 2, "--batch-size", 64, "--embedding-dim", 16)
    done = clocs("pretrain", small_store.path, "--out", run, *same, code=1)
    assert "--resume" in done.stderr
    clocs("pretrain", small_store.path, "--out", run, *same, "--resume")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("info", "nowhere"), "nowhere does not exist"),
        (("prepare", "nobody", ".", "--out", "../store"), "there is no dataset 'nobody'"),
        (("prepare", "chapman"), "needs a source"),
        (("prepare", "chapman", "nowhere.zip", "--out", "x"), "nowhere.zip"),
        (("evaluate", "nowhere.safetensors", "STORE"), "nowhere.safetensors does not exist"),
        (("pretrain", "STORE", "--out", "x", "--method", "mae"), "no method 'mae'"),
        (("pretrain", "STORE", "--out", "x", "--encoder", "vgg"), "no encoder 'vgg'"),
        (("pretrain", "STORE", "--out", "x", "--leads", "V9"), "no lead V9"),
        (("pretrain", "STORE", "--out", "x", "--lr", "0"), "learning rate"),
        (("pretrain", "STORE", "--out", "x", "--lr", "inf"), "the training of seed 0 diverged"),
        (("pretrain", "STORE", "--out", "x", "--tau-d", "0.5"), "cmsc does not take --tau-d"),
        (
            ("pretrain", "STORE", "--out", "x", "--method", "cmlc", "--leads", "II"),
            "choose at least two --leads",
        ),
        (("pretrain", "STORE", "--out", "x", "--device", "cuda:99"), "cannot be used here"),
    ],
)
def test_bad_input_gets_one_sentence(
    small_store: Store, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    filled = [small_store.path if a == "STORE" else a for a in arguments]
    done = clocs(*filled, code=1, cwd=tmp_path)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_process_ends_with_the_commands_code_and_words(
    small_store: Store, tmp_path: Path
) -> None:
    for words, code in ((("info", small_store.path, "--json"), 0), (("info", "nowhere"), 1)):
        done = subprocess.run(
            [sys.executable, "-m", "clocs", *map(str, words)],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        here = clocs(*words, code=code, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (code, here.stdout, here.stderr)


def test_preparing_and_counting_import_neither_torch_nor_a_signal_library(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    code = (
        "import sys\n"
        "from clocs.cli.main import root_command\n"
        f"for words in (['prepare', 'synthetic', '--patients', '2', '--out', {store!r}],\n"
        f"              ['info', {store!r}]):\n"
        "    root_command()(words, standalone_mode=False)\n"
        "assert not {'torch', 'scipy.signal', 'fsspec', 's3fs'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

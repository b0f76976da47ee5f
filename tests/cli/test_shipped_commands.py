"""Every command that takes a model runs with a shipped one, and every shipped one is usable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import clocs as package
from clocs.training.card import SHIPPED
from command_line import as_json, clocs
from snippets import one_process
from upload_files import csv_file

ENCODERS = [row.name for row in SHIPPED.values() if row.kind == "encoder"]
CLASSIFIERS = [row.name for row in SHIPPED.values() if row.kind == "classifier"]
FILE = "own.csv"  # twelve leads, of which each model takes those that it knows
# Of each network, one takes every command; others of the same network differ in their weights and
# cards alone, which the first commands read.
EVERY = ("cmsc-chapman", "cmsmlc-many-leads", "rhythm-chapman")
# By command, the words that follow the model's name; a list is several runs.
OF_ENCODERS = {
    "info": ["", "--verbose"],
    "embed": [f"{FILE} --rate 500 --out file.parquet", "store --out patients.parquet"],
    "index": ["store --out index"],
    "evaluate": [
        "store --protocol linear-converged --no-baselines --resamples 0",
        "store --protocol retrieval",
    ],
    "finetune": ["store --out own.safetensors", "store --shared --out shared.safetensors"],
    "serve": ["--index index"],
    "export": ["--to hub --out hub"],
}
OF_CLASSIFIERS = {
    "info": ["", "--verbose"],
    "predict": [f"{FILE} --rate 500 --explain explained.json", "store", f"{FILE} --rate 500"],
    "serve": [""],
    "export": ["--to hub --out hub"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small store of twelve leads, and one of its recordings as a file."""
    made = tmp_path_factory.mktemp("shipped")
    with one_process():
        store = package.prepare("synthetic", out=made / "store", patients=16, recordings=1)
        (made / FILE).write_bytes(csv_file(store.recording(0)))
        yield made


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    for name in ("store", FILE):
        (tmp_path / name).symlink_to(folder / name)
    return tmp_path


def run_all(name: str, commands: dict[str, list[str]], folder: Path) -> None:
    """Every run of every command; with most models the first of the first three."""
    for command, runs in list(commands.items())[: None if name in EVERY else 2]:
        for words in runs if name in EVERY else runs[:1]:
            clocs(command, name, *words.split(), cwd=folder)


@pytest.mark.parametrize("name", ENCODERS)
def test_every_command_that_takes_an_encoder_takes(name: str, own: Path) -> None:
    run_all(name, OF_ENCODERS, own)
    if name not in EVERY:
        return
    clocs("figure", "distances", "store", "--checkpoint", name, cwd=own)
    clocs("explore", "--checkpoint", name, "store", cwd=own)
    # what was made of it, in place of it
    facts = as_json("info", own / "index")
    assert facts["patient"]["vectors"] == 16
    found = as_json("similar", own / "index", "--file", own / FILE, "--rate", 500, "-k", 1)
    assert found["neighbors"][0]["distance"] == pytest.approx(0, abs=1e-3)
    for made in ("own", "shared"):
        clocs("predict", f"{made}.safetensors", FILE, "--rate", 500, cwd=own)
    clocs("explore", "--embeddings", "patients.parquet", "--checkpoint", name, cwd=own)
    clocs("embed", "index/checkpoint", FILE, "--rate", 500, "--out", "copy.parquet", cwd=own)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_command_that_takes_a_classifier_takes(name: str, own: Path) -> None:
    run_all(name, OF_CLASSIFIERS, own)
    if name in EVERY:
        clocs("explore", "--checkpoint", ENCODERS[0], "store", "--model", name, cwd=own)

"""The demo's simulated patients and encoders: where they are kept, and how they are made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clocs.errors import ClocsError
from clocs.store.manifest import MANIFEST, Manifest
from clocs.training.card import read_card

PATIENTS = 300
DEMO = Path("demo")  # where `clocs demo` puts it by default, below the current folder
SEEDS = 3
# Short, to take half a minute; the paper's settings are for tens of thousands of instances.
PRETRAINING: dict[str, Any] = {"epochs": 30, "patience": 15, "batch_size": 128, "lr": 1e-3}


def store_folder(folder: Path, patients: int) -> Path:
    """The store below the demo's folder."""
    return folder / f"store-{patients}"


def encoder_folder(folder: Path, patients: int, method: str) -> Path:
    """The encoders of a method below the demo's folder."""
    return folder / f"encoders-{patients}" / method


def finished_demo(folder: Path, patients: int = PATIENTS) -> tuple[Path, Path] | None:
    """The demo's store and its folder of CMSC encoders, if whole and of this version."""
    store, encoders = store_folder(folder, patients), encoder_folder(folder, patients, "cmsc")
    if not ((store / MANIFEST).is_file() and (encoders / "seed-0.safetensors").is_file()):
        return None
    try:
        Manifest.read(store)
        read_card(encoders / "seed-0.json")
    except ClocsError:
        return None
    return store, encoders


def demo_store_and_encoder(
    folder: Path,
    *,
    patients: int = PATIENTS,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> tuple[Path, Path]:
    """The demo's store and its folder of CMSC encoders, made unless they exist.

    Damaged ones, and those of another version, are made anew. `clocs demo` with this folder as
    `out` keeps them there, too. `progress` is called with the
    current stage, the steps done and their total.
    """
    if found := finished_demo(folder, patients):
        return found
    store, encoders = store_folder(folder, patients), encoder_folder(folder, patients, "cmsc")
    if (store / MANIFEST).is_file() and (encoders / "seed-0.safetensors").is_file():
        shutil.rmtree(store)
        shutil.rmtree(encoders)
    from clocs.pretraining.pretrain import pretrain
    from clocs.store.prepare import prepare
    from clocs.training import Settings

    folder.mkdir(parents=True, exist_ok=True)
    simulating, learning = f"Simulating {patients} patients", "Learning an encoder without labels"
    prepare(
        "synthetic",
        out=store,
        patients=patients,
        progress=lambda done, total: progress(simulating, done, total),
    )
    pretrain(
        store,
        method="cmsc",
        out=encoders,
        seeds=SEEDS,
        settings=Settings(**PRETRAINING),
        resume=True,
        on_epoch=lambda epoch: progress(learning, epoch.number, PRETRAINING["epochs"]),
    )
    return store, encoders

"""An index folder: an encoder and the indexes of patients and recordings that it made.

    checkpoint/seed-0.safetensors, seed-0.json     the encoder, so that files can be queries
    patient/, recording/                           one index each, see `index_files`

Searching for a patient needs no encoder, and so no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from clocs.errors import CheckpointError, SettingError, StoreError
from clocs.files import sha256_of
from clocs.patients.index import PatientIndex
from clocs.patients.on_disk_engine import OnDisk
from clocs.patients.rows import Level
from clocs.store.manifest import MANIFEST

if TYPE_CHECKING:
    from clocs.training.checkpoint import Checkpoint

INDEXED: tuple[Level, ...] = ("patient", "recording")
ENCODER = Path("checkpoint") / "seed-0.safetensors"


def index_encoder(folder: Path) -> Checkpoint:
    """The encoder that made an index."""
    from clocs.training.checkpoint import load_checkpoint

    return load_checkpoint(_encoder_file(folder))


def _encoder_file(folder: Path) -> Path:
    if not (folder / ENCODER).is_file():
        raise StoreError(f"{folder} is not an index; make one with `clocs index`")
    return folder / ENCODER


def open_index(folder: Path, level: Level = "patient", *, verify: bool = False) -> PatientIndex:
    """One level of an index folder; its vectors are checked to come from its encoder."""
    if level not in INDEXED:
        raise SettingError(f"an index has the levels {' and '.join(INDEXED)}, not {level!r}")
    encoder = sha256_of(_encoder_file(folder))  # a checkpoint's fingerprint
    index = PatientIndex.load(folder / level, verify=verify)
    if index.encoder != encoder:
        raise CheckpointError(
            f"the encoder in {folder} is not the one that made its vectors; make the index again "
            "with `clocs index`"
        )
    return index


def is_index_folder(folder: Path) -> bool:
    """Whether this folder holds an index."""
    return all((folder / level / MANIFEST).is_file() for level in INDEXED)


def index_facts(folder: Path, *, verify: bool = False) -> dict[str, Any]:
    """What is in an index, by level; with `verify`, everything is compared with its hashes."""
    facts: dict[str, Any] = {"index": str(folder)}
    for level in INDEXED:
        index = open_index(folder, level, verify=verify)
        facts |= {name: getattr(index, name) for name in ("encoder", "frame", "leads", "dim")}
        found = index.rows.filter(pl.Series(index.live))
        counts = found["dataset"].value_counts(sort=True)
        facts[level] = {
            "vectors": len(index),
            "replaced": len(index.live) - len(index),
            "kind": index.kind,
            "datasets": dict(counts.iter_rows()),
        }
        if isinstance(index.engine, OnDisk):
            facts[level]["efforts"] = [vars(effort) for effort in index.engine.efforts]
    return facts | ({"verified": True} if verify else {})

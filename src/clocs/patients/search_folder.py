"""Archive: a checkpoint and the indexes of patients and recordings it makes, in one folder.

    checkpoint/seed-0.safetensors, seed-0.json     the encoder, so that a file can be asked about
    patient/, recording/                           an index each, see `index_folder`

Asking for a patient needs no encoder, and so no torch. Knows nothing about the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from clocs.errors import CheckpointError, SettingError, StoreError
from clocs.files import sha256_of
from clocs.patients.filters import Where
from clocs.patients.index import PatientIndex
from clocs.patients.index_files import verify_index
from clocs.patients.rows import Level
from clocs.store.manifest import MANIFEST

if TYPE_CHECKING:
    from clocs.training.checkpoint import Checkpoint

INDEXED: tuple[Level, ...] = ("patient", "recording")
ENCODER = Path("checkpoint") / "seed-0.safetensors"


def archive_checkpoint(folder: Path) -> Checkpoint:
    """The encoder that made an archive."""
    from clocs.training.checkpoint import load_checkpoint

    return load_checkpoint(_encoder_file(folder))


def _encoder_file(folder: Path) -> Path:
    if not (folder / ENCODER).is_file():
        raise StoreError(f"{folder} is no index; make one with `clocs index`")
    return folder / ENCODER


def open_index(folder: Path, level: Level = "patient") -> PatientIndex:
    """One level of an archive, checked to be of its encoder."""
    if level not in INDEXED:
        raise SettingError(f"an index has the levels {' and '.join(INDEXED)}, not {level!r}")
    encoder = sha256_of(_encoder_file(folder))  # a checkpoint's fingerprint
    index = PatientIndex.load(folder / level)
    if index.encoder != encoder:
        raise CheckpointError(f"{folder} holds another encoder than the one that made its vectors")
    return index


def is_archive(folder: Path) -> bool:
    """Whether this is the folder of an archive."""
    return all((folder / level / MANIFEST).is_file() for level in INDEXED)


def archive_facts(folder: Path, *, verify: bool = False) -> dict[str, Any]:
    """What is in an archive, by level; with `verify` all is read and compared with its hashes."""
    facts: dict[str, Any] = {"index": str(folder)}
    for level in INDEXED:
        index = open_index(folder, level)
        if verify:
            verify_index(folder / level)
        facts |= {"encoder": index.encoder, "frame": index.frame, "dim": index.dim}
        found = index.rows.filter(pl.Series(index.live))
        counts = found["dataset"].value_counts(sort=True)
        facts[level] = {
            "vectors": len(index),
            "replaced": len(index.live) - len(index),
            "kind": index.kind,
            "datasets": dict(counts.iter_rows()),
        }
    return facts | ({"verified": True} if verify else {})


def similar_to_patient(
    folder: Path, patient: str, *, k: int = 10, level: Level = "patient", where: Where | None = None
) -> pl.DataFrame:
    """The nearest to a patient (or a recording) of the archive, by 'ID' or 'dataset:ID'."""
    index = open_index(folder, level)
    if where is not None:
        where.expect_known(index.rows)
    prefix, colon, rest = patient.partition(":")
    dataset = prefix if colon and prefix in index.rows["dataset"] else None
    name = patient if dataset is None else rest
    try:
        return index.similar(name, k, where=where, dataset=dataset)
    except SettingError:
        if level == "patient" and name in open_index(folder, "recording").rows["recording"]:
            raise SettingError(
                f"{name!r} is a recording; ask about it with --level recording"
            ) from None
        raise


def similar_to_file(
    folder: Path,
    file: Path,
    *,
    k: int = 10,
    level: Level = "patient",
    where: Where | None = None,
    leads: Sequence[str] | None = None,
    rate: float = 500.0,
) -> pl.DataFrame:
    """The nearest to a recording's file, embedded by the archive's own encoder.

    Where the archive holds this very recording, its patients are those who ask, and not returned:
    published data hold some recordings twice, as two patients.
    """
    from clocs.formats.find import find_recordings, read_several
    from clocs.patients.embed import embed_recordings, frame_of

    index = open_index(folder, level)
    if where is not None:
        where.expect_known(index.rows)
    found = find_recordings([file])
    if len(found) > 1:
        raise SettingError(f"{file} holds {len(found)} recordings; ask for one at a time")
    encoder = archive_checkpoint(folder)
    embedded = embed_recordings(
        encoder, read_several(found, rate), spec=frame_of(encoder, index.frame), leads=leads
    )
    if embedded.problems:
        words = embedded.problems[0][1]
        raise SettingError(words if str(file) in words else f"{file} cannot be used: {words}")
    if not len(embedded):
        raise SettingError(f"{file} gives only vectors of zeros, which have no neighbours")
    known = index.rows if level == "recording" else open_index(folder, "recording").rows
    own = index.of(known.filter(pl.col("digest") == embedded.rows["digest"][0]))
    others = None if where is None else where.mask(index.rows)
    return index.table(index.search(embedded, k, where=~own if others is None else others & ~own))

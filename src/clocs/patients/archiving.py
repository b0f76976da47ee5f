"""Making an archive: stores -> the indexes of their patients and recordings, or additions to them.

Knows nothing about the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import torch

from clocs.checkpoint import Checkpoint
from clocs.errors import CheckpointError, SettingError, StoreError
from clocs.patients.archive import ENCODER, INDEXED, archive_checkpoint, open_index
from clocs.patients.embedding import embed_levels, frame_of
from clocs.patients.embeddings import Embeddings, joined
from clocs.patients.engines import KindOrAuto
from clocs.patients.index import PatientIndex
from clocs.patients.index_folder import MANIFEST
from clocs.patients.rows import Level
from clocs.store import Store


@dataclass(frozen=True)
class Indexed:
    """What indexing did.

    Attributes:
        added: Vectors added, by level.
        total: Vectors that can be found, by level.
        kind: How each level is searched.
        dead: (dataset, patient, recording) of patients without any direction; they have no row.
        dead_views: Frames × leads with a vector of zeros.
        problems: (name, sentence) of what could not be embedded.
    """

    added: dict[str, int]
    total: dict[str, int]
    kind: dict[str, str]
    dead: tuple[tuple[str, str, str], ...]
    dead_views: int
    problems: tuple[tuple[str, str], ...]


def make_archive(
    checkpoint: Checkpoint,
    stores: Sequence[Store],
    folder: Path,
    *,
    add: bool = False,
    replace: bool = False,
    kind: KindOrAuto = "auto",
    frame: float | None = None,
    leads: Sequence[str] | None = None,
    split_seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Indexed:
    """Index all patients and recordings of stores, or add them to an archive.

    All stores are cut into one frame, whatever their own is: their patients are compared with each
    other, and with files.

    Args:
        checkpoint: The encoder.
        stores: Prepared recordings.
        folder: Of the archive.
        add: To an archive that is there.
        replace: Patients that are there already, instead of refusing them.
        kind: 'auto', 'exact', 'hnsw' or 'ivf'; of a new archive.
        frame: In seconds; the checkpoint's by default, the archive's own where it is added to.
        leads: By name; see `embed_store`.
        split_seed: Of the split by patient.
        device: Where to encode.
        progress: Called with (recordings done, recordings in all), store by store.
    """
    complete = all((folder / level / MANIFEST).is_file() for level in INDEXED)
    if add:
        if not complete:
            raise StoreError(f"{folder} is no index that could be added to; make it without --add")
        own = archive_checkpoint(folder)
        if own.fingerprint != checkpoint.fingerprint:
            raise CheckpointError(
                f"{folder} was made by another encoder ({own.card.method}, seed {own.card.seed}): "
                "vectors of two encoders cannot be compared; use that one, or make a new index"
            )
        there = open_index(folder).frame
        if frame not in (None, there):
            raise SettingError(
                f"{folder} is made of frames of {there:g} s, which vectors of other frames "
                "cannot be compared with; leave out --frame"
            )
        frame = there
    elif complete:
        raise SettingError(f"{folder} is an index already; add to it with --add, or give another")
    parts: dict[Level, list[Embeddings]] = {level: [] for level in INDEXED}
    for store in stores:
        made = embed_levels(
            checkpoint,
            store,
            levels=INDEXED,
            spec=frame_of(checkpoint, frame),
            leads=leads,
            split_seed=split_seed,
            device=device,
            progress=progress,
        )
        for level in INDEXED:
            parts[level].append(made[level])
    found = {level: joined(parts[level]) for level in INDEXED}
    if not add:
        checkpoint.save(folder / ENCODER)
    indexes, added = {}, {}
    opened = {level: PatientIndex.load(folder / level) for level in INDEXED} if add else {}
    if add and not replace:
        found = _not_there(opened, found)
    for level, embeddings in found.items():
        # An interrupted first run leaves one level: it is made again.
        if add:
            indexes[level], added[level] = (
                opened[level],
                opened[level].add(embeddings, replace=True),
            )
        else:
            (folder / level / MANIFEST).unlink(missing_ok=True)
            indexes[level] = PatientIndex.build(embeddings, kind)
            added[level] = len(indexes[level])
        indexes[level].save(folder / level)
    patients = found["patient"]
    return Indexed(
        added={level: added[level] for level in INDEXED},
        total={level: len(index) for level, index in indexes.items()},
        kind={level: index.kind for level, index in indexes.items()},
        dead=patients.dead,
        dead_views=patients.dead_views,
        problems=patients.problems,
    )


def _not_there(
    opened: dict[Level, PatientIndex], found: dict[Level, Embeddings]
) -> dict[Level, Embeddings]:
    """What is new at each level; SettingError where somebody stands at every level already.

    An addition that was interrupted between the levels leaves some at one of them alone: running it
    again completes them.
    """
    new = {level: found[level].where(opened[level].missing(found[level])) for level in found}
    unfinished = pl.concat([new[level].rows.select("dataset", "patient") for level in new]).unique()
    there = found["patient"].rows.join(unfinished, on=["dataset", "patient"], how="anti")
    if there.height:
        first = there.row(0, named=True)
        raise SettingError(
            f"{there.height} of {len(found['patient'])} patients stand in the index already, such "
            f"as {first['patient']} of {first['dataset']}; replace them with --replace"
        )
    return new

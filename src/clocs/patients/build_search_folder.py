"""Making an archive: stores -> the indexes of their patients and recordings, or additions to them.

Knows nothing about the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch

from clocs.errors import CheckpointError, SettingError, StoreError
from clocs.locks import LOCK, locked
from clocs.patients.embed import embed_levels, frame_of
from clocs.patients.embeddings import Embeddings, joined
from clocs.patients.faiss_engines import KindOrAuto, load_faiss, pick_kind
from clocs.patients.index import PatientIndex
from clocs.patients.rows import Level
from clocs.patients.search_folder import (
    ENCODER,
    INDEXED,
    archive_checkpoint,
    is_archive,
    open_index,
)
from clocs.store.manifest import MANIFEST
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint


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
        replace: Patients that are there already, with all their recordings, instead of refusing.
        kind: 'auto', 'exact', 'hnsw' or 'ivf'; of a new archive.
        frame: In seconds; the checkpoint's by default, the archive's own where it is added to.
        leads: By name; see `embed_store`.
        split_seed: Of the split by patient.
        device: Where to encode.
        progress: Called with (recordings done, recordings in all), store by store.
    """
    if not stores:
        raise SettingError("an index is made of stores; give at least one")
    if replace and not add:
        raise SettingError("--replace is about an index that is there; give it with --add")
    _expect_place(folder, add=add)
    fresh = not folder.exists()
    try:
        with locked(folder):
            opened = _opened(folder, checkpoint, kind, frame) if add else {}
            if pick_kind(kind, sum(map(len, stores))) != "exact":
                load_faiss()  # before hours of encoding, not after
            found = _embedded(
                checkpoint,
                stores,
                spec=frame_of(checkpoint, opened["patient"].frame if add else frame),
                leads=leads,
                split_seed=split_seed,
                device=device,
                progress=progress,
            )
            if add:
                added = _add(opened, found, replace=replace)
            else:
                opened = {level: PatientIndex.build(found[level], kind) for level in INDEXED}
                added = {level: len(opened[level]) for level in INDEXED}
                checkpoint.save(folder / ENCODER)
            for level, index in opened.items():
                if not add:  # what an interrupted first run has left
                    (folder / level / MANIFEST).unlink(missing_ok=True)
                index.save(folder / level)
    except BaseException:
        if fresh:
            with suppress(OSError):  # it holds something
                folder.rmdir()
        raise
    patients = found["patient"]
    return Indexed(
        added={level: added[level] for level in INDEXED},
        total={level: len(index) for level, index in opened.items()},
        kind={level: index.kind for level, index in opened.items()},
        dead=patients.dead,
        dead_views=patients.dead_views,
        problems=patients.problems,
    )


def _expect_place(folder: Path, *, add: bool) -> None:
    """SettingError where the folder is not one to write an archive into, or not the one meant."""
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file; give a folder for the index")
    complete = is_archive(folder)
    if add and not complete:
        raise StoreError(f"{folder} is no index that could be added to; make it without --add")
    if complete and not add:
        raise SettingError(f"{folder} is an index already; add to it with --add, or give another")
    own = {ENCODER.parts[0], *INDEXED, LOCK}
    others = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if others := [name for name in others if name not in own]:
        raise SettingError(
            f"{folder} holds other things, such as {others[0]}; give a folder of its own"
        )


def _opened(
    folder: Path, checkpoint: Checkpoint, kind: KindOrAuto, frame: float | None
) -> dict[Level, PatientIndex]:
    """The indexes to add to, of this encoder, kind and frame."""
    own = archive_checkpoint(folder)
    if own.fingerprint != checkpoint.fingerprint:
        raise CheckpointError(
            f"{folder} was made by another encoder ({own.card.method}, seed {own.card.seed}): "
            "vectors of two encoders cannot be compared; use that one, or make a new index"
        )
    opened = {level: open_index(folder, level) for level in INDEXED}
    first = opened["patient"]
    if kind not in ("auto", first.kind):
        raise SettingError(
            f"{folder} is searched by {first.kind}, which adding does not change; leave out --kind"
        )
    if frame not in (None, first.frame):
        raise SettingError(
            f"{folder} is made of frames of {first.frame:g} s, which vectors of other frames "
            "cannot be compared with; leave out --frame"
        )
    return opened


def _embedded(
    checkpoint: Checkpoint, stores: Sequence[Store], **options: Any
) -> dict[Level, Embeddings]:
    """All stores at each level, in one pass a store."""
    made = [embed_levels(checkpoint, store, levels=INDEXED, **options) for store in stores]
    return {level: joined([one[level] for one in made]) for level in INDEXED}


def _add(
    opened: dict[Level, PatientIndex], found: dict[Level, Embeddings], *, replace: bool
) -> dict[Level, int]:
    """Append what is new, or all of it in place of what is there; how much, at each level."""
    if replace:
        people = pl.concat(
            [
                found["patient"].rows.select("dataset", "patient"),
                pl.DataFrame(
                    [one[:2] for one in found["patient"].dead],
                    schema={"dataset": pl.String, "patient": pl.String},
                    orient="row",
                ),
            ]
        )
        for index in opened.values():
            index.retire(people)
    else:
        _expect_new(opened, found)
        found = {level: found[level].where(opened[level].missing(found[level])) for level in found}
    return {level: opened[level].add(found[level]) for level in INDEXED}


def _expect_new(opened: dict[Level, PatientIndex], found: dict[Level, Embeddings]) -> None:
    """SettingError where somebody stands in the archive already.

    An addition that was interrupted between the levels leaves patients without recordings: running
    it again completes them.
    """
    there = found["patient"].rows.select("dataset", "patient")
    for index in opened.values():
        there = there.join(index.people(), on=["dataset", "patient"], how="semi")
    if there.height:
        dataset, patient = there.row(0)
        raise SettingError(
            f"{there.height} of {len(found['patient'])} patients stand in the index already, such "
            f"as {patient} of {dataset}; replace them with --replace"
        )

"""`clocs.index` and `clocs.similar`: an index of stores, and the nearest in it.

Searching for a patient needs no encoder, and so no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import polars as pl

from clocs.errors import CheckpointError, SettingError, StoreError
from clocs.files import LOCK, locked, sha256_of
from clocs.patients.cohort import Cohort, Where, as_cohort, of_cohort
from clocs.patients.embeddings import Embeddings, joined
from clocs.patients.index import KindOrAuto, PatientIndex, pick_kind
from clocs.patients.index_files import ENCODER, INDEXED, is_index_folder, load_faiss
from clocs.patients.rows import Level
from clocs.store.manifest import MANIFEST
from clocs.store.store import Store, as_store, expect_different_stores

if TYPE_CHECKING:
    from clocs.formats.base import ReadOptions
    from clocs.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class Indexed:
    """What indexing did; the last four are those of the embeddings of patients."""

    total: dict[str, int]  # vectors, by level
    kind: dict[str, str]  # how each level is searched
    leads: tuple[str, ...] | None
    only_zeros: tuple[tuple[str, str, str], ...]
    zero_vectors: int
    problems: tuple[tuple[str, str], ...]


def index(
    checkpoint: Checkpoint | Path | str,
    *stores: Store | Path | str,
    out: Path | str,
    kind: KindOrAuto = "auto",
    frame: float | None = None,
    leads: Sequence[str] | None = None,
    cohort: Cohort | Path | str | Iterable[str] | None = None,
    device: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Indexed:
    """Build an index of patients and recordings.

    All stores are cut into one frame, whatever their own: their patients are compared with each
    other, and with files. Vectors that are known are not computed again.

    Args:
        checkpoint: A checkpoint, its file, a folder (then its first seed), or a name (`clocs
            info`).
        stores: Stores made by `clocs prepare`.
        out: Folder of the index.
        kind: How to search it; auto is exact up to a million vectors.
        frame: Seconds of a frame; the checkpoint's by default.
        leads: Leads by name; those that the encoder was trained on by default.
        cohort: Only these patients: a CSV table with a column patient, or one ID per line.
        device: 'cpu', 'cuda', …; the best available by default.
        progress: Called with (recordings done, recordings in total), store by store.
    """
    from clocs.patients.embed import embed_levels, store_leads
    from clocs.patients.encode import frame_of
    from clocs.training.checkpoint import load_checkpoint
    from clocs.training.signals import pick_device

    encoder, opened = load_checkpoint(checkpoint), [as_store(one) for one in stores]
    folder, where = Path(out), pick_device(device)
    if not opened:
        raise SettingError("an index is made of stores; give at least one")
    expect_different_stores(opened)
    chosen = of_cohort(cohort, opened)
    _expect_place(folder)
    fresh = not folder.exists()
    try:
        with locked(folder):
            if pick_kind(kind, sum(map(len, opened))) != "exact":
                load_faiss()  # before hours of encoding, not after
            spec = frame_of(encoder, frame)
            for store in opened:
                store_leads(encoder, store, leads)
            made = [
                embed_levels(
                    encoder,
                    store,
                    levels=INDEXED,
                    spec=spec,
                    leads=leads,
                    only=only,
                    device=where,
                    progress=progress,
                )
                for store, only in zip(opened, chosen, strict=True)
            ]
            found = {level: joined([one[level] for one in made]) for level in INDEXED}
            indexes = {level: PatientIndex.build(found[level], kind) for level in INDEXED}
            encoder.save(folder / ENCODER)
            for level, one in indexes.items():
                (folder / level / MANIFEST).unlink(missing_ok=True)  # of an interrupted run
                one.save(folder / level)
    except BaseException:
        if fresh:
            with suppress(OSError):  # it is not empty
                folder.rmdir()
        raise
    patients = found["patient"]
    return Indexed(
        total={level: len(one) for level, one in indexes.items()},
        kind={level: one.kind for level, one in indexes.items()},
        leads=patients.leads,
        only_zeros=patients.only_zeros,
        zero_vectors=patients.zero_vectors,
        problems=patients.problems,
    )


def _expect_place(folder: Path) -> None:
    """SettingError where the folder cannot take an index."""
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file; give a folder for the index as `out`")
    if is_index_folder(folder):
        raise SettingError(f"{folder} is an index already; give another `out`, or delete it")
    own = {ENCODER.parts[0], *INDEXED, LOCK}
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if others := sorted(found - own):
        raise SettingError(
            f"{folder} holds other things, such as {others[0]}; give an empty folder as `out`"
        )


def index_encoder(folder: Path) -> Checkpoint:
    """The encoder that made an index."""
    from clocs.training.checkpoint import load_checkpoint

    return load_checkpoint(_encoder_file(folder))


def _encoder_file(folder: Path) -> Path:
    if not (folder / ENCODER).is_file():
        raise StoreError(f"{folder} is not an index; make one with `clocs index`")
    return folder / ENCODER


def open_index(folder: Path, level: Level = "patient") -> PatientIndex:
    """One level of an index folder; its vectors are checked to come from its encoder."""
    if level not in INDEXED:
        raise SettingError(f"an index has the levels {' and '.join(INDEXED)}, not {level!r}")
    encoder = sha256_of(_encoder_file(folder))  # a checkpoint's fingerprint
    opened = PatientIndex.load(folder / level)
    if opened.encoder != encoder:
        raise CheckpointError(
            f"the encoder in {folder} is not the one that made its vectors; make the index again "
            "with `clocs index`"
        )
    return opened


def similar(
    index: Path | str,
    *,
    patient: str | None = None,
    file: Path | str | None = None,
    k: int = 10,
    level: Literal["patient", "recording"] = "patient",
    label: str | None = None,
    min_age: float | None = None,
    max_age: float | None = None,
    sex: Literal["female", "male"] | None = None,
    dataset: str | None = None,
    cohort: Cohort | Path | str | Iterable[str] | None = None,
    rate: float | None = None,
    unit: str | None = None,
    lead_names: Mapping[str, str] | None = None,
) -> pl.DataFrame:
    """Find the most similar patients or recordings of an index; the query itself is left out.

    Args:
        index: Folder made by `clocs index`.
        patient: The query: an ID in the index, or 'dataset:ID'.
        file: Or a recording's file, of any format, embedded by the index's own encoder.
        k: Number of neighbors.
        level: Whether to return patients or recordings.
        label: Return only those with this label.
        min_age: Lowest age in years; unknown ages do not pass.
        max_age: Highest age in years; unknown ages do not pass.
        sex: Return only this sex, male or female; unknown does not pass.
        dataset: Return only those of this dataset.
        cohort: Only these patients: a CSV table with a column patient, or one ID per line.
        rate: Sampling rate in Hz of a file that does not give it.
        unit: Unit of the samples of such a file, such as 'mV'; guessed by default.
        lead_names: Leads of the file by its unusual names, such as ECG1=II,ch2=V5.
    """
    if (patient is None) == (file is None):
        raise SettingError("the query is a patient or a file; give one of `patient` and `file`")
    folder = Path(index)
    opened = open_index(folder, level)
    group = None if cohort is None else as_cohort(cohort)
    where = Where(label, min_age, max_age, sex, dataset, cohort=group)
    where.expect_known(opened.rows)
    if file is not None:
        from clocs.formats.base import ReadOptions

        options = ReadOptions(rate=rate, unit=unit, lead_names=lead_names or {})
        query = _embedded(folder, opened, Path(file), options)
        # If the index holds the same recording, its patients are the query and are not returned.
        # Published data hold some recordings twice, under two patients.
        known = opened.rows if level == "recording" else open_index(folder, "recording").rows
        own = opened.rows_of(known.filter(pl.col("digest") == query.rows["digest"][0]))
        passing = where.mask(opened.rows)
        allowed = ~own if passing is None else passing & ~own
        return opened.table(opened.search(query, k, where=allowed))
    prefix, colon, rest = str(patient).partition(":")
    of = prefix if colon and prefix in opened.rows["dataset"] else None
    name = str(patient) if of is None else rest
    try:
        return opened.similar(name, k, where=where, dataset=of)
    except SettingError:
        if level == "patient" and name in open_index(folder, "recording").rows["recording"]:
            raise SettingError(
                f"{name!r} is a recording; search among recordings with 'recording' as `level`"
            ) from None
        raise


def _embedded(folder: Path, index: PatientIndex, file: Path, options: ReadOptions) -> Embeddings:
    """The recording of a file, by the encoder of an index."""
    from clocs.patients.embed import embed_recordings
    from clocs.patients.encode import frame_of
    from clocs.patients.sources import read_files

    encoder = index_encoder(folder)
    frame = frame_of(encoder, index.frame)
    names, recordings = read_files([file], options, frame)
    if len(names) > 1:
        raise SettingError(f"{file} holds {len(names)} recordings; give the file of one")
    embedded = embed_recordings(encoder, recordings, spec=frame, leads=index.leads)
    if embedded.problems:
        reason = embedded.problems[0][1]
        raise SettingError(reason if str(file) in reason else f"{file} cannot be used: {reason}")
    if not len(embedded):
        raise SettingError(f"{file} gives only zero vectors, which have no neighbors")
    return embedded

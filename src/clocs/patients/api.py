"""The verbs about patients, in Python: what the commands of `cli_patients` call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs.errors import SettingError
from clocs.store.store import as_store
from clocs.training.device import pick_device

if TYPE_CHECKING:
    import polars as pl

    from clocs.patients.build_search_folder import Indexed
    from clocs.patients.distance_report import DistanceReport
    from clocs.patients.distances import Metric
    from clocs.patients.embeddings import Embeddings
    from clocs.patients.filters import Where
    from clocs.patients.retrieval import Retrieval
    from clocs.patients.rows import Level
    from clocs.store.store import Store
    from clocs.training.checkpoint import Checkpoint


def embed(
    checkpoint: Checkpoint | Path | str,
    *sources: Store | Path | str,
    level: Level = "patient",
    leads: Sequence[str] | None = None,
    split: str | None = None,
    split_seed: int = 0,
    frame: float | None = None,
    rate: float = 500.0,
    device: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Embeddings:
    """Embed stores, or files: deterministic, in evaluation mode, without all signals in memory.

    Args:
        checkpoint: One, a file, or a folder (then its first seed).
        sources: Stores, which are cut into their own frames; or recordings' files (.hea, .dat,
            .mat, .csv, .ecg), folders and zips of them, cut into the checkpoint's. What cannot be
            embedded is named in `problems` and stops nothing else.
        level: What a vector stands for: 'frame', 'recording' or 'patient'.
        leads: By name; the checkpoint's by default.
        split: Of stores, only this part: 'train', 'validation' or 'test'.
        split_seed: Of the split by patient.
        frame: In seconds, for all sources alike: vectors of different frames cannot be compared.
        rate: Of CSV files, in Hz.
        device: 'cpu', 'cuda' …; the best at hand by default.
        progress: Called with (recordings done, recordings in all), store by store.
    """
    from clocs.formats.find import find_recordings, read_several
    from clocs.patients.embed import embed_recordings, embed_store, frame_of
    from clocs.patients.embeddings import joined
    from clocs.store.manifest import MANIFEST
    from clocs.store.store import Store
    from clocs.training.checkpoint import as_checkpoint

    if not sources:
        raise SettingError("there is nothing to embed; give at least one store or file")
    _expect_rate(rate)
    encoder = as_checkpoint(checkpoint)
    where, spec = pick_device(device), None if frame is None else frame_of(encoder, frame)
    made, files = [], []
    for source in sources:
        if not isinstance(source, Store) and not (Path(source) / MANIFEST).is_file():
            files.append(source)
            continue
        made.append(
            embed_store(
                encoder,
                as_store(source),
                level=level,
                spec=spec,
                leads=leads,
                split=split,
                split_seed=split_seed,
                device=where,
                progress=progress,
            )
        )
    if files and split is not None and not made:
        raise SettingError(f"files belong to no part; leave out --split {split}")
    if files:
        found = find_recordings(files)
        made.append(
            embed_recordings(
                encoder,
                read_several(found, rate),
                level=level,
                spec=spec,
                leads=leads,
                device=where,
                progress=lambda done: progress(done, len(found)),
            )
        )
    return joined(made)


def patient_distances(
    checkpoint: Checkpoint | Path | str,
    store: Store | Path | str,
    *,
    metric: Metric = "euclidean",
    split: str = "test",
    leads: Sequence[str] | None = None,
    split_seed: int = 0,
    device: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DistanceReport:
    """Distances between frames of one patient and of different patients, lead by lead.

    Args:
        checkpoint: One, a file, or a folder (then its first seed).
        store: Prepared recordings. Where most hold a single frame, their segments are compared.
        metric: 'euclidean', as in the paper, of embeddings as they are; or 'cosine'.
        split: 'test', 'validation', 'train' or 'all'.
        leads: By name; the checkpoint's by default.
        split_seed: Of the split by patient.
        device: 'cpu', 'cuda' …; the best at hand by default.
        progress: Called with (recordings done, recordings in all).
    """
    from clocs.patients.distance_report import report_distances
    from clocs.training.checkpoint import as_checkpoint

    return report_distances(
        as_checkpoint(checkpoint),
        as_store(store),
        metric=metric,
        split=split,
        leads=leads,
        split_seed=split_seed,
        device=pick_device(device),
        progress=progress,
    )


def index(
    checkpoint: Checkpoint | Path | str,
    *stores: Store | Path | str,
    out: Path | str,
    device: str | None = None,
    **options: Any,
) -> Indexed:
    """Index the patients and recordings of stores; the options of `archiving.make_archive`."""
    from clocs.patients.build_search_folder import make_archive
    from clocs.training.checkpoint import as_checkpoint

    return make_archive(
        as_checkpoint(checkpoint),
        [as_store(one) for one in stores],
        Path(out),
        device=pick_device(device),
        **options,
    )


def similar(
    index: Path | str,
    *,
    patient: str | None = None,
    file: Path | str | None = None,
    k: int = 10,
    level: Level = "patient",
    where: Where | None = None,
    leads: Sequence[str] | None = None,
    rate: float = 500.0,
) -> pl.DataFrame:
    """The most similar patients or recordings of an index, nearest first; never the one who asks.

    Args:
        index: Folder made by `index`.
        patient: Who asks: an ID of the index, or 'dataset:ID'.
        file: Or a recording's file, embedded by the index's own encoder.
        k: How many.
        level: 'patient' or 'recording'.
        where: Conditions on whom to return.
        leads: Of the file, by name.
        rate: Of a CSV file, in Hz.
    """
    from clocs.patients.search_folder import similar_to_file, similar_to_patient

    _expect_rate(rate)
    if (patient is None) == (file is None):
        raise SettingError("ask for a patient or for a file: give one of --patient and --file")
    if patient is not None:
        return similar_to_patient(Path(index), patient, k=k, level=level, where=where)
    return similar_to_file(
        Path(index), Path(str(file)), k=k, level=level, where=where, leads=leads, rate=rate
    )


def retrieval(
    checkpoints: Sequence[Checkpoint | Path | str],
    store: Store | Path | str,
    *,
    device: str | None = None,
    **options: Any,
) -> list[Retrieval]:
    """Scores of the search on unseen patients; the options of `retrieval.score_retrieval`."""
    from clocs.patients.retrieval import score_retrieval
    from clocs.training.checkpoint import as_checkpoints

    encoders = [encoder for one in checkpoints for encoder in as_checkpoints(one)]
    return score_retrieval(encoders, as_store(store), device=pick_device(device), **options)


def _expect_rate(rate: float) -> None:
    if not 0 < rate < math.inf:
        raise SettingError(
            f"--rate is {rate:g}; give the samples a second of CSV files, such as 500"
        )

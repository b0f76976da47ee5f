"""`clocs.embed`: stores and files -> embeddings of frames, recordings or patients."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clocs.errors import ClocsWarning, SettingError
from clocs.patients.embed_files import embed_recordings, read_files
from clocs.patients.embed_store import embed_store, expect_different_stores
from clocs.patients.embeddings import Embeddings, joined
from clocs.patients.encode import frame_of
from clocs.patients.rows import Level
from clocs.store.manifest import MANIFEST
from clocs.store.store import Store, as_store
from clocs.training.checkpoint import Checkpoint, as_checkpoint
from clocs.training.device import pick_device


def embed(
    checkpoint: Checkpoint | Path | str,
    *sources: Store | Path | str,
    level: Level = "patient",
    leads: Sequence[str] | None = None,
    split: str | None = None,
    split_seed: int = 0,
    frame: float | None = None,
    rate: float | None = None,
    unit: str | None = None,
    patients: Mapping[str, str] | Path | str | None = None,
    device: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Embeddings:
    """Embed stores or files: deterministic, in evaluation mode, without all signals in memory.

    Args:
        checkpoint: A checkpoint, its file, or a folder (then its first seed).
        sources: Stores, which are cut into their own frames; or recordings' files (.hea, .dat,
            .mat, .csv, .ecg), folders and zips, cut into the checkpoint's frame. A file that cannot
            be embedded is listed in `problems` and does not stop the others.
        level: What a vector represents: 'frame', 'recording' or 'patient'.
        leads: Leads by name; those that the encoder was trained on by default.
        split: Only this part of stores: 'train', 'validation' or 'test'.
        split_seed: Random seed for the patient split.
        frame: Seconds of a frame, for all sources: vectors of different frames are not comparable.
        rate: Sampling rate in Hz of files that do not give it (.csv); see `clocs.read`.
        unit: Unit of the samples of such files, such as 'mV'; µV by default.
        patients: The patient of each file, as a mapping or as a CSV or parquet table with the
            columns `file` and `patient`; without it, each file counts as one patient.
        device: 'cpu', 'cuda', …; the best available by default.
        progress: Called with (recordings done, recordings in total), store by store.
    """
    stores, files = _sorted(sources)
    if patients is not None and not files:
        raise SettingError("`patients` is for files, and stores know theirs; leave it out")
    if split is not None and not stores:
        raise SettingError("files belong to no split; leave out `split`")
    expect_different_stores(stores)
    encoder, where = as_checkpoint(checkpoint), pick_device(device)
    spec = None if frame is None else frame_of(encoder, frame)
    total, recordings = read_files(files, rate=rate, unit=unit, patients=patients)
    if files and level == "patient" and patients is None:
        warnings.warn(
            "each file counts as one patient, named after the file; give a table with the columns "
            "file and patient as `patients` where a patient has several",
            ClocsWarning,
            stacklevel=2,
        )
    made = [
        embed_store(
            encoder,
            store,
            level=level,
            spec=spec,
            leads=leads,
            split=split,
            split_seed=split_seed,
            device=where,
            progress=progress,
        )
        for store in stores
    ]
    if files:
        made.append(
            embed_recordings(
                encoder,
                recordings,
                level=level,
                spec=spec,
                leads=leads,
                device=where,
                progress=lambda done: progress(done, total),
            )
        )
    return joined(made)


def _sorted(sources: Sequence[object]) -> tuple[list[Store], list[Path]]:
    """Stores, and paths of everything else."""
    if not sources:
        raise SettingError("there is nothing to embed; give at least one store or file")
    stores, files = [], []
    for source in sources:
        if not isinstance(source, Store | str | os.PathLike):
            raise SettingError(
                "`sources` are stores, or the paths of files, folders and zips, not "
                f"{type(source).__name__}; save a signal as a file (.csv, .hea) first"
            )
        if isinstance(source, Store) or (Path(source) / MANIFEST).is_file():
            stores.append(as_store(source if isinstance(source, Store) else Path(source)))
        else:
            files.append(Path(source))
    return stores, files

"""`clocs.from_arrays`: arrays in memory -> a store, which every verb takes."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from clocs.datasets.arrays import OnePerRecording, check_arrays
from clocs.errors import ClocsWarning, SettingError, StoreError
from clocs.files import writing
from clocs.limits import default_processes
from clocs.recording import FrameSpec
from clocs.store.store import Store
from clocs.store.workers import ThreadWorkers


def from_arrays(
    X: Any,
    patients: OnePerRecording,
    *,
    rate: float,
    leads: Sequence[str] | str,
    labels: Any = None,
    classes: Sequence[str] | None = None,
    ids: OnePerRecording | None = None,
    unit: str = "mV",
    ages: OnePerRecording | None = None,
    sexes: OnePerRecording | None = None,
    taken: OnePerRecording | None = None,
    folds: OnePerRecording | None = None,
    name: str = "arrays",
    frame: FrameSpec | float | None = None,
    out: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Store:
    """A store of arrays: `clocs.pretrain`, `embed`, `evaluate`, `index` … take it as any other.

    The samples are written, compressed and as 16-bit integers, to a temporary folder that lives as
    long as the store that is returned, or to `out`. `X` is read one recording at a time and not
    copied as a whole; arrays that are mapped from a file, or an HDF5 dataset, stay on disk.

    A value that is not finite is a gap: it costs the frames that it touches, not the recording. A
    recording without any value, or with values that no ECG has, is in the store's `quarantine`,
    and a warning says so.

    Args:
        X: (n, leads, samples), or a list of (leads, samples) of different lengths, floating point
            or integers; of a single lead also (n, samples).
        patients: (n,) the patient of each recording, as text or numbers: the unit of splitting.
        rate: Sampling rate in Hz.
        leads: Names of the leads, in the order of `X`.
        labels: For each recording a name, a list of names, or None where unknown; or an
            (n, classes) matrix of 0 and 1, where a row of zeros means unknown. Without it nothing
            is labeled.
        classes: All label names, in order; those that occur, sorted, by default. A matrix needs
            them, unless it is a table with column names.
        ids: (n,) distinct names of the recordings; their numbers from 0 by default.
        unit: Of `X`: 'mV', 'µV', 'V' …, or 'adu' where it is unknown.
        ages: (n,) in years, None where unknown.
        sexes: (n,) 'male', 'female' or None.
        taken: (n,) when each was recorded: dates, or text as in ISO 8601; None where unknown.
        folds: (n,) parts of a split of your own: 'train', 'validation' and 'test', or numbers, of
            which the last is tested on; None where there is none. Patients are split by hash
            without it.
        name: Of the dataset. Patients of the same name in two stores of one dataset are the same
            patient, also for the guard against testing on patients of the training.
        frame: Seconds of a frame, or a `clocs.FrameSpec`; 5 s by default, or half of the longest
            recording where that is less.
        out: A folder to keep the store in; `clocs.open_store` opens it again.
        progress: Called with (recordings done, recordings in total).
    """
    dataset = check_arrays(
        X,
        patients,
        rate=rate,
        leads=leads,
        labels=labels,
        classes=classes,
        ids=ids,
        unit=unit,
        ages=ages,
        sexes=sexes,
        taken=taken,
        folds=folds,
        name=name,
        frame=frame,
        fingerprint=out is not None,
    )
    from clocs.store.assembly import assemble

    if out is None:
        with writing(tempfile.gettempdir()):
            folder = Path(tempfile.mkdtemp(prefix="clocs-arrays-"))
    else:
        folder = Path(out)
    try:
        with closing(ThreadWorkers(dataset, default_processes())) as workers:
            store = assemble(dataset, folder, workers, progress)
    except BaseException as error:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, StoreError) and out is None:
            raise SettingError(f"{error} (`unit`, `rate` and the values of `X`)") from None
        raise
    if out is None:
        weakref.finalize(store, _remove, folder, os.getpid())
    if store.manifest.quarantined:
        first = store.quarantine.row(0, named=True)
        warnings.warn(
            f"{store.manifest.quarantined} of {len(dataset.ids)} recordings cannot be used and are "
            f"left out, such as {first['id']} ({first['reason']}: {first['detail']}); see the "
            "store's `quarantine`",
            ClocsWarning,
            stacklevel=2,
        )
    return store


def _remove(folder: Path, process: int) -> None:
    """Delete a temporary store, but not from a copy of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)

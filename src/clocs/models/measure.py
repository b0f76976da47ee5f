"""`clocs.measure`: waves, intervals, axes and amplitudes of a recording; tables of many."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from clocs._version import __version__
from clocs.errors import ClocsError, SettingError, UnusableError
from clocs.files import prefetch, private_folder, sha256_of, write_atomic
from clocs.formats.base import ReadOptions
from clocs.formats.read import Found, find_recordings, read_several, without_folders
from clocs.measurements.check import check
from clocs.measurements.intervals import UNITS, Beats, Measure, find_beats, measure_beats
from clocs.measurements.quality import SignalQuality, signal_quality
from clocs.measurements.waves import Waves
from clocs.models.delineator import WEIGHTS, delineate
from clocs.models.fhir import SUFFIX, fhir_bundle
from clocs.patients.embeddings import TABLE_MARK, check_table
from clocs.patients.rows import write_rows
from clocs.patients.sources import stores_and_files
from clocs.recording import Recording, check_varies, notes_of
from clocs.store.kept import KeptTable
from clocs.store.store import Store

Progress = Callable[[int, int], None]
TABLES = (".parquet", ".csv", ".json")
_SHORTEST = 2.0  # s
_AHEAD = 8  # recordings
_STEP = 500  # recordings of a store after which they are kept
_NAMES = ("dataset", "file", "patient", "recording")
_ABOUT: dict[str, type[pl.DataType]] = dict.fromkeys(_NAMES, pl.String)
_ROW = {**_ABOUT, "seconds": pl.Float64, "quality": pl.Float64, "quality_reason": pl.String}
_ROW |= {"beats": pl.Int64}
_WAVE = {**_ABOUT, "lead": pl.String, "wave": pl.String}
_WAVE |= dict.fromkeys(("onset", "peak", "offset"), pl.Float64)


@dataclass(frozen=True)
class Measurements:
    """What was measured of a recording.

    Attributes:
        waves: Of each lead, onsets, peaks and offsets of P, QRS and T.
        beats: The beats, each with its waves in all leads.
        values: Heart rate, intervals, axes and amplitudes by the names of `UNITS`, each with its
            interval or the reason why there is none.
        notes: What was assumed of the file, and what may be wrong with electrodes and units.
    """

    waves: Mapping[str, Waves]
    beats: Beats
    values: Mapping[str, Measure]
    notes: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """Columns of a table: NAME, NAME_low, NAME_high and NAME_reason for each of `UNITS`."""
        made: dict[str, Any] = {"beats": len(self.beats.marks), "notes": self.notes}
        for name, one in self.values.items():
            parts = asdict(one)
            made[name] = parts.pop("value")
            made |= {f"{name}_{part}": value for part, value in parts.items()}
        return made

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON; times in s."""
        leads = {
            lead: {name: getattr(own, name).round(4).tolist() for name in ("p", "qrs", "t")}
            for lead, own in self.waves.items()
        }
        values = {name: {**asdict(one), "unit": UNITS[name]} for name, one in self.values.items()}
        times = self.beats.times.round(4).tolist() if len(self.beats.marks) else []
        return {"beats": times, "values": values, "waves": leads, "notes": [*self.notes]}


def measure(recording: Recording) -> Measurements:
    """Mark P, QRS and T in every lead, and measure heart rate, intervals, axes and amplitudes.

    Args:
        recording: As `clocs.read` gives it, of 2 s at least, with any leads. Of aVF and the other
            limb leads, those that follow from I and II are measured, too.

    Raises:
        UnusableError: It is too short, or flat in every lead.
    """
    if recording.seconds < _SHORTEST:
        detail = f"{recording.id} lasts {recording.seconds:.2f} s; {_SHORTEST:g} s are needed"
        raise UnusableError("too short", detail)
    check_varies(recording)
    whole = recording.with_limb_leads()
    waves = delineate(whole)
    beats = find_beats(waves)
    values = measure_beats(beats, whole.signal, whole.rate, in_mv=whole.unit == "mV")
    notes = (*notes_of(recording.extra), *(one.sentence for one in check(recording)))
    return Measurements(waves, beats, values, notes)


@dataclass(frozen=True)
class Measured:
    """A recording of a store or file, and what was measured of it or why nothing was.

    Attributes:
        about: The first columns of the table.
        recording: None where it cannot be read.
        found: What was measured.
        quality: How well it can be read.
    """

    about: dict[str, Any]
    recording: Recording | None
    found: Measurements | ClocsError
    quality: SignalQuality | None = None

    def row(self) -> dict[str, Any]:
        """Of the table of recordings."""
        made = dict(self.about)
        if self.quality is not None:
            made |= {"quality": self.quality.value, "quality_reason": self.quality.reason}
        if isinstance(self.found, ClocsError):
            return made | {"problem": str(self.found)}
        return made | self.found.row()

    @property
    def values(self) -> Mapping[str, Measure]:
        """By the names of `UNITS`."""
        if isinstance(self.found, ClocsError):
            return dict.fromkeys(UNITS, Measure(reason=str(self.found)))
        return self.found.values


def measure_table(
    *sources: Store | Path | str,
    out: Path | str | None = None,
    waves: bool = False,
    recording: str | None = None,
    rate: float | None = None,
    unit: str | None = None,
    lead_names: Mapping[str, str] | None = None,
    progress: Progress = lambda done, total: None,
) -> pl.DataFrame:
    """Mark P, QRS and T in recordings, and measure heart rate, intervals, axes and amplitudes.

    What is measured of a store is kept beside it, where the explorer reads it: the next call reads
    it, too, and a call that was stopped goes on.

    Args:
        sources: Stores; or recordings' files of any format, folders and zips.
        out: Table to write, .parquet, .csv or .json; or .fhir.json for FHIR R4 Observations, with
            the ECGs themselves; on the command line also a drawing of one recording on ECG paper
            with the marks, .png, .svg or .pdf.
        waves: One row per wave, with its lead, onset, peak and offset in seconds, instead of one
            row per recording.
        recording: Only the recording of this ID, of stores and files that hold several.
        rate: Sampling rate in Hz of files that do not give it.
        unit: Unit of the samples of such files, such as 'mV'.
        lead_names: Leads of files by their unusual names, such as ECG1=II,ch2=V5; in Python a
            mapping.
        progress: Called with (recordings done, recordings in total), source by source.

    Returns:
        One row per recording: its quality from 0 to 1, and why it is low; of each measurement the
        median of beats, the ends of its 95 % interval, and a reason where there is none; `notes` on
        what was assumed and what may be wrong; `problem` says why nothing was measured.
    """
    if out is not None:
        check_table(Path(out), (*TABLES, SUFFIX), TABLE_MARK)
    options = ReadOptions(rate=rate, unit=unit, lead_names=lead_names or {})
    bundle = Path(out) if out is not None and str(out).endswith(SUFFIX) else None
    if bundle and waves:
        raise SettingError("FHIR Observations are of whole recordings; leave out `waves`")
    left: Sequence[Store | Path | str] = sources
    tables: list[pl.DataFrame] = []
    if not waves and recording is None and bundle is None:
        stores, files = stores_and_files(sources, split=None, cohort=None)
        left = list(files)
        tables = [measured_store(store, progress) for store, _ in stores]
    made: list[dict[str, Any]] = []
    with fhir_bundle(bundle) if bundle else nullcontext() as add:
        for one in measure_each(left, options, recording, progress) if left else ():
            if waves and isinstance(one.found, Measurements):
                made += [one.about | row for row in _wave_rows(one.found)]
            else:
                made.append(one.row())
            if add:
                add(made[-1], one.recording, one.values)
    table = pl.concat([*tables, _table(made, waves=waves)])
    if out is not None and bundle is None:
        _write(table, Path(out))
    return table


def kept_measurements(store: Store) -> KeptTable:
    """Where the measurements of a store's first recordings are kept, or of all of them."""
    return KeptTable(store, "measurements", __version__, sha256_of(WEIGHTS), "with notes")


def measured_store(store: Store, progress: Progress = lambda done, total: None) -> pl.DataFrame:
    """The table of a store's recordings, each measured once."""
    kept = kept_measurements(store)
    table = kept.read()
    table = _table([], waves=False) if table is None else table
    while (start := table.height) < len(store):
        rows = np.arange(start, min(start + _STEP, len(store)))
        made = []
        for one in prefetch(measured, _of_store(store, store.iter_recordings(rows)), _AHEAD):
            made.append(one.row())
            progress(start + len(made), len(store))
        table = pl.concat([table, _table(made, waves=False)])
        kept.write(table)
    return table


def measure_each(
    sources: Sequence[Store | Path | str],
    options: ReadOptions,
    only: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Iterator[Measured]:
    """Every recording of stores and files, or those of one ID, measured ahead in threads."""
    stores, files = stores_and_files(sources, split=None, cohort=None)
    found = find_recordings(files, options) if files else []
    total = sum(len(store) for store, _ in stores) + len(found) if only is None else 1
    items = (one for part in (_of_stores(stores, only), _of_files(found, options)) for one in part)
    wanted = (one for one in items if only in (None, one[0].get("recording"), one[0].get("file")))
    done = 0
    for done, one in enumerate(prefetch(measured, wanted, _AHEAD), start=1):
        progress(done, total)
        yield one
    if only is not None and not done:
        raise SettingError(f"there is no recording {only!r} in what was given")


def _of_stores(
    stores: Iterable[tuple[Store, object]], only: str | None
) -> Iterator[tuple[dict[str, Any], Recording]]:
    for store, _ in stores:
        rows = None if only is None else (store.table["id"] == only).arg_true().to_numpy()
        yield from _of_store(store, store.iter_recordings(rows))


def _of_store(
    store: Store, each: Iterable[Recording]
) -> Iterator[tuple[dict[str, Any], Recording]]:
    for one in each:
        about = {"dataset": store.manifest.dataset, "patient": one.patient}
        yield about | {"recording": one.id, "seconds": one.seconds}, one


def _of_files(
    found: Sequence[Found | tuple[str, ClocsError]], options: ReadOptions
) -> Iterator[tuple[dict[str, Any], Recording | ClocsError]]:
    names = without_folders([one.name if isinstance(one, Found) else one[0] for one in found])
    for name, read in zip(names, read_several(found, options) if found else (), strict=True):
        if isinstance(read, Recording):
            yield {"file": name, "recording": read.id, "seconds": read.seconds}, read
        else:
            yield {"file": name}, ClocsError(str(read[1]).replace(read[0], name))


def measured(item: tuple[dict[str, Any], Recording | ClocsError]) -> Measured:
    """A recording by its first columns, measured; for threads that are not the caller's."""
    about, read = item
    if not isinstance(read, Recording):
        return Measured(about, None, read)
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)  # of this thread: there is one per core
    quality = signal_quality(read)
    try:
        return Measured(about, read, measure(read), quality)
    except ClocsError as error:
        return Measured(about, read, error, quality)


def _wave_rows(found: Measurements) -> Iterator[dict[str, Any]]:
    for lead, own in found.waves.items():
        rows = [
            (wave.upper(), *times)
            for wave in ("p", "qrs", "t")
            for times in getattr(own, wave).round(4).tolist()
        ]
        for wave, onset, peak, offset in sorted(rows, key=lambda row: row[1]):
            yield {"lead": lead, "wave": wave, "onset": onset, "peak": peak, "offset": offset}


def _table(made: list[dict[str, Any]], *, waves: bool) -> pl.DataFrame:
    schema: dict[str, Any] = dict(_WAVE if waves else _ROW)
    if not waves:
        for name in UNITS:
            schema |= dict.fromkeys((name, f"{name}_low", f"{name}_high"), pl.Float64)
            schema[f"{name}_reason"] = pl.String
        schema["notes"] = pl.List(pl.String)
    return pl.DataFrame(made, {**schema, "problem": pl.String})


def _write(table: pl.DataFrame, path: Path) -> None:
    private_folder(path.parent)
    if path.suffix == ".json":
        write_atomic(path, json.dumps(table.to_dicts(), allow_nan=False).encode())
    else:
        write_rows(table, path)

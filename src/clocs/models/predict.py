"""`clocs.predict`: stores and files -> one row per recording, or per stretch of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.formats.read import options_of
from clocs.frames.positions import frame_count
from clocs.frames.splits import PARTS, split_patients
from clocs.models.classifier import Classifier, as_classifier
from clocs.models.prediction_table import check_table, prediction_table, write_table
from clocs.models.row_means import Item, Means, mean_vectors
from clocs.patients.cohort import Cohort, of_cohort
from clocs.patients.embed import store_windows, stores_and_files
from clocs.patients.embed_files import Piece, ReadFile, file_windows, read_files
from clocs.patients.encode import known_leads, leads_of
from clocs.patients.reading import READ_COLUMNS, Reading
from clocs.recording import Recording, with_derived
from clocs.store.store import Store, expect_different_stores
from clocs.training.ranks import pick_device

Progress = Callable[[int, int], None]


def predict(
    model: Classifier | Path | str,
    *sources: Store | Path | str,
    out: Path | str | None = None,
    over_time: float | None = None,
    leads: Sequence[str] | None = None,
    split: str | None = None,
    split_seed: int = 0,
    rate: float | None = None,
    unit: str | None = None,
    lead_names: Mapping[str, str] | None = None,
    patients: Mapping[str, str] | Path | str | None = None,
    follow_links: bool = False,
    cohort: Cohort | Path | str | Iterable[str] | None = None,
    device: str | None = None,
    progress: Progress = lambda done, total: None,
) -> pl.DataFrame:
    """Predict the labels of recordings, and abstain where the classifier cannot know.

    Args:
        model: A classifier made by `clocs finetune`, or the name of a shipped one.
        sources: Stores; or recordings' files of any format, folders and zips. All are resampled,
            cut and normalized as the classifier's card says.
        out: Table to write, .parquet or .csv.
        over_time: Seconds of the stretches that long recordings are predicted in, in whole frames;
            0 for a single frame each. Without it, one prediction for the whole recording.
        leads: Leads by name; those that the classifier was trained on by default. A recording is
            predicted from those of them that it has.
        split: Only this part of stores: 'train', 'validation' or 'test'.
        split_seed: Random seed for the patient split.
        rate: Sampling rate in Hz of files that do not give it.
        unit: Unit of the samples of such files, such as 'mV'.
        lead_names: Leads of files by their unusual names, such as ECG1=II,ch2=V5; in Python a
            mapping.
        patients: Patients of the files: a CSV or parquet table with the columns file and patient;
            in Python also a mapping. Without it, each file counts as one patient. Files are matched
            by path or by name, with or without their suffix.
        follow_links: Read also what links in folders lead to outside of them.
        cohort: Only these patients of stores: a CSV table with a column patient, or one ID per
            line; in Python also IDs (or 'dataset:ID'). The explorer saves such files.
        device: 'cpu', 'cuda', …; the best available by default.
        progress: Called with (recordings done, recordings in total), source by source.

    Returns:
        One row per recording, or per stretch of it. `predicted` is null where `abstained` or
        `problem` says why; probabilities are given wherever there is a signal.
    """
    stores, files = stores_and_files(sources)
    expect_different_stores(stores)
    if patients is not None and not files:
        raise SettingError("`patients` is for files, and stores know theirs; leave it out")
    if split is not None and not stores:
        raise SettingError("files belong to no split; leave out `split`")
    chosen = of_cohort(cohort, stores, files)
    if over_time is not None and not 0 <= over_time < math.inf:
        raise SettingError(f"`over_time` is {over_time:g}; give the seconds of a stretch, or 0")
    if out is not None:
        check_table(Path(out))
    classifier = as_classifier(model)
    options = options_of(rate=rate, unit=unit, lead_names=lead_names)
    how = _How(classifier, leads, pick_device(device), _frames_together(classifier, over_time))
    means = [
        how.means(_of_store(how, one, split, only, split_seed, progress))
        for one, only in zip(stores, chosen, strict=True)
    ]
    if files:
        frame = classifier.encoders[0].card.frame
        names, recordings = read_files(
            files, options, frame, patients=patients, follow_links=follow_links
        )
        means.append(how.means(_of_files(how, names, recordings, progress)))
    made = prediction_table(classifier, means, over_time=over_time is not None)
    if out is not None:
        write_table(made, Path(out), classifier)
    return made


def predict_recordings(classifier: Classifier, recordings: Sequence[Recording]) -> pl.DataFrame:
    """The table of `predict`, for recordings that are at hand."""
    how = _How(classifier, None, torch.device("cpu"), None)
    names = [one.id for one in recordings]
    items = _of_files(how, names, recordings, lambda done, total: None)
    return prediction_table(classifier, [how.means(items)], over_time=False)


@dataclass(frozen=True)
class _How:
    classifier: Classifier
    leads: Sequence[str] | None
    device: torch.device
    together: int | None  # frames of a stretch; None for the whole recording

    def means(self, items: Iterator[Item]) -> Means:
        return mean_vectors(self.classifier.encoders, items, self.together, self.device)


def _frames_together(classifier: Classifier, over_time: float | None) -> int | None:
    """Frames of a stretch."""
    seconds = classifier.encoders[0].card.frame.seconds
    return None if over_time is None else max(1, math.floor(over_time / seconds * (1 + 1e-9)))


def _of_store(
    how: _How,
    store: Store,
    split: str | None,
    only: NDArray[np.bool_] | None,
    split_seed: int,
    progress: Progress,
) -> Iterator[Item]:
    """Recordings of a store, and then those without a frame."""
    first = how.classifier.encoders[0]
    frame, table = first.card.frame, store.table
    found = store_windows(
        first, store, spec=frame, leads=how.leads, split=split, only=only, split_seed=split_seed
    )
    counts = frame_count(table["samples"].to_numpy(), table["rate"].to_numpy(), frame)

    def item(row: int) -> Item:
        one = table.row(row, named=True)
        return Item(
            dataset=store.manifest.dataset,
            file=None,
            patient=one["patient"],
            recording=one["id"],
            seconds=one["samples"] / one["rate"],
            frames=int(counts[row]),
        )

    readings = found.readings().select(READ_COLUMNS).iter_rows(named=True)
    for (i, windows, frames), read in zip(found.each(progress), readings, strict=True):
        whole = item(int(found.plan.rows[i]))
        yield replace(whole, windows=windows, frame_of=frames, reading=Reading.of(read))
    left = np.ones(len(table), np.bool_)
    left[found.plan.rows[found.chosen]] = False
    if only is not None:
        left &= only
    if split is not None:
        everyone = split_patients(store, split_seed=split_seed)
        left &= everyone.part[everyone.recording] == PARTS.index(split)
    for row in np.flatnonzero(left).tolist():
        own = set(with_derived(table["leads"][row])) & set(found.plan.leads)
        reason = (
            f"it has no frame of {frame.seconds:g} s with a signal"
            if own
            else f"it has none of the leads {', '.join(found.leads)}"
        )
        yield replace(item(row), problem=reason)


def _of_files(
    how: _How, names: list[str], recordings: Iterable[ReadFile], progress: Progress
) -> Iterator[Item]:
    first = how.classifier.encoders[0]
    frame, known = first.card.frame, known_leads(first)
    wanted, before = leads_of(first, how.leads), -1
    made = file_windows(recordings, frame, wanted, known, lambda done: progress(done, len(names)))
    for number, read, one in made:
        own = read.result if isinstance(read, Piece) else read
        item = Item(None, names[number], None, None, None, 0, continues=number == before)
        if isinstance(own, Recording):
            seconds = read.seconds if isinstance(read, Piece) else own.seconds
            item = replace(item, patient=own.patient, recording=own.id, seconds=seconds)
        before = number
        if isinstance(one, tuple):
            yield replace(item, problem=one[1])
        else:
            yield replace(
                item,
                frames=one.total,
                windows=one.windows,
                frame_of=one.frame_of(known),
                reading=one.reading(wanted),
            )

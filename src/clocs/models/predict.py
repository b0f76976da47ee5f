"""`clocs.predict`: stores and files -> one row per recording, or per stretch of it.

Windows are encoded in batches, whatever recording they are of; of a recording, or a stretch of it,
only sums are kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs._version import __version__
from clocs.errors import ClocsError, SettingError
from clocs.files import prefetch, private_folder
from clocs.formats.base import ReadOptions
from clocs.formats.read import find_recordings, read_several
from clocs.frames.signals import frame_count
from clocs.frames.splits import PARTS, split_patients
from clocs.measurements.check import Finding, doubt, examine
from clocs.models.classifier import (
    Classifier,
    as_classifier,
    probability_column,
    window_ecg_share,
)
from clocs.models.fhir import SUFFIX, fhir_bundle
from clocs.patients.cohort import Cohort
from clocs.patients.embed import store_windows
from clocs.patients.embeddings import TABLE_MARK, check_table
from clocs.patients.encode import (
    CutRecording,
    InputSpec,
    Windows,
    cut_each,
    encoded_by_all,
    joined_reading,
)
from clocs.patients.rows import READ_SCHEMA, write_rows
from clocs.patients.sources import Piece, ReadFile, file_windows, read_files, stores_and_files
from clocs.recording import Recording, with_derived
from clocs.sealed import own_hash
from clocs.store.store import Store
from clocs.training.card import LIMITS
from clocs.training.signals import pick_device

if TYPE_CHECKING:
    from clocs.store.kept import KeptTable

Progress = Callable[[int, int], None]
MODEL, HASH = "clocs.model", "clocs.model_sha256"  # in a parquet file's metadata
MEANINGS = "clocs.meanings"
_NAMES = ("dataset", "file", "patient", "recording")
_ABOUT: dict[str, type[pl.DataType]] = dict.fromkeys(_NAMES, pl.String)
_ABOUT |= {"seconds": pl.Float64}
_TIME = {"start": pl.Float64, "end": pl.Float64}
_AHEAD = 16  # recordings of stores examined before they are needed
_MOSTLY = 0.5  # of the time flat: that, and no noise, is why little is ECG
_NO_SIGNAL = "no signal: every lead is flat, missing or in a gap in all of its frames"


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
    cohort: Cohort | Path | str | Iterable[str] | None = None,
    correct: bool = False,
    device: str | None = None,
    progress: Progress = lambda done, total: None,
) -> pl.DataFrame:
    """Predict the labels of recordings, and abstain where the classifier cannot know.

    Args:
        model: A classifier made by `clocs finetune`, or the name of a shipped one.
        sources: Stores; or recordings' files of any format, folders and zips. All are resampled,
            cut and normalized as the classifier's card says. 'sample' is an ECG of the package.
        out: Table to write, .parquet or .csv; or .fhir.json for FHIR R4 Observations, with the
            ECGs themselves.
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
        cohort: Only these patients of stores: a CSV table with a column patient, or one ID per
            line; in Python also IDs (or 'dataset:ID'). The explorer saves such files.
        correct: Correct what is certainly wrong, and say so in the notes: swapped arms, an inverted
            lead, amplitudes that are a power of ten too large or small. Not in recordings of more
            than an hour.
        device: 'cpu', 'cuda', …; the best available by default.
        progress: Called with (recordings done, recordings in total), source by source.

    Returns:
        One row per recording, or per stretch of it; of a whole store, also kept beside it for
        `clocs.explore`. `predicted` is null where `abstained` or `problem` says why; probabilities
        are given wherever there is a signal.
    """
    stores, files = stores_and_files(sources, split=split, cohort=cohort)
    if over_time is not None and not 0 <= over_time < math.inf:
        raise SettingError(f"`over_time` is {over_time:g}; give the seconds of a stretch, or 0")
    if out is not None:
        check_table(Path(out), (".parquet", ".csv", SUFFIX), TABLE_MARK)
        if over_time is not None and str(out).endswith(SUFFIX):
            raise SettingError("FHIR Observations are of whole recordings; leave out `over_time`")
    classifier = as_classifier(model)
    options = ReadOptions(rate=rate, unit=unit, lead_names=lead_names or {})
    takes = InputSpec.from_checkpoint(classifier.encoders[0], None, leads)
    items = [
        _of_store(classifier, one, only, leads, split, split_seed, progress, correct)
        for one, only in stores
    ]
    if files:
        names, recordings = read_files(files, options, takes.frame)
        items.append(_of_files(takes, names, recordings, progress, correct))
    together = None
    if over_time is not None:
        together = max(1, math.floor(over_time / takes.frame.seconds * (1 + 1e-9)))
    made = mean_vectors(classifier, chain.from_iterable(items), together, pick_device(device))
    table = prediction_table(classifier, made, over_time=over_time is not None)
    whole = (over_time, leads, split, cohort) == (None,) * 4 and not correct
    if whole and len(stores) == 1 and not files:
        kept_predictions(stores[0][0], classifier).write(table)
    if out is not None and str(out).endswith(SUFFIX):
        from clocs.models.measure import measured  # with its network, for this alone

        found = _recordings(table, [one for one, _ in stores], files, options, correct)
        with fhir_bundle(Path(out), classifier) as add:
            for one in prefetch(measured, found, _AHEAD):
                add(one.about, one.recording, one.values)
    elif out is not None:
        _write_table(table, Path(out), classifier)
    return table


def kept_predictions(store: Store, classifier: Classifier) -> KeptTable:
    """Where the table of `predict` of a whole store is kept."""
    from clocs.store.kept import KeptTable  # not where files are predicted

    weights = hashlib.sha256()
    for tensors in (classifier.head, classifier.reference):
        for name in sorted(tensors):
            weights.update(tensors[name].cpu().contiguous().numpy().data)
    about = own_hash(classifier.card.to_dict()), weights.hexdigest(), __version__
    return KeptTable(
        store, "predictions", *about, *(one.fingerprint for one in classifier.encoders)
    )


def _recordings(
    table: pl.DataFrame,
    stores: Sequence[Store],
    files: Sequence[Path | str],
    options: ReadOptions,
    correct: bool,
) -> Iterator[tuple[dict[str, Any], Recording | ClocsError]]:
    """Rows of the table and their recordings, which are read again: few are in memory at a time."""
    by_name = {one.manifest.dataset: one for one in stores}
    read = read_several(find_recordings(files, options), options) if files else iter(())
    for row in table.iter_rows(named=True):
        own = by_name[row["dataset"]].recording(row["recording"]) if row["dataset"] else next(read)
        if isinstance(own, Recording) and not row["problem"]:
            yield row, examine(own, correct=correct)[0]
        else:
            yield row, ClocsError(row["problem"])


def predict_recordings(
    classifier: Classifier, recordings: Sequence[Recording], *, correct: bool = False
) -> pl.DataFrame:
    """The table of `predict`, for recordings that are at hand."""
    takes = InputSpec.from_checkpoint(classifier.encoders[0])
    names = [one.id for one in recordings]
    items = _of_files(takes, names, recordings, lambda done, total: None, correct)
    return prediction_table(classifier, mean_vectors(classifier, items), over_time=False)


@dataclass(frozen=True)
class Item:
    """A recording to be predicted, or a part of it, or why it cannot be.

    Attributes:
        about: The first columns of the table.
        key: Of the recording; parts of one recording follow each other.
        frames: Of the whole recording, with a signal or without.
        windows: Of this part.
        frame_of: (windows,) ascending.
        reading: How it was read, by the columns of `READ_SCHEMA`.
        findings: What may be wrong with its electrodes and units.
        problem: Why it cannot be predicted; then it has no windows.
    """

    about: dict[str, Any]
    key: object = None
    frames: int = 0
    windows: Windows | None = None
    frame_of: NDArray[np.int64] | None = None
    reading: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    problem: str | None = None


def _of_store(
    classifier: Classifier,
    store: Store,
    only: NDArray[np.bool_] | None,
    leads: Sequence[str] | None,
    split: str | None,
    split_seed: int,
    progress: Progress,
    correct: bool,
) -> Iterator[Item]:
    """Recordings of a store, and then those without a frame."""
    first = classifier.encoders[0]
    frame, table = first.card.frame, store.table
    found = store_windows(
        first, store, spec=frame, leads=leads, split=split, only=only, split_seed=split_seed
    )
    counts = frame_count(table["samples"].to_numpy(), table["rate"].to_numpy(), frame)

    def item(row: int) -> Item:
        one = table.row(row, named=True)
        about = {
            "dataset": store.manifest.dataset,
            "patient": one["patient"],
            "recording": one["id"],
            "seconds": one["samples"] / one["rate"],
        }
        return Item(about, (store.path, row), int(counts[row]))

    readings = found.readings().select(list(READ_SCHEMA)).iter_rows(named=True)
    rows = found.plan.rows[found.chosen]
    examined = prefetch(
        lambda one: (*examine(one, correct=correct), one), store.iter_recordings(rows), _AHEAD
    )
    each = zip(rows.tolist(), found.each(progress), readings, examined, strict=True)
    for row, (_, windows, frames), read, (recording, findings, given) in each:
        notes = {"notes": [*read["notes"], *(one.sentence for one in findings)]}
        one = replace(item(row), windows=windows, frame_of=frames, reading=read | notes)
        if recording is not given:  # corrected
            (made,) = cut_each([recording], found.spec)
            assert isinstance(made, CutRecording)  # it had windows before
            one = replace(one, windows=made.windows, frame_of=made.frame_of, reading=made.reading)
        yield replace(one, findings=tuple(findings))
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
            else f"it has none of the leads {', '.join(found.spec.leads)}"
        )
        yield replace(item(row), problem=reason)


def _of_files(
    takes: InputSpec,
    names: list[str],
    recordings: Iterable[ReadFile],
    progress: Progress,
    correct: bool = False,
) -> Iterator[Item]:
    made = file_windows(recordings, takes, lambda done: progress(done, len(names)), correct=correct)
    for number, read, one in made:
        own = read.result if isinstance(read, Piece) else read
        about: dict[str, Any] = {"file": names[number]}
        if isinstance(own, Recording):
            seconds = read.seconds if isinstance(read, Piece) else own.seconds
            about |= {"patient": own.patient, "recording": own.id, "seconds": seconds}
        if isinstance(one, tuple):
            yield Item(about, number, problem=one[1])
        else:
            whole = Item(about, number, one.frames, one.windows, one.frame_of, one.reading)
            yield replace(whole, findings=one.findings)


@dataclass(frozen=True)
class Means:
    """Recordings or stretches of them, and the vectors by which they are classified."""

    about: list[dict[str, Any]]  # columns of the table, with `rows` and `problem`
    measured: NDArray[np.float64]  # (3, n) ECG's share, share of time that is flat, leads' windows
    vectors: NDArray[np.float32]  # (members, n, dim); zero without a signal

    @property
    def there(self) -> NDArray[np.int64]:
        """Which have a signal."""
        return np.flatnonzero(self.measured[2] > 0)


def mean_vectors(
    classifier: Classifier,
    items: Iterable[Item],
    together: int | None = None,
    device: torch.device | str = "cpu",
) -> Means:
    """Encode the windows of all items by all members; of each item their mean, and maxima.

    Args:
        classifier: Its members encode.
        items: Recordings.
        together: Frames of a stretch; None for whole recordings.
        device: Where to compute.
    """
    first, maxima = classifier.encoders[0], classifier.encoders[0].maxima
    frame, shape = first.card.frame, (len(classifier.encoders), first.encoder.embedding_dim)
    about: list[dict[str, Any]] = []  # of each stretch, as the next three
    sums: list[NDArray[np.float64]] = []
    measured: list[NDArray[np.float64]] = []
    keys: list[object] = []
    begins: dict[object, int] = {}  # the first stretch of each recording
    readings: dict[object, dict[str, Any]] = {}
    waiting: list[NDArray[np.int64]] = []  # stretches of windows that are not yet encoded

    def stretch(item: Item, start: float, end: float) -> None:
        keys.append(item.key)
        about.append(item.about | {"start": start, "end": end, "rows": 0, "problem": item.problem})
        about[-1]["findings"] = item.findings
        sums.append(np.zeros(shape))
        measured.append(np.zeros(3))

    def windows() -> Iterator[Windows]:
        for item in items:
            if item.windows is None or item.frame_of is None:
                stretch(item, 0.0, item.about.get("seconds") or 0.0)
                continue
            size = together or max(1, item.frames)
            if item.key in begins:  # a later part of a long recording
                readings[item.key] = joined_reading(readings[item.key], item.reading)
            else:
                begins[item.key], readings[item.key] = len(about), item.reading
                end = item.frames * frame.seconds
                for start in np.arange(0, item.frames, size) * frame.seconds:
                    stretch(item, float(start), min(start + size * frame.seconds, end))
            waiting.append(begins[item.key] + item.frame_of // size)
            yield item.windows

    for batch, z in encoded_by_all(classifier.encoders, windows(), device):
        queue = np.concatenate(waiting)
        own, waiting[:] = queue[: len(batch)], [queue[len(batch) :]]
        starts = np.flatnonzero(np.diff(own, prepend=-1))
        share = window_ecg_share(batch.values, batch.present, frame.rate)
        totals = _summed(z.astype(np.float64), starts, maxima)
        shares = np.add.reduceat(share, starts, axis=1)
        counts = np.diff(starts, append=len(own))
        for place, number in enumerate(own[starts].tolist()):
            both = np.stack([sums[number], totals[:, place]], axis=1)
            sums[number] = _summed(both, [0], maxima)[:, 0]
            measured[number] += shares[:, place]
            about[number]["rows"] += int(counts[place])
    lost = {key for key, one in zip(keys, about, strict=True) if one["problem"] and key in begins}
    kept = [n for n, one in enumerate(about) if one["problem"] or keys[n] not in lost]
    for n in kept:
        about[n] |= readings.get(keys[n], {}) if about[n]["problem"] is None else {}
        if not about[n]["rows"] and about[n]["problem"] is None:
            about[n]["problem"] = _NO_SIGNAL
    rows = np.array([max(1, about[n]["rows"]) for n in kept])[:, None, None]
    vectors = np.array([sums[n] for n in kept]).reshape(-1, *shape)
    vectors /= np.where(np.isin(np.arange(shape[1]), np.arange(shape[1])[maxima]), 1, rows)
    found = np.array([measured[n] for n in kept]).reshape(-1, 3).T
    found[:2] /= np.maximum(found[2], 1)
    return Means([about[n] for n in kept], found, vectors.transpose(1, 0, 2).astype(np.float32))


def _summed(
    z: NDArray[np.float64], starts: Sequence[int] | NDArray[np.int64], maxima: slice
) -> NDArray[np.float64]:
    """(members, n, dim) -> sums from each start on; of maxima, none negative, the greatest."""
    made = np.asarray(np.add.reduceat(z, starts, axis=1))
    made[..., maxima] = np.maximum.reduceat(z[..., maxima], starts, axis=1)
    return made


@dataclass(frozen=True)
class Decisions:
    """What a classifier says about n recordings."""

    probabilities: NDArray[np.float64]  # (n, classes), calibrated
    ecg_share: NDArray[np.float64]  # (n,)
    distance: NDArray[np.float64]  # (n,) from the training data; nan where that is not known
    abstained: list[str | None]  # why no label is predicted
    predicted: list[str | list[str] | None]  # None where it abstains


def decide(classifier: Classifier, means: Means) -> Decisions:
    """Predict, or abstain, for those that have a signal."""
    card, (share, flat, _) = classifier.card, means.measured[:, means.there]
    vectors = torch.from_numpy(means.vectors[:, means.there])
    leads = [len(means.about[place].get("leads_used", ())) for place in means.there]
    logits = classifier.logits(vectors.double(), leads)
    chances = np.asarray(classifier.probabilities(logits).numpy())
    doubts = classifier.doubts(chances, vectors, share)
    beyond = classifier.beyond(doubts, leads)
    paced = any("pacing" in one or "paced" in one for one in card.meanings.values())
    in_mv = any(one.card.in_mv for one in classifier.encoders)
    why: list[str | None] = []
    for n, (still, place) in enumerate(zip(flat.tolist(), means.there.tolist(), strict=True)):
        about, limits = means.about[place], card.limits_of(leads[n])
        ecg, away, sure = (float(doubts[name][n]) for name in LIMITS)
        findings = [one for one in about["findings"] if not (paced and one.kind == "paced")]
        fault = doubt(findings, about["leads_used"], in_mv=in_mv)
        words = [] if fault is None else [f"the recording may be faulty: {fault}"]
        if beyond["ecg_share"][n] and still >= _MOSTLY:
            words.append(f"no signal: {still:.0%} of the time is flat")
        elif beyond["ecg_share"][n]:
            least = limits["ecg_share"]
            words.append(f"too noisy: {ecg:.2f} of its power is an ECG's, less than {least:.2f}")
        if beyond["distance"][n]:
            most = limits["distance"]
            words.append(f"unlike the training data: the distance is {away:.2f}, above {most:.2f}")
        if beyond["confidence"][n]:
            words.append(f"unsure: confidence {sure:.2f} is below {limits['confidence']:.2f}")
        why.append("; ".join(words) or None)
    likely: list[str | list[str]] = [card.labels[k] for k in chances.argmax(axis=1)]
    if card.multilabel:
        over = classifier.over_threshold(chances)
        likely = [[card.labels[k] for k in np.flatnonzero(row)] for row in over]
    picked = [None if reason else one for one, reason in zip(likely, why, strict=True)]
    return Decisions(chances, doubts["ecg_share"], doubts["distance"], why, picked)


def decide_each(classifier: Classifier, recordings: Sequence[CutRecording]) -> Decisions:
    """What a classifier says about recordings that are cut as it sees them."""
    items = (
        Item({}, n, 1, one.windows, 0 * one.frame_of, one.reading, one.findings)
        for n, one in enumerate(recordings)
    )
    return decide(classifier, mean_vectors(classifier, items))


def prediction_table(classifier: Classifier, means: Means, *, over_time: bool) -> pl.DataFrame:
    """One row per recording or, with their start and end, per stretch."""
    made, about, several = decide(classifier, means), means.about, classifier.card.multilabel

    def column(values: Sequence[Any], kind: pl.DataType | type[pl.DataType]) -> pl.Series:
        """Values of those with a signal; null for the others."""
        full = [None] * len(about)
        for place, value in zip(means.there.tolist(), values, strict=True):
            full[place] = value
        return pl.Series(full, dtype=kind, strict=False)

    def known(schema: Mapping[str, Any]) -> dict[str, pl.Series]:
        return {
            name: pl.Series([one.get(name) for one in about], dtype=kind)
            for name, kind in schema.items()
        }

    chances = {
        probability_column(label): column(made.probabilities[:, k].tolist(), pl.Float64)
        for k, label in enumerate(classifier.card.labels)
    }
    decided = {
        "predicted": column(made.predicted, pl.List(pl.String) if several else pl.String),
        "abstained": column(made.abstained, pl.String),
        "ecg_share": column(made.ecg_share.tolist(), pl.Float64),
        "distance": column(made.distance.tolist(), pl.Float64).fill_nan(None),
    }
    columns = known(_ABOUT | (_TIME if over_time else {}) | {"rows": pl.Int64})
    return pl.DataFrame(columns | chances | decided | known({"problem": pl.String} | READ_SCHEMA))


def _write_table(table: pl.DataFrame, path: Path, classifier: Classifier) -> None:
    """Write a CSV; or a parquet file, with the name and hash of the model in its metadata.

    What the labels mean is in that metadata, and in a column of the CSV.
    """
    private_folder(path.parent)
    words = classifier.card.meanings
    if path.suffix == ".parquet":
        about = {MODEL: classifier.card.name, HASH: own_hash(classifier.card.to_dict())}
        about[MEANINGS] = json.dumps(words, ensure_ascii=False)
        write_rows(table, path, metadata=about)
        return
    own, several = pl.col("predicted"), classifier.card.multilabel
    meaning = own.list.eval(pl.element().replace(words)) if several else own.replace(words)
    place = table.columns.index("predicted") + 1
    write_rows(table.clone().insert_column(place, table.select(meaning=meaning)["meaning"]), path)

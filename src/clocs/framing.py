"""Framing: store -> Frames. Cuts, resamples where the frame asks for it, and assigns the splits.

Knows nothing about learning; needs zarr and polars, which Frames itself does not.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import scipy.signal
from numpy.typing import NDArray

from clocs.cutting import Cuts, cut, frame_count, frame_width
from clocs.errors import SettingError
from clocs.frames import SEXES, Frames
from clocs.labelling import label_frames
from clocs.recording import FrameSpec
from clocs.splits import assign
from clocs.store import Store

_AHEAD = 256  # recordings decoded ahead of the workers that resample them


def make_frames(
    store: Store,
    *,
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
    split_seed: int = 0,
    memory: int | None = None,
) -> Frames:
    """All frames of the recordings that have the chosen leads, in memory where they fit.

    Args:
        store: Prepared recordings.
        spec: The frame; the dataset's own where None.
        leads: By name, in the order wanted; see `Store.choose_leads`.
        split_seed: Of the split into training, validation and test patients.
        memory: The most bytes of signals to hold in memory, half of the machine's where None;
            beyond, they are mapped from a file that vanishes with them.
    """
    manifest = store.manifest
    spec = spec or manifest.frame
    leads = store.choose_leads(leads)
    rows = store.rows_with(leads)
    table = store.table[rows]
    samples, rate = table["samples"].to_numpy(), table["rate"].to_numpy()
    cuts = cut(samples, rate, spec)
    target, kept = _targets(table, cuts, manifest.labels)
    if not kept.any():
        raise SettingError(
            f"{store.path} has no frame of {spec.seconds:g} s with the leads {', '.join(leads)}"
        )
    counts = frame_count(samples, rate, spec)
    size = counts * spec.samples  # of one lead of each recording
    base = np.concatenate(([0], np.cumsum(size * len(leads))))
    signals = _room_for(int(base[-1]), store, memory)
    scale = np.empty((len(cuts.start), len(leads)), np.float32)
    first_frame = np.concatenate(([0], np.cumsum(counts)))
    gains, baselines = _columns(table, leads)

    def fill(i: int, digital: NDArray[np.int16]) -> None:
        values, steps = _cut_one(
            digital, gains[i], baselines[i], float(rate[i]), int(counts[i]), spec, manifest.resample
        )
        signals[base[i] : base[i + 1]] = values.ravel()
        scale[first_frame[i] : first_frame[i + 1]] = steps.T

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = []
        for i, (_, digital) in enumerate(store.iter_signals(leads, rows.tolist())):
            waiting.append(pool.submit(fill, i, digital))
            if len(waiting) == _AHEAD:
                waiting.pop(0).result()
        for job in waiting:
            job.result()
    lead = np.arange(len(leads))
    starts = (base[cuts.recording] + cuts.frame * spec.samples)[:, None] + lead * size[
        cuts.recording, None
    ]
    patient_ids = table["patient"].unique(maintain_order=True).to_list()
    number = {patient: i for i, patient in enumerate(patient_ids)}
    patient = np.array([number[p] for p in table["patient"]], np.int32)
    split = assign(patient_ids, manifest.dataset, split_seed)
    return Frames(
        dataset=manifest.dataset,
        content=manifest.content_hash,
        spec=spec,
        leads=tuple(leads),
        labels=manifest.labels,
        multilabel=manifest.multilabel,
        batch_size=manifest.batch_size,
        split_seed=split_seed,
        unit=table["unit"][0],
        patient_ids=tuple(patient_ids),
        recording_ids=tuple(table["id"]),
        digests=table["digest"].to_numpy().astype(np.uint64),
        age=table["age"].cast(pl.Float32).fill_null(np.nan).to_numpy(),
        sex=np.array([SEXES.index(sex or "unknown") for sex in table["sex"]], np.int8),
        day=_days(table["taken"]),
        signals=signals,
        starts=starts[kept],
        scale=scale[kept],
        recording=cuts.recording[kept].astype(np.int32),
        patient=patient[cuts.recording[kept]],
        segment=cuts.frame[kept].astype(np.int32),
        split=split[patient[cuts.recording[kept]]],
        target=target[kept],
    )


def _room_for(samples: int, store: Store, memory: int | None) -> NDArray[np.int16]:
    """Room for all signals: memory, or a file beside the store that has no name any more."""
    most = memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    if samples * 2 <= most:
        return np.empty(samples, np.int16)
    beside = store.path.parent
    with tempfile.TemporaryFile(dir=beside if os.access(beside, os.W_OK) else None) as file:
        file.truncate(samples * 2)
        return np.memmap(file, np.int16, "r+", shape=(samples,))


def common_leads(stores: Sequence[Store], leads: Sequence[str] | None) -> tuple[str, ...]:
    """The leads to use of several stores: those asked for, else what their own choices share."""
    choices = [store.choose_leads(leads) for store in stores]
    shared = tuple(lead for lead in choices[0] if all(lead in choice for choice in choices))
    if not shared:
        paths = " and ".join(str(store.path) for store in stores)
        raise SettingError(f"{paths} share no lead, so they cannot be learned from together")
    return shared


def _cut_one(
    digital: NDArray[np.int16],
    gain: NDArray[np.float64],
    baseline: NDArray[np.int64],
    rate: float,
    count: int,
    spec: FrameSpec,
    resample: str,
) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
    """(leads, samples) of a recording -> (leads, count, spec.samples), (leads, count) mV a step."""
    n = len(gain)
    if np.isclose(rate, spec.rate):
        whole = digital[:, : count * spec.samples].reshape(n, count, spec.samples)
        if not baseline.any():
            return whole, np.repeat(1 / gain[:, None], count, axis=1)
        signal = (whole - baseline[:, None, None].astype(np.float64)) / gain[:, None, None]
    else:
        signal = (digital - baseline[:, None].astype(np.float64)) / gain[:, None]
        if resample == "frame":
            width = round(float(frame_width(rate, spec)))
            frames = signal[:, : count * width].reshape(n, count, width)
            signal = scipy.signal.resample(frames, spec.samples, axis=-1)
        else:
            total = max(round(digital.shape[1] / rate * spec.rate), count * spec.samples)
            signal = scipy.signal.resample(signal, total, axis=-1)
            signal = signal[:, : count * spec.samples].reshape(n, count, spec.samples)
    # an eighth of the file's own step, or as finely as 16 bits allow: a second rounding must not
    # add noise of its own
    step = np.maximum(np.abs(signal).max(axis=(1, 2)) / 32767, 1 / (8 * gain))
    values = np.rint(signal / step[:, None, None]).astype(np.int16)
    return values, np.repeat(step[:, None], count, axis=1)


def _targets(
    table: pl.DataFrame, cuts: Cuts, classes: tuple[str, ...]
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """(frames, classes) targets, and (frames,) whether a frame stays (`clocs info` counts them).

    Labels are the recording's, or that of the episode that covers the frame's first sample.
    """
    code = {label: i for i, label in enumerate(classes)}
    whole = np.zeros((len(table), len(classes)), np.uint8)
    for i, names in enumerate(table["labels"].to_list()):
        whole[i, [code[name] for name in names if name in code]] = 1
    target = whole[cuts.recording]
    frames = label_frames(table, cuts, classes)
    rows = np.flatnonzero(frames.label >= 0)
    target[rows] = 0
    target[rows, frames.label[rows]] = 1
    return target, frames.kept


def _days(taken: pl.Series) -> NDArray[np.float64]:
    """ISO 8601 -> days since 1970, nan where there is none."""
    moments = taken.str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False)
    dates = taken.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us"))
    microseconds = moments.fill_null(dates).dt.epoch("us").cast(pl.Float64)
    return (microseconds / 86_400e6).fill_null(np.nan).to_numpy()


def _columns(
    table: pl.DataFrame, leads: Sequence[str]
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.int64]]]:
    """Gain and baseline of the chosen leads of each recording."""
    gains, baselines = [], []
    for own, gain, baseline in table.select("leads", "gain", "baseline").iter_rows():
        places = [own.index(lead) for lead in leads]
        gains.append(np.array(gain, np.float64)[places])
        baselines.append(np.array(baseline, np.int64)[places])
    return gains, baselines

"""`clocs.embed`: stores and files -> embeddings of frames, recordings or patients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError, warn
from clocs.files import digest
from clocs.formats.base import ReadOptions
from clocs.frames.make import FramePlan, expect_leads, leads_of_those, plan_frames
from clocs.frames.signals import frame_count
from clocs.frames.splits import PARTS
from clocs.frames.views import ALL_LEADS
from clocs.patients.cohort import Cohort
from clocs.patients.embeddings import Embeddings, UnitMeans, collect, joined
from clocs.patients.encode import (
    CutRecording,
    InputSpec,
    Windows,
    encoded,
    frame_of,
    joined_reading,
    known_leads,
    leads_of,
)
from clocs.patients.rows import (
    READ_SCHEMA,
    Level,
    check_level,
    file_row,
    frame_rows,
    readings_of_store,
    rows_of_files,
)
from clocs.patients.sources import ReadFile, file_windows, read_files, stores_and_files
from clocs.recording import UNNAMED_LEAD, FrameSpec, unnamed_lead, with_derived
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint, expect_unit, kept_checkpoint
from clocs.training.embed import AT_ONCE, StoreVectors, filled
from clocs.training.signals import pick_device


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
    lead_names: Mapping[str, str] | None = None,
    cohort: Cohort | Path | str | Iterable[str] | None = None,
    device: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Embeddings:
    """Turn recordings of stores or files into vectors, with IDs, labels, age and sex.

    Args:
        checkpoint: A checkpoint, its file, a folder (then its first seed), or a name (`clocs
            info`).
        sources: Stores, which are cut into their own frames (for encoders of many leads, into the
            encoder's); or recordings' files of any format, folders and zips, cut into the
            checkpoint's frame. A file that cannot be embedded is listed as a problem and does not
            stop the others.
        level: What a vector represents: 'frame' (in one lead, or in all leads where the encoder
            sees many at once), 'recording' or 'patient'.
        leads: Leads by name; those that the encoder was trained on by default.
        split: Only this part of stores: 'train', 'validation' or 'test'.
        split_seed: Random seed for the patient split.
        frame: Seconds of a frame, for all sources: vectors of different frames are not comparable.
        rate: Sampling rate in Hz of files that do not give it.
        unit: Unit of the samples of such files, such as 'mV'; guessed from their size by default,
            with a notice.
        lead_names: Leads of files by their unusual names, such as ECG1=II,ch2=V5; in Python a
            mapping.
        cohort: Only these patients of stores: a CSV table with a column patient, or one ID per
            line; in Python also IDs (or 'dataset:ID'). The explorer saves such files.
        device: 'cpu', 'cuda', …; the best available by default.
        progress: Called with (recordings done, recordings in total), store by store.
    """
    stores, files = stores_and_files(sources, split=split, cohort=cohort)
    encoder, where = kept_checkpoint(checkpoint), pick_device(device)
    spec = None if frame is None else frame_of(encoder, frame)
    options = ReadOptions(rate=rate, unit=unit, lead_names=lead_names or {})
    names, recordings = read_files(files, options, spec or encoder.card.frame)
    if files and level == "patient":
        warn(
            "each file counts as one patient, named after the file; where a patient has several, "
            "make a store of them with `clocs prepare folder`"
        )
    made = [
        embed_levels(
            encoder,
            store,
            levels=[level],
            spec=spec,
            leads=leads,
            split=split,
            only=only,
            split_seed=split_seed,
            device=where,
            progress=progress,
            readings=True,
        )[level]
        for store, only in stores
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
                progress=lambda done: progress(done, len(names)),
            )
        )
    return joined(made)


def embed_levels(
    checkpoint: Checkpoint,
    store: Store,
    *,
    levels: Sequence[Level],
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
    readings: bool = False,
    **chosen: Any,
) -> dict[Level, Embeddings]:
    """Embeddings of a store's recordings, or of one part of them, at several levels in one pass.

    A few thousand frames are in memory at a time. The vectors are bit for bit those that
    `clocs.training.embed` makes of frames in memory.

    The arguments are as for `embed`; `chosen` are those of `store_windows`. With `readings`, rows
    say how each recording was read, which takes about as much memory as all else that they say.
    """
    for level in levels:
        check_level(level)
    own = store_windows(checkpoint, store, **chosen)
    whole = chosen.get("split") is None and chosen.get("only") is None
    return collect(
        _vectors(own, device, progress),
        levels,
        frame_rows(own.plan, own.chosen, all_leads=ALL_LEADS if own.spec.known else None),
        own.spec.checkpoint.encoder.embedding_dim,
        own.readings() if readings else None,
        encoder=own.spec.checkpoint.fingerprint,
        problems=_left_out(own) if whole else (),
        frame=own.plan.spec.seconds,
        leads=own.spec.leads,
        maxima=own.spec.checkpoint.card.maxima,
    )


def _vectors(
    own: StoreWindows, device: torch.device | str, progress: Callable[[int, int], None]
) -> Iterator[NDArray[np.float32]]:
    """(some, dim) at a time of all windows, in order; each is encoded once and then kept."""
    plan, kept, checkpoint = own.plan, StoreVectors.of_plan(own.plan), own.spec.checkpoint
    views = np.ones(len(kept.present), np.int64) if own.spec.known else kept.present.sum(axis=1)
    of = np.repeat(plan.cuts.recording[plan.kept], views)  # the recording of each row
    rows = np.flatnonzero(np.isin(of, own.chosen))

    def encode(_: list[int], unknown: NDArray[np.bool_]) -> Iterator[NDArray[np.float32]]:
        new = np.zeros(len(of), np.bool_)
        new[rows[unknown]] = True
        first = np.searchsorted(of, np.arange(len(plan.rows) + 1))
        some = replace(own, chosen=np.unique(of[new]))
        pieces = (windows[new[first[i] : first[i + 1]]] for i, windows, _ in some.each(progress))
        return (z[None] for z in encoded(checkpoint, pieces, device))

    for found in filled([kept.by(checkpoint, device)], rows, encode, AT_ONCE):
        yield found[0]
    progress(len(own.chosen), len(own.chosen))


@dataclass(frozen=True)
class StoreWindows:
    """The windows of a store's recordings, as an encoder sees them."""

    spec: InputSpec  # its leads are those wanted, of which the store has some
    plan: FramePlan  # of all recordings that have one of the leads
    chosen: NDArray[np.int64]  # recordings of the plan that have a frame, in ascending order

    @property
    def stands_for(self) -> dict[str, str]:
        """The lead that the encoder sees in place of one without a name."""
        named = unnamed_lead(self.plan.store.manifest.dataset)
        return {UNNAMED_LEAD: named} if self.spec.known else {}

    def readings(self) -> pl.DataFrame:
        """How each recording was read; see `readings_of_store`."""
        return readings_of_store(self.plan, self.chosen, self.spec.leads, self.stands_for)

    def each(
        self, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Iterator[tuple[int, Windows, NDArray[np.int64]]]:
        """(recording of the plan, its windows, (windows,) the frame of each), one by one."""
        plan, stands_for = self.plan, self.stands_for
        used = plan.present & plan.kept[:, None]
        first = np.concatenate(([0], np.cumsum(plan.counts)))
        for done, (i, values, steps) in enumerate(plan.windows(self.chosen), start=1):
            own = used[first[i] : first[i + 1], plan.has[i]]
            there = zip(plan.leads, plan.has[i], strict=True)
            leads = [stands_for.get(lead, lead) for lead, has in there if has]
            seen = self.spec.windows(leads, values, steps, own)
            yield i, seen, self.spec.frame_of_rows(own)
            progress(done, len(self.chosen))


def store_windows(
    checkpoint: Checkpoint,
    store: Store,
    *,
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
    split: str | None = None,
    only: NDArray[np.bool_] | None = None,
    split_seed: int = 0,
) -> StoreWindows:
    """What is to be encoded of a store.

    The arguments are as for `embed`, but `spec` is the frame (`own_frame` where None) and
    `only` (recordings of the store,) says which recordings may be used.
    """
    wanted = store_leads(checkpoint, store, leads)
    takes = InputSpec.from_checkpoint(checkpoint, spec or own_frame(checkpoint, store), wanted)
    found = _leads_there(checkpoint, store, wanted)
    plan = plan_frames(store, spec=takes.frame, leads=found, split_seed=split_seed).checked()
    for unit in plan.table["unit"].unique():
        expect_unit(checkpoint, unit, f"a recording of {store.path}")
    has = np.zeros(len(plan.rows), bool)  # recordings with a frame
    has[plan.cuts.recording[plan.kept]] = True
    if split is not None:
        if split not in PARTS:
            raise SettingError(f"there is no split {split!r}; choose one of {', '.join(PARTS)}")
        has &= plan.split[plan.patient] == PARTS.index(split)
    if only is not None:
        has &= only[plan.rows]
    return StoreWindows(takes, plan, np.flatnonzero(has))


def store_leads(
    checkpoint: Checkpoint, store: Store, leads: Sequence[str] | None
) -> tuple[str, ...]:
    """The leads to embed; recordings are embedded from those of them that they have.

    Raises:
        SettingError: No recording of the store has any of them.
    """
    wanted = leads_of(checkpoint, leads)
    found = _leads_there(checkpoint, store, wanted)
    reader = "the encoder was trained on" if leads is None else "`leads` are"
    expect_leads(store, wanted, found, reader=reader, known=known_leads(checkpoint))
    return wanted


def _leads_there(checkpoint: Checkpoint, store: Store, wanted: Sequence[str]) -> list[str]:
    """Those of the leads that a store has, by its own names."""
    if checkpoint.encoder.leads:
        return leads_of_those(store, wanted)
    return [lead for lead in wanted if lead in with_derived(store.leads)]


def _left_out(windows: StoreWindows) -> tuple[tuple[str, str], ...]:
    """How many recordings of the whole store have no vector or lack some leads."""
    plan, used = windows.plan, len(windows.chosen)
    total, leads = len(plan.store), ", ".join(plan.leads)
    counts = {
        f"recordings have no frame of {plan.spec.seconds:g} s with one of the leads {leads} and "
        "are left out": total - used,
        f"recordings lack some of the leads {leads} and are embedded from those they have": int(
            (~plan.has.all(axis=1)).sum()
        ),
    }
    return tuple(
        (plan.store.path.name, f"{count} of {total} {words}")
        for words, count in counts.items()
        if count
    )


def own_frame(checkpoint: Checkpoint, store: Store) -> FrameSpec:
    """The store's frame to compare patients in; of many leads or another length, the encoder's."""
    own, usual = checkpoint.card.frame, store.manifest.frame
    return own if checkpoint.encoder.leads or own.samples != usual.samples else usual


def frame_with_halves(checkpoint: Checkpoint, store: Store) -> FrameSpec:
    """`own_frame` where most recordings hold two of them, else the frame of their segments."""
    frame = own_frame(checkpoint, store)
    samples, rate = store.table["samples"].to_numpy(), store.table["rate"].to_numpy()
    if (frame_count(samples, rate, frame) >= 2).mean() > 0.5:
        return frame
    segment = store.manifest.segment_frame
    return frame_of(checkpoint, segment.seconds) if checkpoint.encoder.leads else segment


def embed_recordings(
    checkpoint: Checkpoint,
    recordings: Iterable[ReadFile],
    *,
    level: Level = "recording",
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] = lambda done: None,
) -> Embeddings:
    """Embeddings of recordings outside a store, in the checkpoint's frame or another.

    A recording is embedded from those of the leads that it has, and from frames without gaps. One
    that cannot be embedded (too short, without any of the leads, unreadable) is listed in
    `problems` with the reason.
    """
    check_level(level)
    takes = InputSpec.from_checkpoint(checkpoint, spec, leads)
    rows: dict[int, dict[str, Any]] = {}  # of recordings, by number, as are the next two
    readings: dict[int, dict[str, Any]] = {}
    present: dict[int, NDArray[np.bool_]] = {}  # (frames, leads wanted)
    problems: dict[int, tuple[str, str]] = {}

    def windows() -> Iterator[Windows]:
        for number, _, one in file_windows(recordings, takes, progress):
            if isinstance(one, tuple):
                problems[number] = one
                continue
            row = file_row(one.recording)
            if number not in rows:
                rows[number], readings[number] = row, one.reading
                present[number] = np.zeros((one.frames, len(takes.leads)), np.bool_)
            else:  # a later stretch: the content key is of all of it
                keys = np.array([rows[number]["digest"], row["digest"]], np.uint64)
                rows[number]["digest"] = digest(keys.view(np.int16))
                readings[number] = joined_reading(readings[number], one.reading)
            present[number][one.first : one.first + len(one.present)] = one.present
            yield one.windows

    vectors = list(encoded(takes.checkpoint, windows(), device))
    if lost := rows.keys() & problems.keys():  # after some of their stretches were encoded
        counts = [len(takes.frame_of_rows(one)) for one in present.values()]
        kept = np.repeat([number not in lost for number in present], counts)
        vectors = [np.concatenate(vectors)[kept]]
    own = [number for number in rows if number not in lost]
    fewer = [rows[number]["recording"] for number in own if not present[number].any(axis=0).all()]
    if fewer:
        warn(
            f"{len(fewer)} of {len(own)} recordings, such as {fewer[0]}, lack some of the leads "
            f"{', '.join(takes.leads)} and are embedded from those they have"
        )
    places = [present[number] for number in own]
    if takes.known:
        places = [np.asarray(one.any(axis=1, keepdims=True), np.bool_) for one in places]
    ids = ("patient", "recording")
    read = [
        {"dataset": ""} | {name: rows[number][name] for name in ids} | readings[number]
        for number in own
    ]
    texts = dict.fromkeys(("dataset", *ids), pl.String)
    return collect(
        vectors,
        [level],
        rows_of_files(
            [rows[number] for number in own], places, (ALL_LEADS,) if takes.known else takes.leads
        ),
        takes.checkpoint.encoder.embedding_dim,
        pl.DataFrame(read, schema={**texts, **READ_SCHEMA}),
        encoder=takes.checkpoint.fingerprint,
        problems=tuple(problems.values()),
        frame=takes.frame.seconds,
        leads=takes.leads,
        maxima=takes.checkpoint.card.maxima,
    )[level]


def embed_each(
    made: Sequence[CutRecording | ClocsError], spec: InputSpec
) -> list[NDArray[np.float32] | ClocsError]:
    """The (dim,) unit vector of each recording that `cut_each` has cut, or why it has none.

    The vectors are those of `embed_recordings`, bit for bit.
    """
    usable = [one.windows for one in made if not isinstance(one, ClocsError)]
    owner = np.repeat(np.arange(len(usable)), [len(one) for one in usable])
    card = spec.checkpoint.card
    means = UnitMeans(owner, len(usable), spec.checkpoint.encoder.embedding_dim, card.maxima)
    for part in encoded(spec.checkpoint, usable):
        means.add(part)
    zero = SettingError("its embedding is a zero vector, which has no direction")
    both = zip(means.vectors, means.nonzero, strict=True)
    found = (vector if is_nonzero else zero for vector, is_nonzero in both)
    return [one if isinstance(one, ClocsError) else next(found) for one in made]

"""Frames of a store: cut, resampled where needed, labeled and split.

Arrays are flat, with one element per frame, so a whole store is cut at once. Absent leads, gaps and
flat stretches have no signal: a gap costs the frames of its lead that it touches, a flat stretch
those that lie within it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import SettingError, warn
from clocs.files import group_runs, prefetch
from clocs.frames.frames import ABSENT, SEXES, Frames
from clocs.frames.signals import (
    LONG,
    TOGETHER,
    Cuts,
    allocate_signals,
    bridged,
    cut,
    cut_windows,
    frame_count,
    touched,
    within,
)
from clocs.frames.splits import Folds, Split, split_patients
from clocs.recording import (
    LIMB_LEADS,
    LIMB_SOURCES,
    UNNAMED_LEAD,
    FrameSpec,
    Gap,
    canonical_lead,
    choose_leads,
    leads_touched,
    unnamed_lead,
    with_derived,
)
from clocs.store.store import Store

# recording, (own leads, samples) steps, (own leads,) gain and baseline
_Decoded: TypeAlias = tuple[int, NDArray[np.int16], NDArray[np.float64], NDArray[np.int64]]
NO_EPISODE = "(no episode)"
_AHEAD = 16  # groups of recordings decoded ahead of the workers that resample them


@dataclass(frozen=True)
class FramePlan:
    """Everything about a store's frames but their signals, which `windows` streams."""

    store: Store  # prepared recordings
    spec: FrameSpec  # duration and samples of a frame
    leads: tuple[str, ...]  # names, in the order requested
    split_seed: int  # random seed of `split`
    table: pl.DataFrame  # recordings that have one of the leads; a part of the store's table
    rows: NDArray[np.int64]  # (recordings,) their rows in the store
    cuts: Cuts  # all frames, including those that are not kept
    counts: NDArray[np.int64]  # (recordings,) frames of each
    has: NDArray[np.bool_]  # (recordings, leads) whether a recording has a lead, or I and II for it
    present: NDArray[np.bool_]  # (frames, leads) whether a frame of `cuts` has a signal in a lead
    kept: NDArray[np.bool_]  # (frames,) whether a frame of `cuts` is used
    left_out: dict[str, int]  # frames of episodes of none of the classes, by label
    target: NDArray[np.uint8]  # (frames, classes) labels of each frame of `cuts`
    patient_ids: tuple[str, ...]  # distinct patients; those who share a recording are one
    patient: NDArray[np.int32]  # (recordings,) index into `patient_ids`
    split: NDArray[np.int8]  # (patients,) 0 train, 1 validation, 2 test
    fold: tuple[str, ...]  # (patients,) of an official split; empty where the store has none
    folds: Folds | None  # those that `split` follows; None where it is by hash

    def checked(self) -> FramePlan:
        """The same, of which there must be some; says where filters are not the store's."""
        if not self.kept.any():
            raise SettingError(
                f"{self.store.path} has no frame of {self.spec.seconds:g} s with one of the leads "
                f"{', '.join(self.leads)}"
            )
        declared = self.store.manifest.frame.filters
        if self.spec.filters != declared:
            warn(
                f"recordings of {self.store.path} are filtered as the encoder needs it "
                f"({self.spec.filters}), not as the store declares ({declared})"
            )
        return self

    @property
    def without_signal(self) -> int:
        """Frames × leads of recordings that have the lead, but in gaps or flat."""
        return int((self.has[self.cuts.recording] & ~self.present).sum())

    def windows(
        self, recordings: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[int, NDArray[np.int16], NDArray[np.float64]]]:
        """(recording, (own, count, samples) steps, (own, count) mV per step) of each in order.

        `own` are those of the leads that the recording has (`has`), recorded or derived. For all
        recordings, or for some in ascending order. A few hundred are in memory at a time.
        """
        chosen = np.arange(len(self.rows)) if recordings is None else recordings
        gaps = gaps_of(self.table, self.leads)
        rate, samples = (self.table[name].to_numpy() for name in ("rate", "samples"))
        derives = self.has & ~has_leads(self.table, self.leads, derived=False)
        needed = [lead for lead in LIMB_SOURCES if derives.any() and lead not in self.leads]
        read = (*self.leads, *needed)
        facts = self.table.select("leads", "gain", "baseline")[chosen]

        def decoded() -> Iterator[_Decoded]:
            signals = self.store.iter_signals(read, map(int, self.rows[chosen]))
            rows = zip(chosen.tolist(), signals, facts.iter_rows(), strict=True)
            for i, (_, digital), (recorded, gain, baseline) in rows:
                names = [lead for lead in read if lead in recorded]
                places = [recorded.index(lead) for lead in names]
                steps = np.array(gain, np.float64)[places], np.array(baseline, np.int64)[places]
                made: tuple[Any, ...] = digital, *steps
                own = [lead for lead, has in zip(self.leads, self.has[i], strict=True) if has]
                if needed or derives[i].any():
                    made = choose_leads(names, own, *made)
                yield i, bridged(made[0], own, gaps.get(i, ())), made[1], made[2]

        def shape(item: _Decoded) -> tuple[float, int, int, bytes]:
            i = item[0]
            alone = i if samples[i] > LONG else -1
            return float(rate[i]), int(samples[i]), alone, self.has[i].tobytes()

        def several(items: list[_Decoded]) -> list[tuple[int, Any, Any]]:
            numbers, *arrays = zip(*items, strict=True)
            digital, gain, baseline = (np.stack(each) for each in arrays)
            count, resample = int(self.counts[numbers[0]]), self.store.manifest.resample
            values, steps = cut_windows(
                digital, gain, baseline, float(rate[numbers[0]]), count, self.spec, resample
            )
            return list(zip(numbers, values, steps, strict=True))

        for made in prefetch(several, group_runs(decoded(), shape, TOGETHER), _AHEAD):
            yield from made


def plan_frames(
    store: Store,
    *,
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
    split: Split = None,
    split_seed: int = 0,
) -> FramePlan:
    """Positions, labels and patients of a store's frames; there may be none."""
    manifest = store.manifest
    spec = spec or manifest.frame
    leads = store.choose_leads(leads)
    rows = np.flatnonzero(has_leads(store.table, leads).any(axis=1))
    table = store.table if len(rows) == len(store) else store.table[rows]
    samples, rate = table["samples"].to_numpy(), table["rate"].to_numpy()
    cuts = cut(samples, rate, spec)
    labeled, target, left_out = label_frames(
        table, cuts, manifest.labels, keep_unlabeled=manifest.keep_unlabeled
    )
    present = present_frames(table, cuts, spec, leads)
    everyone = split_patients(store, split=split, split_seed=split_seed)
    people, patient = np.unique(everyone.recording[rows], return_inverse=True)
    return FramePlan(
        store=store,
        spec=spec,
        leads=leads,
        split_seed=split_seed,
        table=table,
        rows=rows,
        cuts=cuts,
        counts=frame_count(samples, rate, spec),
        has=has_leads(table, leads),
        present=present,
        kept=labeled & present.any(axis=1),
        left_out=left_out,
        target=target,
        patient_ids=tuple(everyone.ids[i] for i in people),
        patient=patient.astype(np.int32),
        split=everyone.part[people],
        fold=tuple(everyone.fold[i] for i in people) if everyone.fold else (),
        folds=everyone.folds,
    )


def make_frames(
    store: Store,
    *,
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
    split: Split = None,
    split_seed: int = 0,
    memory: int | None = None,
) -> Frames:
    """All frames of the recordings that have one of the chosen leads, in memory if they fit.

    A lead that a recording does not have, or that a gap touches, is absent from the frame. A gap is
    bridged by a straight line before resampling, so that it shows in no other frame.

    Args:
        store: Prepared recordings.
        spec: The frame; the dataset's own where None.
        leads: By name, in this order; see `Store.choose_leads`.
        split: Whether the 'hash' of patients or official 'folds' decide who is trained and tested
            on, or which folds; the folds by default where the store has some.
        split_seed: Random seed of the split into training, validation and test patients.
        memory: The most bytes of signals to keep in memory, half of the machine's where None;
            larger ones are mapped from a file that is deleted with them.
    """
    plan = plan_frames(store, spec=spec, leads=leads, split=split, split_seed=split_seed).checked()
    manifest, spec, cuts, kept = store.manifest, plan.spec, plan.cuts, plan.kept
    size = plan.counts * spec.samples  # of one lead of each recording
    base = np.concatenate(([0], np.cumsum(size * plan.has.sum(axis=1))))
    room = max(int(base[-1]), spec.samples)  # a window fits in, also of a recording without frames
    signals = allocate_signals(room, beside=store.path.parent, memory=memory)
    scale = np.full((len(cuts.start), len(plan.leads)), np.nan, np.float32)
    first_frame = np.concatenate(([0], np.cumsum(plan.counts)))
    for i, values, steps in plan.windows():
        signals[base[i] : base[i + 1]] = values.ravel()
        scale[first_frame[i] : first_frame[i + 1], plan.has[i]] = steps.T
    lead = np.cumsum(plan.has, axis=1) - 1  # its place among those that the recording has
    starts = (base[cuts.recording] + cuts.frame * spec.samples)[:, None] + (lead * size[:, None])[
        cuts.recording
    ]
    starts[~plan.present], scale[~plan.present] = ABSENT, np.nan
    patient = plan.patient[cuts.recording[kept]]
    frames = Frames(
        dataset=manifest.dataset,
        content=manifest.content_hash,
        spec=spec,
        leads=plan.leads,
        labels=manifest.labels,
        multilabel=manifest.multilabel,
        batch_size=manifest.batch_size,
        split_seed=split_seed,
        unit=plan.table["unit"][0] if plan.table["unit"].n_unique() == 1 else "mixed",
        patient_ids=plan.patient_ids,
        recording_ids=tuple(plan.table["id"]),
        digests=plan.table["digest"].to_numpy().astype(np.uint64),
        age=plan.table["age"].cast(pl.Float32).fill_null(np.nan).to_numpy(),
        sex=np.array([SEXES.index(sex or "unknown") for sex in plan.table["sex"]], np.int8),
        signals=signals,
        starts=starts[kept],
        scale=scale[kept],
        recording=cuts.recording[kept].astype(np.int32),
        patient=patient,
        segment=cuts.frame[kept].astype(np.int32),
        split=plan.split[patient],
        target=plan.target[kept],
        without_signal=plan.without_signal,
        fold=plan.fold,
        folds={} if plan.folds is None else {manifest.dataset: plan.folds},
    )
    return replace(frames, split=frames.without_copies(frames.split))


def common_leads(stores: Sequence[Store], leads: Sequence[str] | None) -> tuple[str, ...]:
    """The leads to use of several stores: those requested, else those their defaults share."""
    choices = [store.choose_leads(leads) for store in stores]
    shared = tuple(lead for lead in choices[0] if all(lead in choice for choice in choices))
    if not shared:
        paths = " and ".join(str(store.path) for store in stores)
        raise SettingError(f"{paths} share no lead, so they cannot be learned from together")
    return shared


def leads_of_any(stores: Sequence[Store], leads: Sequence[str]) -> tuple[str, ...]:
    """These leads, of which each store must have one; for encoders that can do without some."""
    wanted = tuple(canonical_lead(lead) for lead in leads)
    for store in stores:
        if not leads_of_those(store, wanted):
            raise SettingError(
                f"{store.path} has none of the leads {', '.join(wanted)}; it has "
                f"{', '.join(store.leads)}"
            )
    return wanted


def leads_of_those(store: Store, leads: Sequence[str]) -> list[str]:
    """Those of the leads that a store has, recorded or derived from I and II.

    Its only one, where that has no name but stands for one of them.

    `Frames.for_leads` says which one it stands for.
    """
    if store.leads == (UNNAMED_LEAD,) and unnamed_lead(store.manifest.dataset) in leads:
        return [UNNAMED_LEAD]
    return [lead for lead in leads if lead in with_derived(store.leads)]


def expect_leads(
    store: Store,
    wanted: Sequence[str],
    found: Sequence[str],
    *,
    reader: str,
    known: Sequence[str] = (),
) -> None:
    """Warn of wanted leads that a store lacks; refuse a store that has none of them.

    Args:
        store: An opened store.
        wanted: Leads by their usual names.
        found: Those of them that it has.
        reader: The beginning of the sentence about them, such as 'the classifier reads'.
        known: All leads that can be chosen instead; empty where any can.
    """
    missing = [lead for lead in wanted if lead not in found]
    if not found:
        raise SettingError(
            f"{reader} {', '.join(wanted)}, and {store.path} has none of them; "
            f"{how_to_use(store, known)}"
        )
    if missing:
        lacks, read = ", ".join(missing), ", ".join(found)
        warn(f"{store.path} has no lead {lacks}: it is read from {read} alone")


def how_to_use(store: Store, known: Sequence[str]) -> str:
    """What to do with a store without wanted leads, for an encoder that knows only some, if any."""
    usable = [lead for lead in store.leads if not known or lead in known]
    if usable:
        return f"choose from {', '.join(usable)} with `leads`"
    return (
        f"it has {', '.join(store.leads)}; if one of them is another name of a lead, say so with "
        f"`clocs prepare --lead-names {store.leads[0]}=II`"
    )


def frame_labels(
    cuts: Cuts,
    *,
    recording: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    label: NDArray[np.int64],
) -> NDArray[np.int64]:
    """(frames,) the label of the episode that covers each frame's first sample, -1 where none does.

    All but `cuts` are (episodes,); those of a recording do not overlap, and `stop` is exclusive.
    """
    if recording.size == 0 or cuts.start.size == 0:
        return np.full(cuts.start.size, -1, dtype=np.int64)
    # All recordings on one axis, far enough apart, need one search only.
    span = int(max(stop.max(), cuts.start.max())) + 1
    line = recording * span + start
    order = np.argsort(line, kind="stable")
    at = np.searchsorted(line[order], cuts.recording * span + cuts.start, side="right") - 1
    found = order[np.maximum(at, 0)]
    covers = (at >= 0) & (recording[found] == cuts.recording) & (cuts.start < stop[found])
    return np.where(covers, label[found], -1)


def label_frames(
    table: pl.DataFrame, cuts: Cuts, classes: tuple[str, ...], *, keep_unlabeled: bool = False
) -> tuple[NDArray[np.bool_], NDArray[np.uint8], dict[str, int]]:
    """Label the frames of a store's rows, which `cuts.recording` numbers.

    Labels are the recording's or, where it has episodes, the label of the one that covers the
    frame's first sample. `keep_unlabeled` keeps frames whose episode is of none of the classes, or
    that have none.

    Returns:
        (frames,) which are kept, (frames, classes) 1 where a label holds, and how many frames are
        not kept, by label.
    """
    # There are few distinct sets of labels: look up each once.
    sets = table["labels"].list.join("\0")
    kinds = sets.unique()
    whole = np.zeros((len(kinds), len(classes)), np.uint8)
    for i, names in enumerate(kinds.to_list()):
        whole[i, [classes.index(name) for name in names.split("\0") if name in classes]] = 1
    kind = sets.replace_strict(kinds, np.arange(len(kinds)), return_dtype=pl.Int64).to_numpy()
    target: NDArray[np.uint8] = whole[kind[cuts.recording]]
    every = np.ones(cuts.start.size, dtype=np.bool_)
    episodes = (
        table.select(pl.int_range(pl.len(), dtype=pl.Int64).alias("recording"), "episodes")
        .filter(pl.col("episodes").list.len() > 0)
        .explode("episodes")
        .unnest("episodes")
    )
    if episodes.is_empty():
        return every, target, {}
    names = [*classes, *(n for n in episodes["label"].unique().sort() if n not in classes)]
    number = episodes["label"].replace_strict(names, np.arange(len(names)), return_dtype=pl.Int64)
    recording, start, stop = (episodes[k].to_numpy() for k in ("recording", "start", "stop"))
    found = frame_labels(cuts, recording=recording, start=start, stop=stop, label=number.to_numpy())
    by_episode = np.isin(cuts.recording, recording)
    known = (found >= 0) & (found < len(classes))
    target[by_episode] = 0
    target[known, found[known]] = 1
    kept = every if keep_unlabeled else known | ~by_episode
    kinds_left, counts = np.unique(found[~kept], return_counts=True)
    left_out = {
        NO_EPISODE if kind < 0 else names[kind]: int(count)
        for kind, count in zip(kinds_left.tolist(), counts, strict=True)
    }
    return kept, target, left_out


def pairs(cuts: Cuts, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(pairs,) where each pair of consecutive frames, (0, 1), (2, 3) …, begins in `cuts`.

    Both frames of a pair must be of one recording and `kept`.
    """
    first = np.flatnonzero(cuts.frame % 2 == 0)
    first = first[first + 1 < cuts.frame.size]
    whole = cuts.recording[first] == cuts.recording[first + 1]
    both: NDArray[np.bool_] = whole & kept[first] & kept[first + 1]
    return first[both]


def has_leads(
    table: pl.DataFrame, leads: Sequence[str], *, derived: bool = True
) -> NDArray[np.bool_]:
    """(recordings, leads) whether a recording has a lead, or I and II, from which it is derived."""
    has = table.select(pl.col("leads").list.contains(lead).alias(lead) for lead in leads)
    found = has.to_numpy().astype(np.bool_).reshape(table.height, len(leads))
    limb = [place for place, lead in enumerate(leads) if lead in LIMB_LEADS]
    if derived and limb and not found[:, limb].all():
        found[:, limb] |= has_leads(table, LIMB_SOURCES).all(axis=1, keepdims=True)
    return found


def present_frames(
    table: pl.DataFrame, cuts: Cuts, spec: FrameSpec, leads: Sequence[str]
) -> NDArray[np.bool_]:
    """(frames, leads) whether a frame of `cuts`, which numbers the table's rows, has a signal."""
    present = has_leads(table, leads)[cuts.recording]
    first = np.searchsorted(cuts.recording, np.arange(table.height + 1))
    rate = table["rate"].to_numpy()
    for row, gap in _stretches(table, "gaps", leads):
        own = slice(first[row], first[row + 1])
        present[own, leads.index(gap.lead)] &= ~touched(cuts.start[own], rate[row], spec, gap)
    for row, flat in _stretches(table, "flat", leads):
        own = slice(first[row], first[row + 1])
        present[own, leads.index(flat.lead)] &= ~within(cuts.start[own], rate[row], spec, flat)
    return present


def gaps_of(table: pl.DataFrame, leads: Sequence[str]) -> dict[int, list[Gap]]:
    """The gaps of these leads, by row of the table; only rows that have some."""
    found: dict[int, list[Gap]] = {}
    for row, gap in _stretches(table, "gaps", leads):
        found.setdefault(row, []).append(gap)
    return found


def _stretches(table: pl.DataFrame, column: str, leads: Sequence[str]) -> Iterator[tuple[int, Gap]]:
    """(row, stretch) of a column of stretches, in these leads; those of I also in what needs it."""
    some = table.with_row_index("row").filter(pl.col(column).list.len() > 0)
    for row, own, stretches in some.select("row", "leads", column).iter_rows():
        for one in stretches:
            touched = leads_touched(one["lead"], own)
            yield from ((row, Gap(**one | {"lead": lead})) for lead in touched if lead in leads)

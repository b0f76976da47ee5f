"""Views: which windows of the signals make up an instance; positions only, without signals.

An instance is one element of a batch with all its views, and a view is one window of one lead, or,
for encoders of many leads, of all of them. So whatever the method, an instance is a row of window
starts, and a batch is a gather.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError, warn
from clocs.frames.frames import ABSENT, Frames
from clocs.recording import FrameSpec
from clocs.store.manifest import Manifest

ALL_LEADS = "all"  # as the name of a lead: of a frame in all its leads at once
MAX_LEADS = 2  # of a view through a random subset: more or all of them taught less


@dataclass(frozen=True, slots=True)
class Views:
    """The views of an instance: windows (segments × leads), each as one or more copies.

    `Views(segments=2, all_leads=True)` has a view for every segment in every lead;
    `perturbed("gaussian")` has two views of one window, perturbed independently.
    """

    segments: int = 1  # consecutive windows
    all_leads: bool = False  # whether an instance has all leads
    copies: tuple[str, ...] = ("",)  # the chain of perturbations of each copy; '' for none
    # whether frames are normalized and centered on zero before perturbing, and not again after it
    normalized_first: bool = False
    # whether segments begin anywhere in a run of consecutive frames, drawn anew for each batch
    random_crops: bool = False
    # a view keeps 1 to so many leads, drawn anew; 0: all of them, or the instance's one lead
    most_leads: int = 0

    def for_multilead(self) -> Views:
        """The same for an encoder that sees many leads at once.

        Views that differ in their lead become views through random subsets of the leads; of one
        window there are two such views.
        """
        if not self.all_leads:
            return self
        copies = self.copies * 2 if self.segments * len(self.copies) == 1 else self.copies
        return replace(self, copies=copies, most_leads=self.most_leads or MAX_LEADS)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what most methods do not have is left out."""
        given = asdict(self)
        return {k: v for k, v in given.items() if v or k not in ("random_crops", "most_leads")}


def perturbed(chain: str, copies: int = 2) -> Views:
    """Copies of one frame of one lead, each perturbed independently."""
    return Views(copies=(chain,) * copies)


def transformed(*chains: str) -> Views:
    """A normalized frame of one lead unchanged, and once for each chain."""
    return Views(copies=("", *chains), normalized_first=True)


def frame_for(dataset: Manifest, *, segments: int) -> FrameSpec:
    """The frame of a method whose views are so many consecutive segments of a recording."""
    return dataset.segment_frame if segments > 1 else dataset.frame


@dataclass(frozen=True, slots=True)
class Instances:
    """The instances of one part of a dataset, for one method."""

    # (instances, views) start of each view in `Frames.signals`; of many leads at once (instances,
    # views × leads), those of a view next to one another, `ABSENT` where one is missing
    windows: NDArray[np.int64]
    scale: NDArray[np.float32]  # the same shape: mV per step
    # (instances,) row of the first frame in `Frames`: gives patient, recording and label
    frame: NDArray[np.int64]
    lead: NDArray[np.int64]  # (instances,) index of the lead, 0 where an instance has all of them
    leads_at_once: int = 0  # leads of a view, for encoders of many; 0: a view is one lead
    # (instances,) of random crops: how many samples after `windows` one may begin at the latest
    room: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.windows)

    def where(self, kept: NDArray[np.bool_]) -> Instances:
        """Only those instances."""
        own = (self.windows[kept], self.scale[kept], self.frame[kept], self.lead[kept])
        room = None if self.room is None else self.room[kept]
        return Instances(*own, self.leads_at_once, room)

    def in_view(self, view: int = 0) -> NDArray[np.int64]:
        """(instances,) starts of a view; of many leads at once (instances, leads)."""
        return np.ascontiguousarray(self.windows[:, self._columns(view)])

    def scale_in_view(self, view: int = 0) -> NDArray[np.float32]:
        """The scale of `in_view`."""
        return np.ascontiguousarray(self.scale[:, self._columns(view)])

    def _columns(self, view: int) -> int | slice:
        first = view * self.leads_at_once
        return slice(first, first + self.leads_at_once) if self.leads_at_once else view


def instances(
    frames: Frames,
    *,
    of: Literal["lead", "frame"],
    views: Views,
    split: int | None = None,
    leads_at_once: bool = False,
) -> Instances:
    """All instances of a part (or of all): one per lead, or one for all leads of a frame.

    Those with a window that is absent are left out. With `leads_at_once`, for encoders of many
    leads, an instance is of all leads and so is each of its views; only those without any lead in a
    view are left out. Where an encoder of one lead sees random ones (`views.most_leads`), there are
    as many instances of a frame as it has leads, each with the windows of all leads.

    Where `views` are random crops, an instance is a run of consecutive frames of one recording in
    which the same leads are there; all its windows begin with the run, and `room` says how far they
    can be moved. A run of one frame has room for one crop only, which is all of its views.
    """
    if of == "frame" and not views.all_leads and not leads_at_once:
        raise SettingError("an instance of a whole frame needs views of all leads")
    if views.random_crops:
        first, last = ends(runs(frames, of_one_label=False))
        chosen = slice(None) if split is None else frames.split[first] == split
        first, last = first[chosen], last[chosen]
        run = np.repeat(first[:, None], views.segments, axis=1)
    else:
        first = last = _first_frames(frames, views.segments, split)
        run = first[:, None] + np.arange(views.segments)  # (groups, segments)
    starts, scale = frames.starts[run], frames.scale[run]  # (groups, segments, leads)
    n_leads = frames.starts.shape[1]
    place = any_start(frames)
    room = place[last] - place[first] if views.random_crops else None
    if views.most_leads and not leads_at_once:
        starts, scale = np.repeat(starts, n_leads, axis=0), np.repeat(scale, n_leads, axis=0)
        first = np.repeat(first, n_leads)
        room = None if room is None else np.repeat(room, n_leads)
        shape = (len(first), views.segments * n_leads)
        lead = np.zeros(len(first), np.int64)
        leads_at_once = True
    elif leads_at_once or of == "frame":
        shape = (len(first), views.segments * n_leads)
        lead = np.zeros(len(first), np.int64)
    else:
        starts, scale = starts.transpose(0, 2, 1), scale.transpose(0, 2, 1)
        shape = (len(first) * n_leads, views.segments)
        lead = np.tile(np.arange(n_leads), len(first))
        first = np.repeat(first, n_leads)
        room = None if room is None else np.repeat(room, n_leads)
    made = Instances(
        starts.reshape(shape),
        scale.reshape(shape),
        first,
        lead,
        n_leads if leads_at_once else 0,
        room,
    )
    present = made.windows != ABSENT
    if leads_at_once:
        kept = present.reshape(len(made), views.segments, n_leads).any(axis=2).all(axis=1)
    else:
        kept = present.all(axis=1)
    return made if kept.all() else made.where(kept)


def _first_frames(frames: Frames, count: int, split: int | None) -> NDArray[np.int64]:
    """Rows that begin a group of `count` consecutive frames: (0,1), (2,3), … of each recording."""
    rows = np.arange(len(frames.segment))
    ok = frames.segment % count == 0
    for step in range(1, count):
        later = np.minimum(rows + step, len(rows) - 1)
        ok &= frames.recording[later] == frames.recording
        ok &= frames.segment[later] == frames.segment + step
    if split is not None:
        ok &= frames.split == split
    return np.flatnonzero(ok)


def runs(frames: Frames, *, of_one_label: bool) -> NDArray[np.int64]:
    """(frames,) the number of the run that each frame is in.

    A run is a stretch of one recording without gaps, with the same leads all along, and with the
    same labels if it is `of_one_label`.
    """
    if not len(frames):
        return np.zeros(0, np.int64)
    starts, present = frames.starts, frames.present
    # packed frames lie next to one another even where one between them was left out
    same = (frames.recording[1:] == frames.recording[:-1]) & (np.diff(frames.segment) == 1)
    same &= (present[1:] == present[:-1]).all(axis=1) & present[1:].any(axis=1)
    if of_one_label:
        same &= (frames.target[1:] == frames.target[:-1]).all(axis=1)
    scale = np.where(present, frames.scale, 0)
    same &= (scale[1:] == scale[:-1]).all(axis=1)
    step = np.diff(starts, axis=0)
    any_lead = present[1:].argmax(axis=1)
    moved = step[np.arange(len(step)), any_lead][:, None]
    same &= ((step == moved) | ~present[1:]).all(axis=1)
    same &= ((moved > 0) & (moved <= frames.spec.samples))[:, 0]
    return np.concatenate(([0], np.cumsum(~same)))


def room(frames: Frames) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(frames,) how many samples earlier, and later, a frame could begin within its run."""
    number, place = runs(frames, of_one_label=True), any_start(frames)
    first, last = ends(number)
    return place - place[first][number], place[last][number] - place


def with_seconds(frames: Frames, seconds: float) -> Frames:
    """The same recordings in frames of another duration at the same rate.

    A run is covered by as few frames as it needs, spread evenly, which overlap where it is no
    multiple of the duration. Recordings that are shorter are left out, with a warning.
    """
    spec = replace(frames.spec, seconds=seconds, samples=round(seconds * frames.spec.rate))
    if spec.samples == frames.spec.samples:
        return frames
    number, place = runs(frames, of_one_label=True), any_start(frames)
    first, last = ends(number)
    length = place[last] - place[first] + frames.spec.samples
    counts = np.where(length >= spec.samples, -(-length // spec.samples), 0)
    if not counts.any():
        raise SettingError(
            f"no stretch of a recording of {frames.dataset} has {seconds:g} s; give fewer `seconds`"
        )
    row = np.repeat(first, counts)
    step = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    spread = (length - spec.samples)[number[row]] / np.maximum(counts[number[row]] - 1, 1)
    offset = np.rint(step * spread).astype(np.int64)
    recording = frames.recording[row]
    lost = len(np.unique(frames.recording)) - len(np.unique(recording))
    if lost:
        warn(
            f"{lost:,} recordings of {frames.dataset} have no {seconds:g} s without a gap and are "
            "left out"
        )
    _, first_row, own = np.unique(recording, return_index=True, return_inverse=True)
    made = frames.take(row)
    return replace(
        made,
        spec=spec,
        starts=np.where(made.present, made.starts + offset[:, None], ABSENT),
        segment=(np.arange(len(row)) - first_row[own]).astype(np.int32),
    )


def ends(number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and last frame of each run; number: (frames,) of the run."""
    first = np.unique(number, return_index=True)[1]
    return first, np.append(first[1:], len(number)) - 1


def any_start(frames: Frames) -> NDArray[np.int64]:
    """(frames,) where a lead that is there begins; 0 where none is."""
    found = frames.starts[np.arange(len(frames)), frames.present.argmax(axis=1)]
    return np.asarray(np.maximum(found, 0), np.int64)

"""What an encoder takes of recordings: in which leads, cut into which windows; and its vectors.

Windows are encoded in batches, whatever recording they are of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs.errors import CheckpointError, ClocsError, SettingError, UnusableError, warn
from clocs.files import group_runs
from clocs.frames.frames import ABSENT
from clocs.frames.signals import (
    LONG,
    TOGETHER,
    CutWindows,
    bridged,
    cut,
    cut_windows,
    frame_count,
    touched,
    within,
)
from clocs.measurements.check import Finding, examine
from clocs.recording import (
    DERIVED,
    UNNAMED_LEAD,
    FrameSpec,
    Recording,
    canonical_lead,
    check_signal,
    flat_stretches,
    how_to_choose,
    leads_touched,
    noted,
    notes_of,
    unnamed_lead,
)
from clocs.training.checkpoint import Checkpoint, expect_finite, expect_unit
from clocs.training.embed import AT_ONCE, MIN_ROWS, MIN_ROWS_OF_MANY_LEADS, stack
from clocs.training.signals import Signals

_NOTES = 20  # that are printed


@dataclass(frozen=True, eq=False)
class Windows:
    """Frames as an encoder sees them.

    Attributes:
        values: (n, leads, samples) of the leads that it sees at once, in its order; a single one
            where it sees each lead by itself.
        present: (n, leads) which have a signal.
        scale: (n, leads) mV per step of `values`.
    """

    values: NDArray[np.int16]
    present: NDArray[np.bool_]
    scale: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, some: slice | NDArray[np.bool_]) -> Windows:
        return Windows(self.values[some], self.present[some], self.scale[some])


@dataclass(frozen=True)
class InputSpec:
    """What an encoder takes of a recording.

    Attributes:
        checkpoint: The encoder, fitted to the frame.
        frame: What it sees at a time.
        leads: Those to use, of which a recording needs one.
        known: Those that it sees at once, in its order; none where it sees each by itself.
    """

    checkpoint: Checkpoint
    frame: FrameSpec
    leads: tuple[str, ...]
    known: tuple[str, ...]

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        frame: FrameSpec | None = None,
        leads: Sequence[str] | None = None,
    ) -> InputSpec:
        """The encoder's own frame and leads, or others; an encoder of many leads keeps its rate.

        It sees recordings filtered as it learned on them.
        """
        trained = checkpoint.card.frame
        spec = replace(frame or trained, filters=trained.filters)
        if checkpoint.encoder.leads:
            spec = frame_of(checkpoint, spec.seconds)
            checkpoint = checkpoint.for_frame(spec)
        return cls(checkpoint, spec, leads_of(checkpoint, leads), known_leads(checkpoint))

    def windows(
        self,
        leads: Sequence[str],
        values: NDArray[np.int16],
        steps: NDArray[np.float64],
        present: NDArray[np.bool_],
    ) -> Windows:
        """Frames of some leads as the encoder sees them: without those that have no signal.

        Args:
            leads: Those that there are.
            values: (leads, frames, samples).
            steps: (leads, frames) mV per step.
            present: (frames, leads) which have a signal.
        """
        values, scale = values.transpose(1, 0, 2), steps.T.astype(np.float32)
        if not self.known:
            seen = values[present]
            there = np.ones((len(seen), 1), np.bool_)
            return Windows(seen[:, None], there, scale[present][:, None])
        places = [self.known.index(lead) for lead in leads]
        made = np.zeros((len(values), len(self.known), values.shape[-1]), np.int16)
        there = np.zeros(made.shape[:2], np.bool_)
        of_all = np.ones(there.shape, np.float32)
        made[:, places], there[:, places], of_all[:, places] = values, present, scale
        some = there.any(axis=1)
        return Windows(made[some], there[some], of_all[some])

    def frame_of_rows(self, present: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(windows,) the frame of each; present: (frames, leads) which have a signal."""
        return np.flatnonzero(present.any(axis=1)) if self.known else np.nonzero(present)[0]


def frame_of(checkpoint: Checkpoint, seconds: float | None) -> FrameSpec:
    """The checkpoint's frame, or one of this many seconds with the encoder's number of samples.

    For an encoder of many leads, the number of samples is that of its own rate.
    """
    if seconds is None:
        return checkpoint.card.frame
    if not 0 < seconds < math.inf:
        raise SettingError(f"`frame` is {seconds:g}; give the seconds of a frame, such as 5")
    own, samples = checkpoint.card.frame, checkpoint.encoder.samples
    if checkpoint.encoder.leads:
        samples = max(1, round(seconds * own.rate))
    return FrameSpec(seconds, samples, own.filters)


def leads_of(checkpoint: Checkpoint, leads: Sequence[str] | None) -> tuple[str, ...]:
    """Leads by their usual names; those that the encoder was trained on where None.

    Raises:
        SettingError: An encoder of many leads does not know one of them.
    """
    known = known_leads(checkpoint)
    found = tuple(map(canonical_lead, checkpoint.card.leads if leads is None else leads))
    unknown = [lead for lead in found if known and lead not in known]
    if unknown:
        raise SettingError(
            f"the encoder sees {', '.join(known)} at once and knows no {', '.join(unknown)}; "
            f"choose `leads` from these, or, if {unknown[0]} is another name of one, say so with "
            f"`lead_names`, such as {unknown[0]}=II (of a store, with `clocs prepare`)"
        )
    return found


def known_leads(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Those that an encoder of many leads sees at once, in its order; none for the others."""
    return tuple(map(canonical_lead, checkpoint.encoder.leads))


def placed(recording: Recording, known: Sequence[str], wanted: Sequence[str]) -> Recording:
    """The recording as an encoder sees it.

    Limb leads that are wanted and that it lacks are derived from I and II. A single lead without a
    name takes the place of one that has a name; and where an encoder has learned on a lead without
    a name, the only lead of a recording is read in its place.

    Args:
        recording: With any leads.
        known: Those that the encoder sees at once, if it does.
        wanted: Those that are read.
    """
    if len(recording.leads) != 1:
        return recording.with_limb_leads(wanted)
    (own,) = recording.leads
    if own == UNNAMED_LEAD and known and own not in known:
        lead = unnamed_lead()
        note = f"the lead without a name is taken as {lead}"
    elif own != UNNAMED_LEAD and not known and tuple(wanted) == (UNNAMED_LEAD,):
        lead = UNNAMED_LEAD
        note = f"{own} is taken as the lead without a name"
        warn(
            f"the only lead of a recording, {own}, is read as the lead without a name that the "
            "encoder has learned on"
        )
    else:
        return recording
    return replace(
        recording,
        leads=(lead,),
        gaps=tuple(replace(gap, lead=lead) for gap in recording.gaps),
        extra=noted(recording.extra, note),
    )


@dataclass(frozen=True)
class CutRecording:
    """A recording, or a stretch of a long one, and its windows, as an encoder sees them."""

    recording: Recording
    windows: Windows
    present: NDArray[np.bool_]  # (frames, leads wanted) which have a signal
    frame_of: NDArray[np.int64]  # (windows,) the frame of the whole recording that each is of
    reading: dict[str, Any]  # how it was read, by the columns of `READ_SCHEMA`
    first: int  # the first of these frames in the whole recording
    frames: int  # of the whole recording
    seconds: float  # of the whole recording
    findings: tuple[Finding, ...] = ()  # what may be wrong with it; they are among its notes

    def with_findings(self, findings: Sequence[Finding]) -> CutRecording:
        """The same, and what may be wrong with the recording."""
        if not findings:
            return self
        notes = [*self.reading["notes"], *(one.sentence for one in findings)]
        return replace(self, findings=tuple(findings), reading=self.reading | {"notes": notes})


def cut_each(recordings: Iterable[Recording], spec: InputSpec) -> list[CutRecording | ClocsError]:
    """Each recording as an encoder sees it, and what may be wrong with it; or why it has no window.

    They may have equal names, and be of any mixture of rates, leads and lengths.
    """
    examined = [examine(one) for one in recordings]
    own = (placed(one, spec.known, spec.leads) for one, _ in examined)
    made = (one for run in group_runs(own, shape_of, TOGETHER) for one in cut_run(run, spec))
    return [
        one[1] if isinstance(one, tuple) else one.with_findings(found)
        for one, (_, found) in zip(made, examined, strict=True)
    ]


def shape_of(one: Recording | tuple[str, ClocsError]) -> object:
    """Recordings of equal shape are cut together, unless they are long."""
    if not isinstance(one, Recording):
        return None
    return one.rate, one.samples, one.leads, object() if one.samples > LONG else ""


def cut_run(
    run: Sequence[Recording | tuple[str, ClocsError]], spec: InputSpec
) -> list[CutRecording | tuple[str, ClocsError]]:
    """The windows of each recording of one shape; or its name and why it has none."""
    made: list[CutRecording | tuple[str, ClocsError]] = []
    usable: list[tuple[int, Recording, Recording, NDArray[np.bool_]]] = []
    for place, one in enumerate(run):
        failed = one if isinstance(one, tuple) else (one.id, SettingError("it is not cut yet"))
        if isinstance(one, Recording):
            try:
                expect_unit(spec.checkpoint, one.unit, one.id)
                usable.append((place, one, *with_leads(one, spec.frame, spec.leads)))
            except ClocsError as error:
                failed = one.id, error
        made.append(failed)
    if not usable:
        return made
    cut_together = cut_recordings([own for _, _, own, _ in usable], spec.frame)
    for (place, whole, own, there), each, steps in zip(usable, *cut_together, strict=True):
        present = np.zeros((len(there), len(spec.leads)), np.bool_)
        present[:, [spec.leads.index(lead) for lead in own.leads]] = there
        made[place] = CutRecording(
            recording=whole,
            windows=spec.windows(own.leads, each, steps, there),
            present=present,
            frame_of=spec.frame_of_rows(present),
            reading=_reading_of(whole, spec.leads, np.asarray(present.any(axis=0))),
            first=0,
            frames=len(there),
            seconds=whole.seconds,
        )
    return made


def cut_recordings(own: Sequence[Recording], spec: FrameSpec) -> CutWindows:
    """`cut_windows` of recordings of one rate and length, their gaps bridged."""
    return cut_windows(
        np.stack([bridged(one.digital, one.leads, one.gaps) for one in own]),
        np.stack([one.gain for one in own]),
        np.stack([one.baseline for one in own]).astype(np.int64),
        own[0].rate,
        int(frame_count(own[0].samples, own[0].rate, spec)),
        spec,
        "recording",
    )


def with_leads(
    recording: Recording, spec: FrameSpec, leads: Sequence[str]
) -> tuple[Recording, NDArray[np.bool_]]:
    """The recording with those of the leads that it has, and (frames, its leads) `present_in`.

    Raises:
        ClocsError: It is of no use, with the reason.
    """
    has = [lead for lead in leads if lead in recording.leads]
    if not has:
        raise SettingError(
            f"{recording.id} has none of the leads {', '.join(leads)}; "
            f"{how_to_choose(recording.leads)}"
        )
    own = recording.select(has)
    check_signal(own, frame=spec, known_leads=own.leads)
    present = present_in(own, spec)
    if not present.any():
        raise UnusableError(
            "flat",
            f"{recording.id} has no frame of {spec.seconds:g} s with a signal: each is flat or has "
            "a gap",
        )
    return own, present


def present_in(recording: Recording, spec: FrameSpec) -> NDArray[np.bool_]:
    """(frames, leads) whether a frame has a signal in a lead: neither flat nor with a gap."""
    start = cut([recording.samples], [recording.rate], spec).start
    present = np.ones((len(start), len(recording.leads)), np.bool_)
    derived = recording.extra.get(DERIVED, "").split(", ")
    recorded = [lead for lead in recording.leads if lead not in derived]
    for stretches, without in ((recording.gaps, touched), (flat_stretches(recording), within)):
        for one in stretches:
            lost = without(start, recording.rate, spec, one)
            for lead in leads_touched(one.lead, recorded):
                if lead in recording.leads:
                    present[:, recording.leads.index(lead)] &= ~lost
    return present


def _reading_of(
    recording: Recording, wanted: Sequence[str], there: NDArray[np.bool_]
) -> dict[str, Any]:
    """How a recording was read, by the columns of `READ_SCHEMA`.

    there: (wanted,) which leads have a signal.
    """
    used = [lead for lead, has in zip(wanted, there, strict=True) if has]
    derived = recording.extra.get(DERIVED, "").split(", ")
    return {
        "rate": recording.rate,
        "unit": recording.unit,
        "leads_used": used,
        "leads_missing": [lead for lead in wanted if lead not in used],
        "leads_derived": [lead for lead in used if lead in derived],
        "notes": list(notes_of(recording.extra)),
    }


def joined_reading(reading: dict[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """How a recording was read, with a later stretch of it."""
    both = {
        name: list(dict.fromkeys((*reading[name], *later[name])))
        for name in ("leads_used", "leads_derived", "notes")
    }
    missing = [lead for lead in reading["leads_missing"] if lead not in both["leads_used"]]
    return reading | both | {"leads_missing": missing}


def counted_notes(rows: pl.DataFrame) -> dict[str, int]:
    """Each note of `READ_SCHEMA`, and of how many recordings (or patients) it is."""
    if "notes" not in rows.columns:
        return {}
    ids = [name for name in ("dataset", "file", "patient", "recording") if name in rows.columns]
    each = rows.select(*ids, "notes").unique(ids).explode("notes").drop_nulls("notes")
    return dict(each["notes"].value_counts(sort=True).iter_rows())


def note_lines(notes: Mapping[str, int], what: str) -> list[str]:
    """Of `counted_notes`, the most frequent ones as sentences, and how many more there are."""
    lines = [f"Note ({count:,} {what}): {note}." for note, count in notes.items()]
    more = f"… and {len(lines) - _NOTES:,} more notes; the column notes has all."
    return [*lines[:_NOTES], more] if len(lines) > _NOTES else lines


def encoded(
    checkpoint: Checkpoint, windows: Iterable[Windows], device: torch.device | str = "cpu"
) -> Iterator[NDArray[np.float32]]:
    """Pieces of windows -> pieces of (m, dim) vectors in the same order."""
    return (z[0] for _, z in encoded_by_all([checkpoint], windows, device))


@torch.no_grad()
def encoded_by_all(
    checkpoints: Sequence[Checkpoint],
    windows: Iterable[Windows],
    device: torch.device | str = "cpu",
) -> Iterator[tuple[Windows, NDArray[np.float32]]]:
    """Pieces of windows -> batches of them with their (members, m, dim) vectors, in order.

    All members see the same windows, each as its card says, and encode them at once.
    """
    encoder = checkpoints[0].encoder
    samples, many = encoder.samples, len(encoder.leads)
    one = checkpoints[0]
    of_all = (one.weights, one.buffers) if len(checkpoints) == 1 else stack(checkpoints)
    weights, buffers = ({k: v.to(device) for k, v in tensors.items()} for tensors in of_all)
    most = max(MIN_ROWS, AT_ONCE // len(checkpoints) // max(1, many))
    for batch in _batches(windows, most):
        if batch.values.shape[-1] != samples:
            raise CheckpointError(
                f"this encoder takes frames of {samples} samples, not {batch.values.shape[-1]}"
            )
        padding = max(0, (MIN_ROWS_OF_MANY_LEADS if many else MIN_ROWS) - len(batch))
        values, scales = batch.values, batch.scale
        if padding:
            values = np.pad(values, ((0, padding), (0, 0), (0, 0)))
            scales = np.pad(scales, ((0, padding), (0, 0)))
        flat = torch.from_numpy(values.reshape(-1)).to(device)
        starts = torch.arange(flat.numel() // samples, device=flat.device) * samples
        if many:
            there = np.pad(batch.present, ((0, padding), (0, 0)), constant_values=True)
            starts = starts.view(there.shape)
            starts = torch.where(torch.from_numpy(there).to(flat.device), starts, ABSENT)
            scales = np.where(there, scales, np.nan)
        scale = torch.from_numpy(scales).to(flat.device).view(starts.shape)
        x = Signals(flat, samples).as_input(one.card, starts, scale)
        x = x.expand(len(checkpoints), *x.shape[-3 if many else -2 :])
        z = expect_finite(encoder.encode(weights, buffers, x)[:, : len(batch)])
        yield batch, z.cpu().numpy()


def _batches(windows: Iterable[Windows], most: int) -> Iterator[Windows]:
    """Batches of `most` windows, the last one smaller."""
    waiting: list[Windows] = []
    count = 0
    for piece in windows:
        waiting.append(piece)
        count += len(piece)
        while count >= most:
            whole = _joined(waiting)
            yield whole[:most]
            waiting, count = [whole[most:]], count - most
    if count:
        yield _joined(waiting)


def _joined(pieces: list[Windows]) -> Windows:
    if len(pieces) == 1:
        return pieces[0]
    each = zip(*((one.values, one.present, one.scale) for one in pieces), strict=True)
    return Windows(*(np.concatenate(arrays) for arrays in each))

"""What an encoder takes of recordings, and streamed encoding: windows -> batches -> vectors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import CheckpointError, ClocsWarning, SettingError
from clocs.frames.frames import ABSENT
from clocs.recording import (
    UNNAMED_LEAD,
    FrameSpec,
    Recording,
    canonical_lead,
    noted,
    unnamed_lead,
)
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import AT_ONCE, MIN_ROWS, MIN_ROWS_OF_MANY_LEADS, stack
from clocs.training.signals import EncoderInput, Signals


@dataclass(frozen=True, eq=False)
class Windows:
    """Frames as an encoder sees them.

    Attributes:
        values: (n, leads, samples) of the leads that it sees at once, in its order; a single one
            where it sees each lead by itself.
        present: (n, leads) which have a signal.
    """

    values: NDArray[np.int16]
    present: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, some: slice | NDArray[np.bool_]) -> Windows:
        return Windows(self.values[some], self.present[some])


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
        self, leads: Sequence[str], values: NDArray[np.int16], present: NDArray[np.bool_]
    ) -> Windows:
        """Frames of some leads as the encoder sees them: without those that have no signal.

        Args:
            leads: Those that there are.
            values: (frames, leads, samples).
            present: (frames, leads) which have a signal.
        """
        if not self.known:
            seen = values[present]
            return Windows(seen[:, None], np.ones((len(seen), 1), np.bool_))
        places = [self.known.index(lead) for lead in leads]
        made = np.zeros((len(values), len(self.known), values.shape[-1]), np.int16)
        there = np.zeros(made.shape[:2], np.bool_)
        made[:, places], there[:, places] = values, present
        some = there.any(axis=1)
        return Windows(made[some], there[some])

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
        warnings.warn(
            f"the only lead of a recording, {own}, is read as the lead without a name that the "
            "encoder has learned on",
            ClocsWarning,
            stacklevel=3,
        )
    else:
        return recording
    return replace(
        recording,
        leads=(lead,),
        gaps=tuple(replace(gap, lead=lead) for gap in recording.gaps),
        extra=noted(recording.extra, note),
    )


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
    if any(checkpoint.card.in_mv for checkpoint in checkpoints):
        raise CheckpointError(
            "this encoder takes signals in mV, which only `clocs evaluate` gives it; use one that "
            "was trained on normalized frames"
        )
    one = checkpoints[0]
    of_all = (one.weights, one.buffers) if len(checkpoints) == 1 else stack(checkpoints)
    weights, buffers = ({k: v.to(device) for k, v in tensors.items()} for tensors in of_all)
    as_input = EncoderInput.of([one.card for one in checkpoints], device)
    most = max(MIN_ROWS, AT_ONCE // len(checkpoints) // max(1, many))
    for batch in _batches(windows, most):
        if batch.values.shape[-1] != samples:
            raise CheckpointError(
                f"this encoder takes frames of {samples} samples, not {batch.values.shape[-1]}"
            )
        padding = max(0, (MIN_ROWS_OF_MANY_LEADS if many else MIN_ROWS) - len(batch))
        values = np.pad(batch.values, ((0, padding), (0, 0), (0, 0))) if padding else batch.values
        flat = torch.from_numpy(values.reshape(-1)).to(device)
        starts = torch.arange(flat.numel() // samples, device=flat.device) * samples
        if many:
            there = np.pad(batch.present, ((0, padding), (0, 0)), constant_values=True)
            starts = starts.view(there.shape)
            starts = torch.where(torch.from_numpy(there).to(flat.device), starts, ABSENT)
        x = as_input(Signals(flat, samples), starts, torch.ones(()))
        x = x.expand(len(checkpoints), *x.shape[-3 if many else -2 :])
        z: NDArray[np.float32] = encoder.encode(weights, buffers, x)[:, : len(batch)].cpu().numpy()
        if not np.isfinite(z).all():
            raise CheckpointError(
                "this encoder gives vectors that are not finite; its training diverged"
            )
        yield batch, z


def _batches(windows: Iterable[Windows], most: int) -> Iterator[Windows]:
    """Batches of `most` windows, the last one smaller."""
    waiting: list[Windows] = []
    count = 0
    for piece in windows:
        start = 0
        while start < len(piece):
            waiting.append(piece[start : start + most - count])
            start += len(waiting[-1])
            count += len(waiting[-1])
            if count == most:
                yield _joined(waiting)
                waiting, count = [], 0
    if count:
        yield _joined(waiting)


def _joined(pieces: list[Windows]) -> Windows:
    if len(pieces) == 1:
        return pieces[0]
    parts = ((one.values for one in pieces), (one.present for one in pieces))
    return Windows(*(np.concatenate(list(part)) for part in parts))

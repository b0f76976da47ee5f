"""One vector per frame by any encoder or control, and what a linear readout finds in vectors.

For analyses that look at embeddings themselves. An encoder of many leads gives one vector per
frame. Those of an encoder of single leads are put side by side, lead by lead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import Resampling, clipped_interval, macro_auc_draws
from clocs.evaluation.logistic import LogisticRegression, fit_logistic
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS
from clocs.frames.views import Views, instances
from clocs.patients.controls import CONTROLS
from clocs.training.checkpoint import Checkpoint, check_no_leak, copies_of_seen
from clocs.training.embed import embed_instances

_AT_ONCE = 1024  # frames that a control sees together


@dataclass(frozen=True, eq=False)
class FrameVectors:
    """Vectors of frames, halves or recordings, one row each.

    Attributes:
        vectors: (rows, dim).
        patient: (rows,) index into `patient_ids`.
        recording: (rows,) number of the recording.
        segment: (rows,) position of a frame in its recording.
        split: (rows,) 0 train, 1 validation, 2 test.
        target: (rows, classes) 1 where the label holds; zeros where none is known.
        dataset: Its name.
        labels: Class names.
        multilabel: Whether a row can have several.
        patient_ids: Names of patients.
    """

    vectors: NDArray[np.float32]
    patient: NDArray[np.integer]
    recording: NDArray[np.integer]
    segment: NDArray[np.integer]
    split: NDArray[np.integer]
    target: NDArray[np.uint8]
    dataset: str
    labels: tuple[str, ...]
    multilabel: bool
    patient_ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.vectors)

    def where(self, kept: NDArray[Any]) -> FrameVectors:
        """Only these rows: a mask, or their numbers."""
        names = ("vectors", "patient", "recording", "segment", "split", "target")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})

    def part(self, name: str) -> FrameVectors:
        """The rows of 'train', 'validation' or 'test'."""
        return self.where(np.flatnonzero(self.split == PARTS.index(name)))

    def labeled(self) -> FrameVectors:
        """The rows with a label."""
        return self.where(np.flatnonzero(self.target.any(axis=1)))

    def by_recording(self) -> FrameVectors:
        """The mean of the frames of each recording; a label counts where half of them have it."""
        _, first, place = np.unique(self.recording, return_index=True, return_inverse=True)
        mean, share = (_means(x, place, len(first)) for x in (self.vectors, self.target))
        rows = self.where(first)
        return replace(
            rows, vectors=mean.astype(np.float32), target=(share >= 0.5).astype(np.uint8)
        )

    def halves(self) -> tuple[FrameVectors, FrameVectors]:
        """First and second halves of recordings, row by row the same recording.

        A frame in the middle belongs to neither; recordings of a single frame are left out.
        """
        order = np.lexsort((self.segment, self.recording))
        own = self.where(order)
        new = np.flatnonzero(np.diff(own.recording, prepend=-1))
        count = np.diff(np.append(new, len(own)))
        at, total = np.arange(len(own)) - np.repeat(new, count), np.repeat(count, count)
        half = total // 2
        first = own.where(at < half).by_recording()
        second = own.where((at >= total - half) & (half > 0)).by_recording()
        return first, second


def embed_frames(
    encoder: Checkpoint | str,
    frames: Frames,
    *,
    split: str | None = None,
    device: torch.device | str = "cpu",
) -> FrameVectors:
    """One vector per frame; where a frame lacks a single lead, the mean of the others stands in.

    Args:
        encoder: An encoder of single leads, or of many; or the name of a control.
        frames: Cut as the encoder expects them.
        split: 'train', 'validation' or 'test'; None for all.
        device: Where to compute.
    """
    part = None if split is None else PARTS.index(split)
    if isinstance(encoder, str):
        return _of_frames(_control(encoder, frames), frames, np.arange(len(frames)))
    checkpoint, leads = encoder, encoder.encoder.leads
    if leads:
        checkpoint, frames = checkpoint.for_frame(frames.spec), frames.for_leads(leads)
    rows = instances(frames, of="lead", views=Views(), split=part, leads_at_once=bool(leads))
    if not len(rows):
        raise SettingError(f"{frames.dataset} has no frames of the split {split!r}; give another")
    z = embed_instances([checkpoint], frames, rows, device)[0].float().cpu().numpy()
    frame = rows.frame
    if not leads:
        frame, place = np.unique(rows.frame, return_inverse=True)
        mean = _means(z, place, len(frame)).astype(np.float32)
        table = np.repeat(mean[:, None], len(frames.leads), axis=1)
        table[place, rows.lead] = z
        z = table.reshape(len(frame), -1)
    return _of_frames(z, frames, frame)


def _control(name: str, frames: Frames) -> NDArray[np.float32]:
    """(frames, dim) by a control; a lead that a frame lacks counts as flat."""
    made = []
    for start in range(0, len(frames), _AT_ONCE):
        rows = np.arange(start, min(start + _AT_ONCE, len(frames)))
        leads = [frames.windows(rows, lead) for lead in range(len(frames.leads))]
        x = np.nan_to_num(np.stack(leads, axis=1))
        made.append(CONTROLS[name](x, frames.spec.rate).astype(np.float32))
    return np.concatenate(made)


def _of_frames(
    vectors: NDArray[np.float32], frames: Frames, frame: NDArray[np.integer]
) -> FrameVectors:
    """vectors: (n, dim) of these frames."""
    return FrameVectors(
        vectors=vectors,
        patient=frames.patient[frame],
        recording=frames.recording[frame],
        segment=frames.segment[frame],
        split=frames.split[frame],
        target=frames.target[frame],
        dataset=frames.dataset,
        labels=tuple(frames.labels),
        multilabel=frames.multilabel,
        patient_ids=frames.patient_ids,
    )


def without_copies(found: FrameVectors, frames: Frames) -> FrameVectors:
    """Only the first of recordings with the same samples, which some datasets hold twice."""
    recordings = np.unique(found.recording)
    first = np.unique(frames.digests[recordings], return_index=True)[1]
    return found.where(np.isin(found.recording, recordings[first]))


@dataclass(frozen=True)
class Readouts:
    """Logistic regressions per recording, one per encoder; L2 chosen on validation patients."""

    checkpoints: Sequence[Checkpoint]
    fitted: Sequence[LogisticRegression]
    multilabel: bool
    device: torch.device | str

    @classmethod
    def fit(
        cls,
        checkpoints: Sequence[Checkpoint],
        frames: Frames,
        device: torch.device | str = "cpu",
    ) -> Readouts:
        """Learned on the training patients of some frames, whose test patients stay unseen."""
        fitted = []
        for one in checkpoints:
            check_no_leak(one, frames)
            rows = [
                embed_frames(one, frames, split=split, device=device).by_recording().labeled()
                for split in PARTS[:2]
            ]
            if not all(map(len, rows)):
                raise SettingError(
                    f"{frames.dataset} has no labels in its training or validation part; a "
                    "readout needs both"
                )
            x = [torch.from_numpy(np.ascontiguousarray(part.vectors)).to(device) for part in rows]
            y = [torch.from_numpy(np.ascontiguousarray(part.target)).to(device) for part in rows]
            several = frames.multilabel
            fitted.append(
                fit_logistic(x[0][None], y[0][None], x[1][None], y[1], multilabel=several)
            )
        return cls(checkpoints, fitted, frames.multilabel, device)

    def scores(
        self, frames: Frames, known: NDArray[np.uint64] | tuple[()] = ()
    ) -> tuple[FrameVectors, NDArray[np.float64]]:
        """Labeled test recordings, and (seeds, recordings, classes) the chances of the classes.

        Without copies of what was trained on, and without the contents `known`.
        """
        copies = copies_of_seen(self.checkpoints, frames) | np.isin(frames.digests, known)
        chances = []
        for one, own in zip(self.checkpoints, self.fitted, strict=True):
            found = embed_frames(one, frames, split="test", device=self.device)
            rows = found.by_recording().labeled()
            rows = rows.where(~copies[rows.recording])
            x = torch.from_numpy(np.ascontiguousarray(rows.vectors)).to(self.device)
            logits = own.logits(x[None])[0]
            chances.append(logits.sigmoid() if self.multilabel else logits.softmax(dim=-1))
        return rows, torch.stack(chances).double().cpu().numpy()


def auc_draws(
    scores: NDArray[np.float64],
    rows: FrameVectors,
    *,
    seeds: Sequence[int] = (0,),
    resamples: int = 2000,
) -> dict[str, Any]:
    """The macro AUC of scores, (seeds, rows, classes), the mean over seeds; with its draws."""
    each = [metrics.auc_per_class(own, rows.target) for own in scores]
    names, patient = np.unique(rows.patient, return_inverse=True)
    ids = [rows.patient_ids[number] for number in names]
    plan = Resampling.of(rows.dataset, ids, seeds, resamples=resamples)
    per_class = [None if np.isnan(own) else float(own) for own in np.mean(each, axis=0)]
    return {
        "auc": float(np.mean([metrics.macro(own) for own in each])),
        "auc_per_class": dict(zip(rows.labels, per_class, strict=True)),
        "draws": macro_auc_draws(scores, rows.target, patient, plan)[0],
    }


def with_interval(found: dict[str, Any]) -> dict[str, Any]:
    """Draws replaced by the interval that they span."""
    facts = {name: value for name, value in found.items() if name != "draws"}
    return facts | {"ci95": clipped_interval(found["draws"])}


def about(encoder: Checkpoint | str) -> dict[str, Any]:
    """Facts about an encoder or a control, for results."""
    if isinstance(encoder, str):
        return {"method": encoder, "seed": 0, "trained_on": None, "encoder": {"name": encoder}}
    card = encoder.card
    return {
        "method": card.method,
        "seed": card.seed,
        "trained_on": card.dataset,
        "fingerprint": encoder.fingerprint,
        "encoder": card.encoder,
        "frame": card.frame.to_dict(),
    }


def _means(values: NDArray[Any], place: NDArray[np.integer], count: int) -> NDArray[np.float64]:
    """values: (rows, columns) -> (count, columns), the mean of the rows of each place."""
    order = np.argsort(place, kind="stable")
    first = np.searchsorted(place[order], np.arange(count))
    sums = np.add.reduceat(values[order].astype(np.float64), first, axis=0)
    return np.asarray(sums / np.bincount(place, minlength=count)[:, None])

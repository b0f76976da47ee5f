"""`clocs.explain`: which part of an ECG drove a classifier's prediction.

A straight line takes the place of a tenth of a second of one lead, and what the label's logit falls
by is what that tenth of a second speaks for the label. `python benchmarks/explain.py` compares it
with integrated gradients.

An encoder of many leads sees each beat in all of them, so that one lead less changes little. There
a stretch of time is a straight line in all leads at once, and what it speaks for the label is shown
in each lead as strongly as the lead matters: by what the logit falls where the lead is missing.
`python benchmarks/explain_many_leads.py` compares it with other ways.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.errors import SettingError, suggestion
from clocs.formats.read import read
from clocs.models.classifier import Classifier, as_classifier, probability_column
from clocs.models.predict import predict_recordings
from clocs.patients.encode import cut_recordings, known_leads, leads_of, placed, with_leads
from clocs.recording import Recording, flat_stretches
from clocs.store.manifest import MANIFEST
from clocs.store.store import open_store
from clocs.training.checkpoint import Checkpoint

SHOWN = 10.0  # seconds that are explained of a longer recording
LONGEST = 600.0  # seconds that can be explained at once
CELL = 0.1  # seconds that a straight line replaces at a time
DELETED = 0.05  # share of all cells, those that speak most for the label, of `logit_without`
_AT_ONCE = 512  # windows of a lead encoded at a time


@dataclass(frozen=True, eq=False)
class Explanation:
    """How much each moment of each lead speaks for a label, or against it.

    Attributes:
        recording: All of what was given.
        label: Which is explained.
        probability: Of the label, by the whole recording.
        probabilities: Of all labels.
        leads: That the classifier saw, which are the rows of `attribution`. A lead that is flat
            throughout is absent.
        start: Second of the recording at which the explained stretch begins.
        attribution: (leads, samples) at the recording's rate: by how much the logit falls where
            0.1 s around a sample are a straight line, between such stretches interpolated; negative
            where it rises, nan where the classifier saw nothing. Of an encoder of many leads, 0.1 s
            of all leads at once, times the weight of the lead: 1 for the one without which the
            logit falls most, 0 for those without which it does not.
        logit: Of the label, by the frames of the stretch; of exclusive classes, minus the mean of
            all.
        logit_without: The same where the twentieth of the stretch that speaks most for the label is
            replaced by straight lines.
        abstained: Why the classifier predicts nothing for the recording; None where it does.
    """

    recording: Recording
    label: str
    probability: float
    probabilities: dict[str, float]
    leads: tuple[str, ...]
    start: float
    attribution: NDArray[np.float32]
    logit: float
    logit_without: float
    abstained: str | None = None

    @property
    def seconds(self) -> float:
        """Length of the explained stretch."""
        return float(self.attribution.shape[1] / self.recording.rate)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where the classifier saw nothing."""
        names = (
            *("label", "probability", "probabilities", "leads", "start", "seconds"),
            *("logit", "logit_without", "abstained"),
        )
        by_lead = {
            lead: [None if math.isnan(v) else float(f"{v:.4g}") for v in values]
            for lead, values in zip(self.leads, self.attribution.tolist(), strict=True)
        }
        return {
            "recording": self.recording.id,
            **{name: getattr(self, name) for name in names},
            "rate": self.recording.rate,
            "attribution": by_lead,
        }


def explain(
    model: Classifier | Path | str,
    source: Recording | Path | str,
    label: str | None = None,
    *,
    start: float | None = None,
    seconds: float = SHOWN,
    recording: str | None = None,
    rate: float | None = None,
    unit: str | None = None,
    lead_names: Mapping[str, str] | None = None,
) -> Explanation:
    """Find the part of an ECG that drove a prediction.

    Args:
        model: A classifier, its file, or the name of a shipped one.
        source: A recording, a file of one, or a store.
        label: What to explain; the most probable one by default.
        start: Second at which the stretch to explain begins. By default everything is explained, or
            the part of a longer recording that speaks most for the label.
        seconds: Length of the stretch.
        recording: Which one of a store, or of a file that holds several.
        rate: Samples per second, in Hz, of a file that does not give it.
        unit: Of a file that does not give it.
        lead_names: Standard leads by the names that the file gives them, where those are unusual.

    Raises:
        ClocsError: The recording has none of the classifier's leads or is shorter than its frame,
            or there is no such label or stretch.
    """
    classifier = as_classifier(model)
    if isinstance(source, Recording):
        one = source
    elif (Path(source) / MANIFEST).is_file():
        if recording is None:
            raise SettingError(f"{source} is a store; choose one of its recordings as `recording`")
        one = open_store(source).recording(recording)
    else:
        one = read(source, rate=rate, unit=unit, lead_names=lead_names, part=recording)
    return Explainer(classifier)(one, label, start=start, seconds=seconds)


class Explainer:
    """A classifier with and without parts of what it sees."""

    def __init__(self, classifier: Classifier) -> None:
        self.card = classifier.card
        self.classifier = classifier
        self.checkpoint = classifier.encoders[0]
        with warnings.catch_warnings():  # of filters: what it is given here is filtered
            warnings.simplefilter("ignore")
            self.module = classifier.to_module()

    @torch.no_grad()
    def __call__(
        self,
        recording: Recording,
        label: str | None = None,
        *,
        start: float | None = None,
        seconds: float = SHOWN,
    ) -> Explanation:
        """Arguments as of `explain`."""
        if label is not None and label not in self.card.labels:
            raise SettingError(
                f"{self.card.name} knows no label {label!r}; "
                f"{suggestion(label, self.card.labels, 'choose a `label` from')}"
            )
        if start is not None and not math.isfinite(start):
            raise SettingError(f"`start` is {start:g}; give a number of seconds")
        if not 0 < seconds <= LONGEST:
            raise SettingError(f"`seconds` is {seconds:g}; give more than 0, at most {LONGEST:g}")
        known, spec = known_leads(self.checkpoint), self.checkpoint.card.frame
        rows = known or leads_of(self.checkpoint, None)
        recording = placed(recording, known, rows)
        x = torch.from_numpy(module_input(self.checkpoint, recording))
        there = (~x.isnan()).any(dim=1).numpy()  # neither absent nor flat throughout
        own_rows = rows if known else [lead for lead in rows if lead in recording.leads]
        leads = tuple(lead for lead, seen in zip(own_rows, there, strict=True) if seen)
        table = predict_recordings(self.classifier, [recording])
        p = table.select(map(probability_column, self.card.labels)).row(0)
        sums, counts = self.frame_logits(x)
        k = self._most_probable(p) if label is None else self.card.labels.index(label)
        first, last = _chosen_frames(
            self.logit_of(k, sums).numpy(), counts.numpy(), spec.seconds, start, seconds
        )
        part = x[:, first * spec.samples : last * spec.samples]
        effects = self.effects(part, k)
        begin = first * spec.seconds
        whole = recording.seconds <= seconds + 1 / recording.rate and start is None
        end = recording.seconds if whole else min(last * spec.seconds, recording.seconds)
        at = np.arange(*(round(second * recording.rate) for second in (begin, end)))
        found = self._at(effects[there], at / recording.rate - begin)
        for flat in flat_stretches(recording.select(leads)):
            found[leads.index(flat.lead), (at >= flat.start) & (at < flat.stop)] = np.nan
        low, high = _stretch(
            found, recording.rate, None if start is None else start - begin, seconds
        )
        logits = [self.logit(one, k) for one in (part, self.deleted(part, effects))]
        return Explanation(
            recording=recording,
            label=self.card.labels[k],
            probability=p[k],
            probabilities=dict(zip(self.card.labels, p, strict=True)),
            leads=leads,
            start=float(at[low]) / recording.rate,
            attribution=found[:, low:high],
            logit=logits[0],
            logit_without=logits[1],
            abstained=table["abstained"][0],
        )

    def _at(
        self, effects: NDArray[np.float32], seconds: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        """(leads, cells) -> (leads, times), interpolated; nan beyond the last cell."""
        edges, samples = np.array(self.edges), self.module.samples
        frames = effects.shape[1] // (len(edges) - 1)
        middles = (edges[:-1] + edges[1:]) / 2 + samples * np.arange(frames)[:, None]
        known = middles.ravel() / self.module.rate
        made = np.stack([np.interp(seconds, known, row) for row in effects]).astype(np.float32)
        made[:, seconds > frames * samples / self.module.rate] = np.nan
        return made

    def _most_probable(self, p: Sequence[float]) -> int:
        """Of the labels at or above their thresholds, or of all where none is."""
        found = [i for i, t in enumerate(self.card.thresholds) if t is not None and p[i] >= t]
        return max(found or range(len(p)), key=p.__getitem__)

    def logit_of(self, k: int, logits: Tensor) -> Tensor:
        """(n, classes) -> (n,): that of class k; what all exclusive classes share says nothing."""
        return logits[:, k] if self.card.multilabel else logits[:, k] - logits.mean(dim=1)

    def frame_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(leads, any) in mV -> (frames, classes) sums of the rows' logits, (frames,) rows."""
        samples = self.module.samples
        sums, counts = [], []
        for part in x.split(max(1, _AT_ONCE // len(x)) * samples, dim=1):
            frames = part.shape[1] // samples
            rows, there = (one[0] for one in self.module.rows(part[None]))
            rows = self.module.network.logits(rows)
            rows = torch.where(there[:, None], rows, 0).view(-1, frames, rows.shape[-1])
            sums.append(rows.sum(dim=0))
            counts.append(there.view(-1, frames).sum(dim=0))
        return torch.cat(sums), torch.cat(counts)

    def logit(self, x: Tensor, k: int) -> float:
        """Of class k, by (leads, any) in mV."""
        return float(self.logit_of(k, self.module.logits(x[None])))

    @property
    def edges(self) -> list[int]:
        """Samples of a frame at which its cells begin, and where the last one ends."""
        samples, width = self.module.samples, max(1, round(CELL * self.module.rate))
        return [*range(0, samples, width), samples]

    def effects(self, x: Tensor, k: int) -> NDArray[np.float32]:
        """(leads, any) in mV -> (leads, frames · cells): what each speaks for class k.

        By what the logit falls without it; nan where there is no signal.
        """
        if not self.module.leads:
            return self.effects_of_cells(x, k)
        over_time, by_lead = self.effects_over_time(x, k), self.effects_of_leads(x, k)
        greatest = np.nanmax(by_lead)
        weight = (
            by_lead.clip(min=0) / greatest
            if greatest > 0
            else np.where(by_lead > -np.inf, 1, by_lead)
        )
        gone = x.view(len(x), -1, self.module.samples).isnan().any(dim=-1).numpy()
        made = weight[:, None] * over_time
        made[np.repeat(gone, len(self.edges) - 1, axis=1)] = np.nan
        return made.astype(np.float32)

    def effects_of_cells(self, x: Tensor, k: int) -> NDArray[np.float32]:
        """(leads, any) in mV -> (leads, frames · cells): by what the logit falls without each.

        nan where there is no signal.
        """
        frames = x.view(len(x), -1, self.module.samples)
        made = x.new_full((*frames.shape[:2], len(self.edges) - 1), torch.nan)
        views = self.module.rows(x[None])
        for lead, number in (~frames.isnan().any(dim=-1)).nonzero().tolist():
            at_once = frames[:, number], lead, number
            alone = frames[lead, number][None], 0, lead * frames.shape[1] + number
            seen, own, view = at_once if self.module.leads else alone
            made[lead, number] = self._falls(*views, view, self._without_each(seen, own), k)
        return made.flatten(1).numpy()

    def effects_over_time(self, x: Tensor, k: int) -> NDArray[np.float32]:
        """(leads, any) in mV -> (frames · cells,): as `effects_of_cells`, of all leads at once."""
        frames = x.view(len(x), -1, self.module.samples)
        made = x.new_full((frames.shape[1], len(self.edges) - 1), torch.nan)
        z, there = self.module.rows(x[None])
        for number in there[0].nonzero()[:, 0].tolist():
            without = self._without_each(frames[:, number], ...)
            made[number] = self._falls(z, there, number, without, k)
        return made.flatten().numpy()

    def effects_of_leads(self, x: Tensor, k: int) -> NDArray[np.float32]:
        """(leads, any) in mV -> (leads,): by what the logit falls where each is missing.

        A lead stays in frames that have no other; nan of leads that are missing.
        """
        frames = x.view(len(x), -1, self.module.samples)
        there = ~frames.isnan().any(dim=-1)
        made, whole = torch.where(there.any(dim=1), 0.0, torch.nan), self.logit(x, k)
        for lead in there.any(dim=1).nonzero()[:, 0].tolist():
            without = frames.clone()
            without[lead, there.sum(dim=0) > 1] = torch.nan
            made[lead] = whole - self.logit(without.flatten(1), k)
        return made.numpy()

    def _falls(self, z: Tensor, there: Tensor, view: int, without: Tensor, k: int) -> Tensor:
        """By what the logit falls where each of some signals is in place of one view.

        z: (1, views, dim), there: (1, views); without: (n, leads, samples) -> (n,).
        """
        some = without.split(max(1, _AT_ONCE // without.shape[1]))
        changed = z.repeat(len(without), 1, 1)
        changed[:, view] = torch.cat([self.module.rows(one)[0][:, 0] for one in some])
        logits = self.module.of_views(changed, there.expand(len(without), -1))
        return self.logit_of(k, self.module.of_views(z, there)) - self.logit_of(k, logits)

    def deleted(self, x: Tensor, effects: NDArray[np.float32], share: float = DELETED) -> Tensor:
        """(leads, any) in mV with straight lines in the cells with the greatest effects.

        For encoders of many leads, in all leads at once.
        """
        if self.module.leads:
            with warnings.catch_warnings():  # of frames without any lead
                warnings.simplefilter("ignore", RuntimeWarning)
                effects = np.nanmean(effects, axis=0, keepdims=True)
        return self.deleted_cells(x, effects, share)

    def deleted_cells(self, x: Tensor, effects: NDArray[np.float32], share: float) -> Tensor:
        """The same in single leads; effects: (leads, cells), or (1, cells) for all leads."""
        order = np.argsort(-np.nan_to_num(effects, nan=-np.inf), axis=None, kind="stable")
        some = order[: max(1, round(share * int(np.isfinite(effects).sum())))]
        cells = len(self.edges) - 1
        marked = np.zeros(effects.size, np.bool_)
        marked[some] = True
        widths = np.tile(np.diff(self.edges), effects.shape[1] // cells)
        made = x.clone().numpy()
        each = np.broadcast_to(marked.reshape(effects.shape), (len(x), effects.shape[1]))
        for signal, own in zip(made, each, strict=True):
            gone = np.repeat(own, widths)
            at = np.arange(len(signal))
            if gone.any() and not gone.all():
                signal[gone] = np.interp(at[gone], at[~gone], signal[~gone])
        return torch.from_numpy(made)

    def _without_each(self, seen: Tensor, lead: int | EllipsisType) -> Tensor:
        """(leads, samples) -> (cells, leads, samples): without each, in one lead or all (`...`)."""
        made = seen.repeat(len(self.edges) - 1, 1, 1)
        signal, samples = seen[lead], seen.shape[1]
        for number, (start, stop) in enumerate(zip(self.edges, self.edges[1:], strict=False)):
            before, after = start - 1 if start else stop, stop if stop < samples else start - 1
            steps = torch.arange(1, stop - start + 1) / (stop - start + 1)
            ends = signal[..., before, None], signal[..., after, None]
            made[number, lead, start:stop] = torch.lerp(*ends, steps)
        return made


def _chosen_frames(
    sums: NDArray[np.float32],
    counts: NDArray[np.int64],
    frame: float,
    start: float | None,
    seconds: float,
) -> tuple[int, int]:
    """The first frame to explain, and the one after the last.

    By default those whose rows have the greatest mean logit.

    Args:
        sums: (frames,) of the rows' logits of the label.
        counts: (frames,) of rows.
        frame: Seconds of a frame.
        start: Second at which to begin.
        seconds: How many to explain.
    """
    n = min(len(sums), math.ceil(seconds / frame - 1e-6))
    if start is not None:
        first = math.floor(start / frame + 1e-6)
        last = min(len(sums), math.ceil((start + seconds) / frame - 1e-6))
        if start < 0 or first >= last or not counts[first:last].any():
            raise SettingError(
                f"there is nothing that the classifier sees from second {start:g} on, of "
                f"{len(sums) * frame:g} s in whole frames; give another `start`"
            )
        return first, last
    total, rows = (np.convolve(one, np.ones(n), "valid") for one in (sums, counts))
    first = int(np.where(rows > 0, total / np.maximum(rows, 1), -np.inf).argmax())
    return first, first + n


def _stretch(
    attribution: NDArray[np.float32], rate: float, start: float | None, seconds: float
) -> tuple[int, int]:
    """Samples of the stretch to return: as asked for, or where most speaks for the label."""
    width, samples = max(1, round(seconds * rate)), attribution.shape[1]
    if start is not None:
        first = min(round(start * rate), samples - 1)
        return first, min(first + width, samples)
    if samples <= width:
        return 0, samples
    summed = np.concatenate([[0.0], np.cumsum(np.nansum(attribution, axis=0))])
    first = int((summed[width:] - summed[:-width]).argmax())
    return first, first + width


def module_input(
    checkpoint: Checkpoint, recording: Recording, leads: Sequence[str] | None = None
) -> NDArray[np.float32]:
    """(leads, samples) in mV at the encoder's rate, in whole frames, nan where missing.

    Resampled, filtered and rounded as the recording is before it is embedded. Of an encoder of
    many leads, these are its own, in its order; else those of its card that the recording has.

    Args:
        checkpoint: The encoder; of a classifier, its first.
        recording: At any rate, with any leads.
        leads: Which ones, in place of those of the card; for an encoder of one lead at a time.

    Raises:
        ClocsError: The recording is too short, has none of the leads, or no frame with a signal.
    """
    spec, known = checkpoint.card.frame, known_leads(checkpoint)
    wanted = known or leads_of(checkpoint, leads)
    recording = placed(recording, known, wanted)
    own, present = with_leads(recording, spec, wanted)
    values, step = cut_recordings([own], spec)
    signal: NDArray[np.float32] = (values[0] * step[0, ..., None]).astype(np.float32)
    signal[~present.T] = np.nan
    signal = signal.reshape(len(own.leads), -1)
    if not known:
        return signal
    placed_in = np.full((len(known), signal.shape[1]), np.nan, np.float32)
    placed_in[[known.index(lead) for lead in own.leads]] = signal
    return placed_in

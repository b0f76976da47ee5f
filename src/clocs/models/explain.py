"""Explanations: which part of an ECG drove a classifier's prediction, found by `occlusion.py`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.errors import SettingError
from clocs.formats.read import read
from clocs.models.classifier import Classifier, as_classifier
from clocs.models.explanation import Explanation
from clocs.models.module_input import module_input
from clocs.models.occlusion import Occlusion
from clocs.models.predict import predict_recordings
from clocs.patients.encode import known_leads, leads_of, placed
from clocs.recording import Recording
from clocs.store.manifest import MANIFEST
from clocs.store.store import open_store
from clocs.store.table import flat_stretches

SHOWN = 10.0  # seconds that are explained of a longer recording
LONGEST = 600.0  # seconds that can be explained at once


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


class Explainer(Occlusion):
    """A classifier that explains its predictions."""

    def __init__(self, classifier: Classifier) -> None:
        self.card = classifier.card
        self.classifier = classifier
        self.checkpoint = classifier.encoders[0]
        with warnings.catch_warnings():  # of filters: what it is given here is filtered
            warnings.simplefilter("ignore")
            super().__init__(classifier.to_module(), multilabel=classifier.card.multilabel)

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
                f"{self.card.name} knows no label {label!r}; choose a `label` from "
                f"{', '.join(self.card.labels)}"
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
        sums, counts = self.frame_logits(x)
        p = self._p(sums, counts)
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
        logits = [self.mean_logit(one, k) for one in (part, self.deleted(part, effects))]
        table = predict_recordings(self.classifier, [recording])
        return Explanation(
            recording=recording,
            label=self.card.labels[k],
            probability=float(p[k]),
            probabilities=dict(zip(self.card.labels, p.tolist(), strict=True)),
            leads=leads,
            start=float(at[low]) / recording.rate,
            attribution=found[:, low:high],
            logit=logits[0],
            logit_without=logits[1],
            abstained=table["abstained"][0],
        )

    def _p(self, sums: Tensor, counts: Tensor) -> Tensor:
        """(classes,) calibrated probabilities."""
        mean = sums.sum(dim=0, keepdim=True) / counts.sum()
        return self.classifier.probabilities(mean)[0]

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

    def _most_probable(self, p: Tensor) -> int:
        """Of the labels at or above their thresholds, or of all where none is."""
        found = [t is not None and float(p[i]) >= t for i, t in enumerate(self.card.thresholds)]
        return int((torch.where(torch.tensor(found), p, -1) if any(found) else p).argmax())


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

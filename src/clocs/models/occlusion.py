"""What parts of an ECG speak for a label: by what its logit falls without them.

A straight line takes the place of a tenth of a second of one lead, and what the label's logit falls
by is what that tenth of a second speaks for the label. `python benchmarks/explain.py` compares it
with integrated gradients.

An encoder of many leads sees each beat in all of them, so that one lead less changes little. There
a stretch of time is a straight line in all leads at once, and what it speaks for the label is shown
in each lead as strongly as the lead matters: by what the logit falls where the lead is missing.
`python benchmarks/explain_many_leads.py` compares it with other ways.
"""

from __future__ import annotations

import warnings
from types import EllipsisType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.models.classifier import ClassifierModule

CELL = 0.1  # seconds that a straight line replaces at a time
REACH = 0.0  # seconds on each side of them that it also replaces, in encoders of many leads
DELETED = 0.05  # share of all cells, those that speak most for the label, of `logit_without`
_AT_ONCE = 512  # windows of a lead encoded at a time


class Occlusion:
    """A classifier's module, with and without parts of what it sees."""

    def __init__(self, module: ClassifierModule, *, multilabel: bool) -> None:
        self.module = module
        self._multilabel = multilabel

    def logit_of(self, k: int, logits: Tensor) -> Tensor:
        """(n, classes) -> (n,): that of class k; what all exclusive classes share says nothing."""
        return logits[:, k] if self._multilabel else logits[:, k] - logits.mean(dim=1)

    def frame_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(leads, any) in mV -> (frames, classes) sums of the rows' logits, (frames,) rows."""
        samples = self.module.samples
        sums, counts = [], []
        for part in x.split(max(1, _AT_ONCE // len(x)) * samples, dim=1):
            frames = part.shape[1] // samples
            rows, there = (one[0] for one in self.module.rows(part[None]))
            rows = torch.where(there[:, None], rows, 0).view(-1, frames, rows.shape[-1])
            sums.append(rows.sum(dim=0))
            counts.append(there.view(-1, frames).sum(dim=0))
        return torch.cat(sums), torch.cat(counts)

    def mean_logit(self, x: Tensor, k: int) -> float:
        """Of class k, by (leads, any) in mV."""
        sums, counts = self.frame_logits(x)
        return float(self.logit_of(k, sums).sum() / counts.sum())

    @property
    def edges(self) -> list[int]:
        """Samples of a frame at which its cells begin, and where the last one ends."""
        samples, width = self.module.samples, max(1, round(CELL * self.module.rate))
        return [*range(0, samples, width), samples]

    def effects(self, x: Tensor, k: int) -> NDArray[np.float32]:
        """(leads, any) in mV -> (leads, frames · cells): what each speaks for class k.

        By what the mean logit falls without it; nan where there is no signal.
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
        """(leads, any) in mV -> (leads, frames · cells): by what the mean logit falls without each.

        nan where there is no signal.
        """
        frames = x.view(len(x), -1, self.module.samples)
        cells = len(self.edges) - 1
        made = x.new_full((*frames.shape[:2], cells), torch.nan)
        there = ~frames.isnan().any(dim=-1)
        count = int((there.any(dim=0) if self.module.leads else there).sum())
        for lead, number in there.nonzero().tolist():
            seen = frames[:, number] if self.module.leads else frames[lead, number][None]
            own = self._without_each(seen, lead if self.module.leads else 0)
            made[lead, number] = self._falls(seen, own, k) / count
        return made.flatten(1).numpy()

    def effects_over_time(self, x: Tensor, k: int, reach: float = REACH) -> NDArray[np.float32]:
        """(leads, any) in mV -> (frames · cells,): as `effects_of_cells`, of all leads at once.

        A cell is replaced with `reach` seconds on each side of it.
        """
        frames = x.view(len(x), -1, self.module.samples)
        made = x.new_full((frames.shape[1], len(self.edges) - 1), torch.nan)
        numbers = (~frames.isnan().any(dim=-1)).any(dim=0).nonzero()[:, 0].tolist()
        for number in numbers:
            seen = frames[:, number]
            made[number] = self._falls(seen, self._without_each(seen, ..., reach), k) / len(numbers)
        return made.flatten().numpy()

    def effects_of_leads(self, x: Tensor, k: int) -> NDArray[np.float32]:
        """(leads, any) in mV -> (leads,): by what the mean logit falls where each is missing.

        nan of those that are; zeros where there is one lead alone.
        """
        frames = x.view(len(x), -1, self.module.samples).transpose(0, 1)
        there = ~frames.isnan().any(dim=-1)
        made = torch.where(there.any(dim=0), 0.0, torch.nan)
        for seen, own in zip(frames, there, strict=True):
            some = own.nonzero()[:, 0]
            if len(some) > 1:
                without = seen.repeat(len(some), 1, 1)
                without[torch.arange(len(some)), some] = torch.nan
                made[some] += self._falls(seen, without, k) / int(there.any(dim=1).sum())
        return made.numpy()

    def _falls(self, seen: Tensor, without: Tensor, k: int) -> Tensor:
        """(leads, samples), (n, leads, samples) -> (n,): by what the logit falls, this to each."""
        some = torch.cat([seen[None], without]).split(max(1, _AT_ONCE // len(seen)))
        values = self.logit_of(k, torch.cat([self.module.logits(one) for one in some]))
        return values[0] - values[1:]

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

    def _without_each(self, seen: Tensor, lead: int | EllipsisType, reach: float = 0.0) -> Tensor:
        """(leads, samples) -> (cells, leads, samples): without each, in one lead or in all (`...`).

        `reach`: seconds before and after that are replaced with it.
        """
        made = seen.repeat(len(self.edges) - 1, 1, 1)
        signal, samples = seen[lead], seen.shape[1]
        more = round(reach * self.module.rate)
        for number, (first, last) in enumerate(zip(self.edges, self.edges[1:], strict=False)):
            start, stop = max(0, first - more), min(samples, last + more)
            before, after = start - 1 if start else stop, stop if stop < samples else start - 1
            steps = torch.arange(1, stop - start + 1) / (stop - start + 1)
            ends = signal[..., before, None], signal[..., after, None]
            made[number, lead, start:stop] = torch.lerp(*ends, steps)
        return made

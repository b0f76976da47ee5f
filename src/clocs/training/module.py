"""Encoders as plain torch modules: raw ECGs in, embeddings of recordings out.

Cutting and normalization are part of the module, in operations that differentiate and that other
runtimes have, so that its user brings nothing but mV at the right rate.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from clocs.encoders.base import Encoder, Weights
from clocs.errors import ClocsWarning, SettingError
from clocs.training.card import Card


class RecordingModule(nn.Module):
    """What modules of recordings share: an ECG is cut into normalized frames, as in training.

    Attributes:
        network: Normalized frames, (n, leads, samples), to one row each. An encoder of one lead
            takes (n, 1, samples); for one of many leads, a missing lead is nan.
        samples: Of a frame, at `rate`.
        rate: In Hz, of the ECGs to give.
        leads: In this order; empty where each lead is seen by itself, whichever it is.
    """

    def __init__(self, network: nn.Module, card: Card, encoder: Encoder) -> None:
        super().__init__()
        self.network = network
        self.samples, self.rate = encoder.samples, card.frame.rate
        self.leads = encoder.leads
        self._in_mv, self._standardized = card.in_mv, card.standardized
        self._offset = card.input_offset
        if card.frame.filters:
            warnings.warn(
                f"this encoder learned on filtered recordings ({card.frame.filters}); the module "
                "does not filter: filter what you give it",
                ClocsWarning,
                stacklevel=3,
            )

    def frames(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: (batch, leads, any) in mV -> (batch, views, leads, samples) and (batch, views).

        Frames are whole and without overlap; what is left at the end is not used. An encoder of one
        lead sees every lead of every frame as a view; one of many leads, every frame. A lead with
        nan anywhere in a frame is missing there.

        Returns:
            The views, normalized as the encoder learned on them, and which of them have a signal.
        """
        if x.ndim != 3 or (self.leads and x.shape[1] != len(self.leads)):
            leads = f"{len(self.leads)} leads ({', '.join(self.leads)})" if self.leads else "leads"
            raise SettingError(f"give a batch of (batch, {leads}, samples), not {tuple(x.shape)}")
        if x.shape[2] < self.samples:
            raise SettingError(
                f"an ECG of {x.shape[2]} samples is shorter than a frame; give at least "
                f"{self.samples}, at {self.rate:g} Hz"
            )
        count = x.shape[2] // self.samples
        cut = x[:, :, : count * self.samples].unflatten(2, (count, self.samples))
        missing = cut.isnan().any(dim=-1, keepdim=True)
        made = self._normalized(cut.masked_fill(missing, 0))
        if self.leads:
            made = made.masked_fill(missing, torch.nan).transpose(1, 2)
            # always a copy, so that what `torch.export` traces holds for a single frame, too
            made = made.clone(memory_format=torch.contiguous_format)
            return made, ~missing.squeeze(-1).all(dim=1)
        return made.flatten(1, 2).unsqueeze(2), ~missing.flatten(1)

    def rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: (batch, leads, any) in mV -> what the network makes of each view, (batch, views, …).

        Returns:
            Also (batch, views): which of them count. Rows of the others are of no meaning.
        """
        views, there = self.frames(x)
        flat = views.flatten(0, 1)
        if self.training and not bool(there.all()):  # the others would change batch norm
            chosen = there.flatten()
            own: Tensor = self.network(flat[chosen])
            made = own.new_zeros(len(flat), own.shape[1]).masked_scatter(chosen[:, None], own)
        else:
            made = self.network(flat)
        return made.unflatten(0, (there.shape[0], there.shape[1])), there

    def _normalized(self, x: Tensor) -> Tensor:
        """(…, samples) in mV -> as the encoder learned on them; a flat one becomes zeros."""
        if self._in_mv:
            return x
        low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
        flat, x = high == low, x - low  # exactly zero where it is flat
        if not self._standardized:
            return x / torch.where(flat, 1, high - low) + self._offset
        x = x - x.mean(dim=-1, keepdim=True)
        variance = x.square().mean(dim=-1, keepdim=True)
        return x / torch.where(flat, 1, variance).sqrt()


class EncoderModule(RecordingModule):
    """(batch, leads, samples) in mV to the embeddings of `clocs.embed(level="recording")`."""

    @classmethod
    def of(cls, card: Card, encoder: Encoder, weights: Weights, buffers: Weights) -> EncoderModule:
        """In evaluation mode, as the checkpoint is used; `.train()` trains it on."""
        made = cls(encoder.to_module(weights, buffers), card, encoder)
        return made.eval()

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, leads, samples) -> (batch, dim): the mean direction of the views' embeddings.

        Of length 1; zeros where all embeddings are zero, nan where no view has a signal.
        """
        z, there = self.rows(x)
        units = functional.normalize(z, dim=-1) * there[..., None]
        mean = functional.normalize(units.sum(dim=1), dim=-1)
        return mean.masked_fill(~there.any(dim=1, keepdim=True), torch.nan)

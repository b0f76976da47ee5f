"""Classifiers as plain torch modules: raw ECGs in, calibrated probabilities out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clocs.encoders.base import Weights
from clocs.encoders.layers import put
from clocs.errors import SettingError
from clocs.models.classifier_card import ClassifierCard
from clocs.training.checkpoint import Checkpoint
from clocs.training.module import RecordingModule


class MemberNetworks(nn.Module):
    """Normalized frames to logits: the mean over members, each an encoder and a linear layer."""

    def __init__(self, encoders: Sequence[Checkpoint], head: Weights) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(
            one.encoder.to_module(one.weights, one.buffers) for one in encoders
        )
        self.heads = nn.ModuleList()
        for weight, bias in zip(head["weight"], head["bias"], strict=True):
            layer = nn.Linear(*weight.shape)
            put(layer, weight=weight.T, bias=bias)
            self.heads.append(layer)

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, leads, samples) -> (n, classes)."""
        logits = [
            layer(encoder(x)) for encoder, layer in zip(self.encoders, self.heads, strict=True)
        ]
        return torch.stack(logits).mean(dim=0)


class ClassifierModule(RecordingModule):
    """(batch, leads, samples) in mV to the probabilities of `clocs.predict`.

    Attributes:
        labels: What the columns of the output are.
        temperature: (classes,) by which logits are divided.
    """

    temperature: Tensor

    def __init__(self, card: ClassifierCard, encoders: Sequence[Checkpoint], head: Weights) -> None:
        first = encoders[0]
        if len({(one.card.normalization, one.encoder.samples) for one in encoders}) > 1:
            raise SettingError(
                "the members of this classifier take different inputs; make one module of each"
            )
        super().__init__(MemberNetworks(encoders, head), first.card, first.encoder)
        self.labels, self._multilabel = card.labels, card.multilabel
        self.register_buffer("temperature", torch.tensor(card.temperature))
        self.eval()

    def logits(self, x: Tensor) -> Tensor:
        """x: (batch, leads, samples) -> (batch, classes): the mean over views that have a signal.

        Not calibrated; for a loss such as cross-entropy. nan where no view has a signal.
        """
        rows, there = self.rows(x)
        total = rows.masked_fill(~there[..., None], 0).sum(dim=1)
        return total / there.sum(dim=1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, leads, samples) -> (batch, classes): calibrated probabilities."""
        scaled = self.logits(x) / self.temperature
        return scaled.sigmoid() if self._multilabel else scaled.softmax(dim=-1)

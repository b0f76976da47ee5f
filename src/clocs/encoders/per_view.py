"""Batch norm for each view by itself: one pass per view in training, each with its own statistics.

The paper's authors encode one view after another; by default all views of a batch are encoded, and
normalized, at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clocs.encoders.base import Encoder, Weights
from clocs.kernels import collectives, keyed_random


@dataclass(frozen=True, kw_only=True)
class PerView(Encoder):
    """An encoder that trains on one view of the batch at a time; otherwise the encoder itself."""

    inner: Encoder
    views: int  # of each instance of a batch

    @classmethod
    def of(cls, encoder: Encoder, views: int) -> PerView:
        return cls(
            embedding_dim=encoder.embedding_dim,
            samples=encoder.samples,
            dropout=encoder.dropout,
            name=encoder.name,
            leads=encoder.leads,
            inner=encoder,
            views=views,
        )

    @property
    def capturable(self) -> bool:
        return self.inner.capturable

    def parameters(self, keys: Tensor) -> Weights:
        return self.inner.parameters(keys)

    def buffers(self, members: int) -> Weights:
        return self.inner.buffers(members)

    def encode(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        return self.inner.encode(weights, buffers, x)

    def feature_map(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        return self.inner.feature_map(weights, buffers, x)

    def encode_training(
        self, weights: Weights, buffers: Weights, x: Tensor, keys: Tensor, momentum: float = 0.1
    ) -> tuple[Tensor, Weights]:
        """x: (members, views·batch, samples); the running statistics move once for each view."""
        parts = []
        by_view = x.unflatten(1, (self.views, x.shape[1] // self.views))
        for number, view in enumerate(by_view.unbind(1)):
            key = keyed_random.fold(keys, keyed_random.stream("view"), number)
            with collectives.sharing_one_view():
                z, buffers = self.inner.encode_training(
                    weights, buffers, view.contiguous(), key, momentum
                )
            parts.append(z)
        return torch.cat(parts, dim=1), buffers

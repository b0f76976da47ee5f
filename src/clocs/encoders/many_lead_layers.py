"""A network of many leads in torch's own layers, for one member."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clocs.encoders.base import Weights
from clocs.encoders.layers import NormedConv, put
from clocs.encoders.many_lead_network import THERE, Conv, Network


class ManyLeadLayers(nn.Module):
    """What a `ManyLeadEncoder` computes, in training and in evaluation."""

    def __init__(
        self, network: Network, dropout: float, weights: Weights, buffers: Weights
    ) -> None:
        super().__init__()
        self._network = network
        self.convs = nn.ModuleDict()
        for conv in network.every:
            kernel = weights[f"{conv.name}.conv.weight"][0]
            self.convs[_key(conv)] = NormedConv.of(
                conv.name, weights, buffers, kernel, conv.stride, conv.groups
            )
        width, leads = weights[THERE].shape[1:]
        self.there = nn.Linear(leads, width, bias=False)
        put(self.there, weight=weights[THERE][0])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, leads, samples), nan where a lead is missing -> (n, embedding_dim)."""
        missing = x.isnan()
        there = (~missing[..., 0]).to(x.dtype)
        factor = (x.shape[1] / there.sum(dim=1).clamp(min=1)).sqrt()
        stem = self.convs[_key(self._network.stem)]
        assert isinstance(stem, NormedConv)
        h = stem.conv(x.masked_fill(missing, 0) * factor[:, None, None])
        h = stem.norm(h + self.there(there)[..., None]).relu()
        # the network's body is written for (n, channels, 1, steps)
        h = self._network.body(
            h.unsqueeze(2),
            lambda conv, h: self.convs[_key(conv)](h.squeeze(2)).unsqueeze(2),
            lambda block, h: self.dropout(h),
        )
        h = h.squeeze(2)
        return torch.cat([h.mean(dim=2), h.amax(dim=2)], dim=1)


def _key(conv: Conv) -> str:
    return conv.name.replace(".", "_")  # dots cannot be in a module's name

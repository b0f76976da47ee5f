"""What is particular to the ConvNeXt of many leads; what they share is in `test_multilead.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from clocs import keyed_random
from clocs.encoders.multilead_convnext import MultiLeadConvNeXt

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
KEYS = keyed_random.member_keys([5])
WIDTHS = (64, 128, 256, 6)
Tensors = dict[str, Tensor]


class Twin(nn.Module):
    """The same network in torch's own layers, each with its batch norm, by our names."""

    def __init__(self, leads: int) -> None:
        super().__init__()
        self.there = nn.Linear(leads, 64, bias=False)
        self.layers = nn.ModuleDict()
        self.pairs: dict[str, tuple[nn.Conv1d, nn.BatchNorm1d]] = {}
        self.add("stem", leads, 64, 15, 2)
        for stage, width in enumerate(WIDTHS, start=1):
            if stage > 1:
                self.add(f"stage{stage}.before", WIDTHS[stage - 2], width, 3, 2)
            for block in range(1, (2, 2, 4, 2)[stage - 1] + 1):
                name = f"stage{stage}.block{block}"
                self.add(f"{name}.along", width, width, 11, groups=width)
                self.add(f"{name}.up", width, 4 * width, 1)
                self.add(f"{name}.down", 4 * width, width, 1)
        self.add("last", WIDTHS[-1], WIDTHS[-1], 1)
        self.double()

    def add(
        self, name: str, c_in: int, c_out: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        conv = nn.Conv1d(
            c_in, c_out, kernel, stride, padding=kernel // 2, groups=groups, bias=False
        )
        self.pairs[name] = conv, nn.BatchNorm1d(c_out)
        self.layers[name.replace(".", "_")] = nn.Sequential(*self.pairs[name])

    def forward(self, x: Tensor) -> Tensor:
        there = (~x.isnan().any(dim=2)).to(x.dtype)
        factor = (x.shape[1] / there.sum(dim=1)).sqrt()[:, None, None]
        conv, norm = self.pairs["stem"]
        h = norm(conv(x.nan_to_num()) * factor + self.there(there)[:, :, None]).relu()
        for name, layer in self.layers.items():
            if name.endswith("before"):
                h = layer(h)
            elif name.endswith("along"):
                inner = layer(h)
            elif name.endswith("up"):
                inner = functional.gelu(layer(inner))
            elif name.endswith("down"):
                h = h + layer(inner)
        h = self.layers["last"](h).relu()
        return torch.cat([h.mean(dim=2), h.amax(dim=2)], dim=1)

    def named(self) -> Tensors:
        """Its weights by our names."""
        own: Tensors = {"stem.there.weight": self.there.weight}
        for name, (conv, norm) in self.pairs.items():
            own[f"{name}.conv.weight"] = conv.weight
            own[f"{name}.norm.weight"], own[f"{name}.norm.bias"] = norm.weight, norm.bias
        return own


def test_it_equals_torchs_modules_in_values_and_gradients() -> None:
    encoder = MultiLeadConvNeXt(embedding_dim=12, samples=90, dropout=0.0, leads=LEADS[:3])
    weights = {k: v.double() for k, v in encoder.parameters(KEYS).items()}
    for name in weights:  # away from where a mistake could hide
        if ".norm." in name:
            weights[name] += torch.linspace(-0.4, 0.4, weights[name].shape[1])
    buffers = {k: v.double() for k, v in encoder.buffers(1).items()}
    twin = Twin(3)
    named = twin.named()
    assert named.keys() == weights.keys()
    for name, tensor in named.items():
        tensor.data = weights[name][0].clone()
    x = torch.randn(5, 3, 90, dtype=torch.float64)
    x[1, 0] = x[-1, 1:] = torch.nan
    towards = torch.randn(5, 12, dtype=torch.float64)
    weights = {name: tensor.requires_grad_() for name, tensor in weights.items()}
    z, after = encoder.encode_training(weights, buffers, x[None], KEYS)
    expected = twin(x)
    assert torch.allclose(z[0], expected, atol=1e-9)
    gradients = torch.autograd.grad((z[0] * towards).sum(), [*weights.values()])
    (expected * towards).sum().backward()
    for name, gradient in zip(weights, gradients, strict=True):
        theirs = named[name].grad
        assert theirs is not None
        assert torch.allclose(gradient[0], theirs, atol=1e-8), name
    twin.eval()
    assert torch.allclose(encoder.encode(weights, after, x[None])[0], twin(x), atol=1e-9)


def test_its_branches_start_small_and_it_has_at_most_five_million_weights() -> None:
    weights = MultiLeadConvNeXt(leads=LEADS).parameters(KEYS)
    assert weights["stage3.block4.down.norm.weight"].eq(0.1).all()
    assert weights["stage3.block4.up.norm.weight"].eq(1).all()
    assert sum(tensor.numel() for tensor in weights.values()) == 4_595_840

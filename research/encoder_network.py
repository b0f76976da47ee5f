"""Designs of an encoder of many leads, and their pre-training without labels."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clocs.encoders.many_leads import WIDTHS, MultiLead
from clocs.encoders.residual import (
    EPSILON,
    LEAD_PRESENCE,
    WHOLE,
    Conv,
    Network,
    _convolve,
    make_network,
)
from research.encoder_recordings import Pool, crops, random_subset

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
RATE = 100
TYPICAL_MV, GREATEST_MV = 0.2, 5.0  # the fixed scale of raw input, and where it is cut off


@dataclass(frozen=True)
class Variant:
    """A design; the defaults are those of the shipped encoder."""

    input: str = "standard"  # or raw: how leads are normalized
    amplitudes: bool = False  # a branch for the spread and the quantiles of each lead
    reconstruct: float = 0.0  # weight of the reconstruction of masked leads and stretches
    pool: str = "meanmax"  # or moments (with the spread)
    seconds: float = 5.0
    data: str = "two"  # Chapman and PhysioNet 2020, or all
    most_leads: int = 2
    mix: float = 0.0  # share of views that see up to twelve leads instead
    embedding_dim: int = 640
    temperature: float = 0.2
    stretch: float = 1.2
    noise: float = 0.03  # mV
    stride: int = 2  # of the stem; 4 is half of the work
    kernel: int = 5  # of the blocks

    @property
    def samples(self) -> int:
        return round(self.seconds * RATE)


@dataclass(frozen=True)
class Design(MultiLead):
    """The shipped network with another stride or kernel."""

    stride: int = 2
    kernel: int = 5

    @property
    def network(self) -> Network:
        stem = Conv("stem", len(self.leads), WIDTHS[0], 15, self.stride)
        widths = (*WIDTHS, self.embedding_dim // 2)
        return make_network(stem, widths, self.kernel, averages=True, masked=True)


def centered(x: Tensor) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True)


def amplitudes(x: Tensor, there: Tensor) -> Tensor:
    """(n, 12, t) mV -> (n, 36): log of the spread, 99.5 % and 0.5 % quantile, 0 where absent."""
    x = centered(x).clamp(-GREATEST_MV, GREATEST_MV)
    rank = 0.005 * (x.shape[-1] - 1)
    low = math.floor(rank)
    ends = [v.topk(low + 2, dim=-1).values[..., low:] for v in (x, -x)]
    high, least = (v[..., 0].lerp(v[..., 1], rank - low) for v in ends)
    spread = (x.square().mean(dim=-1) + 1e-6).log() / 2 - math.log(TYPICAL_MV)
    return torch.cat([v * there for v in (spread, high, -least)], dim=1)


def feature_map(
    network: Network, weights: dict[str, Tensor], stats: dict[str, Tensor] | None,
    h: Tensor, added: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """(n, leads, 1, t), and what is added to the stem's channels -> (n, channels, steps).

    stats: of batch norm; where None, the batch's own are used and returned.
    """
    seen: dict[str, Tensor] = {}

    def normed(name: str, y: Tensor) -> Tensor:
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        if stats is not None:
            mean, variance = stats[f"{name}.mean"], stats[f"{name}.variance"]
            return functional.batch_norm(y, mean, variance, scale, shift, False, 0.0, EPSILON)
        mean, variance = (torch.zeros_like(scale, requires_grad=False) for _ in range(2))
        made = functional.batch_norm(y, mean, variance, scale, shift, True, 1.0, EPSILON)
        seen[f"{name}.mean"], seen[f"{name}.variance"] = mean, variance
        return made

    def convolved(conv: Conv, h: Tensor) -> Tensor:
        return normed(f"{conv.name}.norm", _convolve(h, weights[f"{conv.name}.conv.weight"], conv))

    h = _convolve(h, weights["stem.conv.weight"], network.stem)
    h = h + added.to(h.dtype)[:, :, None, None]
    h = network.body(torch.relu(normed("stem.norm", h)), convolved, lambda block, h: h)
    return h.flatten(2), seen


FeatureMap = Callable[..., tuple[Tensor, dict[str, Tensor]]]


class Net(nn.Module):
    def __init__(self, variant: Variant, seed: int, device: torch.device) -> None:
        super().__init__()
        self.variant = v = variant
        spec = Design(
            leads=LEADS, samples=v.samples, embedding_dim=v.embedding_dim,
            stride=v.stride, kernel=v.kernel,
        )  # fmt: skip
        self.network = spec.network
        self.training_map: FeatureMap = feature_map  # may be a compiled one
        keys = torch.tensor([seed])
        own = {k.replace(".", "/"): w[0] for k, w in spec.parameters(keys).items()}
        self.weights = nn.ParameterDict(own)
        self.stats = {k: w[0].to(device) for k, w in spec.buffers(1).items()}
        width = v.embedding_dim // 2
        self.branch = nn.Sequential(
            nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 64)) if v.amplitudes else None  # fmt: skip
        pooled = width * 3 if v.pool == "moments" else v.embedding_dim
        self.dim = pooled + (64 if v.amplitudes else 0)
        self.to(device)

    def normalized(self, x: Tensor) -> Tensor:
        """(n, 12, t) mV -> the same as the network sees it."""
        x = centered(x)
        if self.variant.input == "standard":
            spread = x.square().mean(dim=-1).add(1e-10).sqrt()
            return x / spread.clamp(min=1e-4)[..., None]
        return x.clamp(-GREATEST_MV, GREATEST_MV) / TYPICAL_MV

    def forward(
        self, x: Tensor, there: Tensor, hidden: Tensor | None = None, *, training: bool = False
    ) -> tuple[Tensor, Tensor]:
        """(n, 12, t) mV, (n, 12) bool, (n, t) bool: hidden stretches -> embedding, feature map."""
        weights = {k.replace("/", "."): w for k, w in self.weights.items()}
        factor = (12 / there.sum(dim=1).clamp(min=1)).sqrt()[:, None, None]
        seen = there[..., None] if hidden is None else there[..., None] & ~hidden[:, None]
        h = (self.normalized(x) * factor).masked_fill(~seen, 0)
        h = functional.pad(h, (0, 0, 0, -12 % WHOLE)).unsqueeze(2)
        half = torch.bfloat16 if x.is_cuda and training else torch.float32
        h = h.to(half).contiguous(memory_format=torch.channels_last)
        added = functional.linear(there.float(), weights[LEAD_PRESENCE])
        if training:
            h, now = self.training_map(self.network, weights, None, h, added)
            with torch.no_grad():
                torch._foreach_lerp_(list(self.stats.values()), [now[k] for k in self.stats], 0.1)
        else:
            h, _ = feature_map(self.network, weights, self.stats, h, added)
        parts = [h.float().mean(dim=2), h.float().amax(dim=2)]
        if self.variant.pool == "moments":
            parts.append((h.float().var(dim=2) + 1e-6).sqrt())
        z = torch.cat(parts, dim=1)
        if self.branch is not None:
            facts = torch.cat([amplitudes(x, there), there.float()], dim=1)
            z = torch.cat([z, self.branch(facts)], dim=1)
        return z, h


class Heads(nn.Module):
    """What is dropped after pre-training."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        v, width = net.variant, net.variant.embedding_dim // 2
        self.project = nn.Sequential(
            nn.Linear(net.dim, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 128),
        )
        self.decode = (
            nn.Sequential(
                nn.Conv1d(width, 256, 5, padding=2), nn.GELU(), nn.Conv1d(256, 96 * v.stride, 1)
            )
            if v.reconstruct
            else None
        )


def unit(z: Tensor) -> Tensor:
    return functional.normalize(z.float(), dim=-1, eps=1e-6)


def patient_nce(a: Tensor, b: Tensor, patient: Tensor, temperature: float) -> Tensor:
    """Each view finds the other of its recording, and those of its patient's other recordings."""
    similarity = unit(a) @ unit(b).T / temperature
    same = (patient[:, None] == patient[None]).float()
    same.fill_diagonal_(0)
    share = same / same.sum().clamp(min=1) + torch.eye(len(a), device=a.device) / len(a)
    both = similarity.log_softmax(dim=0) + similarity.log_softmax(dim=1)
    return -(share * both).sum()


def loss_of(net: Net, heads: Heads, pool: Pool, batch: int) -> Tensor:
    v, device, n = net.variant, pool.signal.device, net.variant.samples
    rows = torch.randint(len(pool.offset), (batch,), device=device)
    length, leads = pool.length[rows], pool.leads[rows]
    share = torch.exp(-math.log(v.stretch) * torch.rand(2, batch, device=device))
    begin = torch.rand(2, batch, device=device) * (1 - share) * (n - 1)
    room = (length - n).float()
    start = (torch.rand(2, batch, device=device) * (room + 1)).floor().minimum(room)
    step = torch.arange(n, device=device)
    times = ((start + begin)[..., None] + step * share[..., None]).flatten(0, 1)
    clean, there = crops(
        pool.signal, pool.offset[rows].repeat(2), length.repeat(2), leads.repeat(2), times
    )
    hidden = None
    if v.reconstruct:  # a stretch of up to 30 % of half of the views
        wide = torch.rand(2 * batch, 1, device=device) * 0.6 - 0.3
        left = torch.rand(2 * batch, 1, device=device) * 0.7
        at = step / n
        hidden = (at >= left) & (at < left + wide)
    most = torch.full((2 * batch, 1), v.most_leads, device=device)
    most = most.masked_fill(torch.rand(2 * batch, 1, device=device) < v.mix, 12)
    seen = random_subset(there, most)
    z, h = net(clean + v.noise * torch.randn_like(clean), seen, hidden, training=True)
    a, b = heads.project(z).chunk(2)
    loss = patient_nce(a, b, pool.patient[rows], v.temperature)
    if heads.decode is not None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            made = heads.decode(h)  # (n, 12·16, steps): 16 samples a step, 32 at stride 4
        made = made.float().unflatten(1, (12, 8 * v.stride)).transpose(2, 3).flatten(2)[..., :n]
        wanted = net.normalized(clean)
        error = functional.smooth_l1_loss(made, wanted, reduction="none").mean(dim=-1)
        loss = loss + v.reconstruct * (error * there).sum() / there.sum()
    return loss


def pretrain(
    variant: Variant,
    pool: Pool,
    steps: int,
    batch: int,
    seed: int,
    *,
    training_map: FeatureMap,
) -> tuple[Net, dict[str, Any]]:
    """The averaged network after so many steps, and facts about its training."""
    device = pool.signal.device
    torch.manual_seed(seed)
    net = Net(variant, seed, device)
    net.training_map = training_map
    heads = Heads(net).to(device)
    average = Net(variant, seed, device)
    tensors = [*net.parameters(), *heads.parameters()]
    lr = torch.tensor(0.0, device=device)
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(tensors, lr, weight_decay=0.01, fused=fused, capturable=fused)
    ours = [*net.parameters(), *net.stats.values()]
    theirs = [*average.parameters(), *average.stats.values()]
    last = torch.zeros((), device=device)

    def step() -> None:
        loss = loss_of(net, heads, pool, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        with torch.no_grad():
            torch._foreach_lerp_(theirs, ours, 0.002)
            last.copy_(loss.detach())

    began = time.time()
    run: Callable[[], None] = step
    captured = None
    if fused:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()  # at a learning rate of zero
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        run = captured.replay
    else:
        step()
    if fused:
        torch.cuda.synchronize()
    ready, curve = time.time(), []
    warm = max(1, round(0.05 * steps))
    for i in range(steps):
        wave = 0.5 * (1 + math.cos(math.pi * (i - warm) / max(1, steps - warm)))
        lr.fill_(1e-3 * ((i + 1) / warm if i < warm else wave))
        run()
        if (i + 1) % max(1, steps // 20) == 0:
            curve.append(round(float(last), 4))
            if not math.isfinite(curve[-1]):
                raise RuntimeError(f"the loss is {curve[-1]} at step {i + 1}")
        if i < 0.02 * steps:  # the average must not remember the start
            with torch.no_grad():
                torch._foreach_copy_(theirs, ours)
    if fused:
        torch.cuda.synchronize()
    taken = time.time() - ready
    facts = {
        "loss": curve, "seconds to start": round(ready - began, 1), "seconds": round(taken, 1),
        "ms a step": round(1000 * taken / steps, 3), "captured": captured is not None,
        "steps": steps, "weights": sum(p.numel() for p in net.parameters()),
    }  # fmt: skip
    if captured is not None:
        captured.reset()
    return average, facts

"""The ordinary way to train the network of many leads: torch's own modules, in eager mode.

Two random crops of a recording, each through 1 to 3 random leads, standardized; a projection head,
the contrastive loss of pairs, AdamW. The data come from a DataLoader that cuts with numpy, or, the
better way, are gathered on the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from clocs.frames.frames import Frames

TAU, MAX_LEADS = 0.1, 3


class Block(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv1d(c_in, c_out, 5, stride, padding=2, bias=False),
            nn.BatchNorm1d(c_out),
            nn.ReLU(),
            nn.Dropout(dropout) if dropout else nn.Identity(),
            nn.Conv1d(c_out, c_out, 5, padding=2, bias=False),
            nn.BatchNorm1d(c_out),
        )
        self.around: nn.Module = nn.Identity()
        if stride > 1 or c_in != c_out:
            pool = nn.AvgPool1d(stride, ceil_mode=True)
            conv = nn.Conv1d(c_in, c_out, 1, bias=False)
            self.around = nn.Sequential(pool, conv, nn.BatchNorm1d(c_out))

    def forward(self, h: Tensor) -> Tensor:
        return torch.relu(self.inner(h) + self.around(h))


class Network(nn.Module):
    """`clocs.encoders.residual.MultiLead` in torch's own modules, and a projection head."""

    def __init__(self, leads: int, dropout: float, dim: int = 640) -> None:
        super().__init__()
        self.stem = nn.Conv1d(leads, 64, 15, 2, padding=7, bias=False)
        self.there = nn.Linear(leads, 64, bias=False)
        self.norm = nn.BatchNorm1d(64)
        widths = (64, 64, 64, 128, 128, 256, 256, dim // 2, dim // 2)
        blocks = (
            Block(widths[i], widths[i + 1], 2 if i in (2, 4, 6) else 1, dropout) for i in range(8)
        )
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.Linear(dim, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128)
        )

    def embed(self, x: Tensor) -> Tensor:
        """x: (n, leads, samples), nan where missing -> (n, dim)."""
        there = (~x[..., 0].isnan()).to(x.dtype)
        factor = (x.shape[1] / there.sum(dim=1)).sqrt()[:, None, None]
        h = self.stem(x.nan_to_num() * factor) + self.there(there)[:, :, None]
        h = self.blocks(torch.relu(self.norm(h)))
        return torch.cat([h.mean(dim=2), h.amax(dim=2)], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.embed(x))
        return z


class Recordings(Dataset[Tensor]):
    """One recording at a time: two crops of it, (2, leads, samples), cut with numpy."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.first = np.flatnonzero((frames.segment == 0) & (frames.split == 0))

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, i: int) -> Tensor:
        frames, views = self.frames, []
        samples, starts = frames.spec.samples, frames.starts[self.first[i]]
        for _ in range(2):
            begin = np.random.randint(samples + 1)
            kept = np.random.permutation(len(starts))[: np.random.randint(1, MAX_LEADS + 1)]
            view = np.full((len(starts), samples), np.nan, np.float32)
            for lead in kept:
                at = starts[lead] + begin
                x = frames.signals[at : at + samples].astype(np.float32)
                view[lead] = (x - x.mean()) / max(float(x.std()), 1e-6)
            views.append(view)
        return torch.from_numpy(np.stack(views))


def loaded(
    frames: Frames, batch: int, workers: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of two views from a DataLoader, without end."""
    options = {"persistent_workers": True} if workers else {}
    loader = DataLoader(
        Recordings(frames), batch, shuffle=True, drop_last=True, num_workers=workers,
        pin_memory=device.type == "cuda", **options,  # type: ignore[arg-type]
    )  # fmt: skip
    while True:
        for both in loader:
            x = both.to(device, non_blocking=True)
            yield x[:, 0], x[:, 1]


def gathered(frames: Frames, batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The same, gathered on the device."""
    first = np.flatnonzero((frames.segment == 0) & (frames.split == 0))
    starts = torch.from_numpy(frames.starts[first]).to(device)
    samples, leads = frames.spec.samples, starts.shape[1]
    windows = torch.from_numpy(frames.signals).to(device).unfold(0, samples, 1)

    def view(rows: Tensor) -> Tensor:
        begin = torch.randint(samples + 1, (batch, 1), device=device)
        x = windows[starts[rows] + begin].float()
        x = x - x.mean(dim=2, keepdim=True)
        x = x / x.std(dim=2, correction=0, keepdim=True).clamp(min=1e-6)
        rank = torch.rand(batch, leads, device=device).argsort(dim=1)
        most = torch.randint(1, MAX_LEADS + 1, (batch, 1), device=device)
        return x.masked_fill_((rank >= most)[..., None], torch.nan)

    while True:
        for rows in torch.randperm(len(starts), device=device).split(batch):
            if len(rows) == batch:
                yield view(rows), view(rows)


def pair_loss(a: Tensor, b: Tensor) -> Tensor:
    similarity = functional.normalize(a) @ functional.normalize(b).T / TAU
    aim = torch.arange(len(a), device=a.device)
    return functional.cross_entropy(similarity, aim) + functional.cross_entropy(similarity.T, aim)


def rate(
    batches: Iterator[tuple[Tensor, Tensor]],
    network: Network,
    seconds: float,
    *,
    bfloat16: bool = False,
    sync: Callable[[], None] = lambda: None,
) -> float:
    """Views per second over at least `seconds`; the first steps are not counted."""
    adam = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
    done, began, views = -3, 0.0, 0
    for a, b in batches:
        if done == 0:
            sync()
            began, views = time.perf_counter(), 0
        with torch.autocast(a.device.type, torch.bfloat16, enabled=bfloat16):
            za, zb = network(torch.cat([a, b])).chunk(2)
        loss = pair_loss(za.float(), zb.float())
        adam.zero_grad()
        loss.backward()
        adam.step()
        done, views = done + 1, views + 2 * len(a)
        if done > 0 and time.perf_counter() - began > seconds:
            break
    sync()
    return views / (time.perf_counter() - began)

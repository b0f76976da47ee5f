"""The ordinary way to write the paper's pre-training: what most of its re-implementations do.

A per-item Dataset cuts, perturbs and normalizes with numpy, a DataLoader batches, the network is
torch's own modules, every view is one forward pass, and a Python loop runs over pairs of views.
"""

from __future__ import annotations

import time
from copy import deepcopy
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from clocs.frames.frames import Frames
from clocs.frames.views import instances
from clocs.pretraining.plan import find_method

TAU, SIGMA, TAU_D, BATCH = 0.1, 0.010, 0.9, 256


class Items(Dataset[tuple[Tensor, int]]):
    """One instance at a time: all its views, and whose it is."""

    def __init__(self, frames: Frames, method: str) -> None:
        self.method, self.frames = method, frames
        row = find_method(method)
        self.rows = instances(frames, of=row.of, views=row.views, split=0)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        frames = self.frames
        windows = [
            frames.signals[start : start + frames.spec.samples].astype(np.float32) * scale
            for start, scale in zip(self.rows.windows[i], self.rows.scale[i], strict=True)
        ]
        if self.method in ("simclr", "byol"):
            noisy = [windows[0] + np.random.normal(0, SIGMA, windows[0].shape) for _ in range(2)]
            views = [normalized(view) for view in noisy]
        elif self.method == "mtssl":
            views = tasks(normalized(windows[0]) - 0.5)
        else:
            views = [normalized(window) for window in windows]
        x = torch.from_numpy(np.stack(views).astype(np.float32))
        return x, int(frames.patient[self.rows.frame[i]])


def normalized(x: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.asarray((x - x.min()) / max(float(x.max() - x.min()), 1e-6))


def tasks(x: NDArray[np.floating]) -> list[NDArray[np.floating]]:
    """The original and MT-SSL's six copies."""
    power = float(np.mean((x - x.mean()) ** 2))
    noise = np.random.normal(0, np.sqrt(power / 10**1.5), x.shape)
    pieces = np.array_split(x, 20)
    shuffled = np.concatenate([pieces[i] for i in np.random.permutation(20)])
    stretched = [
        np.interp(np.linspace(0, len(p) - 1, round(len(p) * f)), np.arange(len(p)), p)
        for p, f in zip(np.array_split(x, 9), np.random.choice([1.05, 1 / 1.05], 9), strict=True)
    ]
    warped = np.concatenate(stretched)
    warped = np.interp(np.linspace(0, len(warped) - 1, len(x)), np.arange(len(warped)), warped)
    return [x, x + noise, x * 1.1, -x, x[::-1], shuffled, warped]


def paper_cnn(dim: int) -> nn.Sequential:
    """The paper's encoder in torch's own modules."""
    layers: list[nn.Module] = []
    for c_in, c_out in ((1, 4), (4, 16), (16, 32)):
        layers += [nn.Conv1d(c_in, c_out, 7, stride=3), nn.BatchNorm1d(c_out), nn.ReLU()]
        layers += [nn.MaxPool1d(2), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(320, dim), nn.ReLU())


class Residual(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()

        def conv(channels: int, kernel: int, step: int) -> nn.Sequential:
            one = nn.Conv1d(channels, c_out, kernel, step, padding=kernel // 2, bias=False)
            return nn.Sequential(one, nn.BatchNorm1d(c_out))

        inner = (conv(c_in, 3, stride), nn.ReLU(), nn.Dropout(0.1), conv(c_out, 3, 1))
        self.inner = nn.Sequential(*inner)
        self.around = conv(c_in, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, h: Tensor) -> Tensor:
        return torch.relu(self.inner(h) + self.around(h))


def resnet(dim: int) -> nn.Sequential:
    """`clocs.encoders.residual.ResNet` in torch's own modules."""
    stem = (nn.Conv1d(1, 16, 15, 4, padding=7, bias=False), nn.BatchNorm1d(16), nn.ReLU())
    shapes = ((16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1))
    pooled = (nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, dim), nn.ReLU())
    return nn.Sequential(*stem, nn.MaxPool1d(2), *(Residual(*shape) for shape in shapes), *pooled)


ENCODERS = {"cnn": paper_cnn, "resnet": resnet}


class Network(nn.Module):
    """An encoder and the heads that some methods put on it."""

    def __init__(self, encoder: str = "cnn", dim: int = 128) -> None:
        super().__init__()
        self.layers = ENCODERS[encoder](dim)
        self.heads = nn.Linear(dim, 6)
        self.predictor = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(x[:, None])
        return z


def pair_loss(a: Tensor, b: Tensor, patients: Tensor) -> Tensor:
    """The four terms of one pair of views."""
    similarity = functional.normalize(a) @ functional.normalize(b).T / TAU
    same = (patients[:, None] == patients) & ~torch.eye(len(a), dtype=torch.bool, device=a.device)
    loss = similarity.new_zeros(())
    for log_p in (similarity.log_softmax(1), similarity.T.log_softmax(1)):
        loss = loss - log_p.diagonal().mean()
        if same.any():
            loss = loss - log_p[same].mean()
    return loss


def loss_of(method: str, model: Network, target: Network, x: Tensor, patients: Tensor) -> Tensor:
    z = [model(x[:, view]) for view in range(x.shape[1])]
    if method == "simclr":
        u = functional.normalize(torch.cat(z))
        similarity = (u @ u.T / TAU).fill_diagonal_(-torch.inf)
        other = torch.arange(len(u), device=u.device).roll(len(patients))
        return functional.cross_entropy(similarity, other)
    if method == "byol":
        with torch.no_grad():
            aim = [target(x[:, view]) for view in range(2)]
        apart = [
            functional.normalize(model.predictor(z[i])) - functional.normalize(aim[1 - i])
            for i in range(2)
        ]
        return sum((d.square().sum(1).mean() for d in apart), x.new_zeros(()))
    if method == "mtssl":
        loss = x.new_zeros(())
        for task in range(6):
            for view, label in ((0, 0.0), (task + 1, 1.0)):
                logits = model.heads(z[view])[:, task]
                loss = loss + functional.binary_cross_entropy_with_logits(
                    logits, torch.full_like(logits, label)
                )
        return loss / 12
    pairs = list(combinations(z, 2))
    return sum((pair_loss(a, b, patients) for a, b in pairs), x.new_zeros(())) / len(pairs)


def rate(
    frames: Frames, method: str, encoder: str, device: torch.device, seconds: float, workers: int
) -> float:
    """Instances per second over at least `seconds`, the first batches not counted."""
    model = Network(encoder).to(device)
    target = deepcopy(model)
    adam = torch.optim.Adam(model.parameters(), lr=1e-4)
    loader = DataLoader(
        Items(frames, method), BATCH, shuffle=True, drop_last=True, num_workers=workers
    )
    done, began = -2, 0.0
    while True:
        for x, patients in loader:
            if done == 0:
                began = time.perf_counter()
            x, patients = x.to(device), patients.to(device)  # noqa: PLW2901
            loss = loss_of(method, model, target, x, patients)
            adam.zero_grad()
            loss.backward()
            adam.step()
            if method == "byol":
                with torch.no_grad():
                    for a, b in zip(target.parameters(), model.parameters(), strict=True):
                        a.lerp_(b, 1 - TAU_D)
            loss.item()  # as a progress bar would
            done += 1
            if done > 0 and time.perf_counter() - began > seconds:
                return done * BATCH / (time.perf_counter() - began)


def best_rate(
    frames: Frames, method: str, encoder: str, device: torch.device, seconds: float
) -> tuple[float, int]:
    """The better of 0 and 2 DataLoader workers, and which it was."""
    rates = ((rate(frames, method, encoder, device, seconds, w), w) for w in (0, 2))
    return max(rates)

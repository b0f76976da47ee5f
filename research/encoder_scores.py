"""Logistic regressions on frozen embeddings: fitted on training, scored on validation patients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from research.encoder_network import Net, amplitudes
from research.encoder_recordings import TRAINING, VALIDATION, Dataset, crops

L2 = (1e-4, 1e-3, 1e-2, 1e-1)
CHOICE = ("physionet2020", "physionet2020 10 %", "chapman rhythm", "chapman form",
          "physionet2017 lead I", "physionet2020 lead II")  # fmt: skip
# PTB has too few healthy validation patients to choose by: it is reported alone


@torch.no_grad()
def embed(net: Net, data: Dataset, only: int | None, at_once: int) -> tuple[Tensor, Tensor]:
    """Mean over crops at a stride of half a crop -> (recordings, dim), (recordings, 36).

    only: the one lead that is seen, or None for all.
    """
    n, device = net.variant.samples, data.signal.device
    count = (data.length - n).div(n // 2, rounding_mode="floor") + 1
    recording = torch.repeat_interleave(torch.arange(len(count), device=device), count)
    number = torch.arange(len(recording), device=device) - (count.cumsum(0) - count)[recording]
    z = torch.zeros(len(count), net.dim, device=device)
    size = torch.zeros(len(count), 36, device=device)
    step = torch.arange(n, device=device)
    for rows, place in zip(recording.split(at_once), number.split(at_once), strict=True):
        times = (place[:, None] * (n // 2) + step).float()
        leads = torch.full_like(rows, data.leads)
        x, there = crops(data.signal, data.offset[rows], data.length[rows], leads, times)
        if only is not None:
            there = there & (torch.arange(12, device=device) == only)
        z.index_add_(0, rows, net(x, there)[0])
        size.index_add_(0, rows, amplitudes(x, there))
    return z / count[:, None], size / count[:, None]


def logistic(x: Tensor, y: Tensor, l2: Tensor, iterations: int = 80) -> Tensor:
    """Logistic regressions by L-BFGS, all columns at once, each for itself.

    x: (n, d) with a last column of ones; y: (n, k) 0 or 1; l2: (k,) -> weights (d, k).
    """
    penalty = l2 * torch.ones_like(x[0])[:, None]
    penalty[-1] = 0
    w = x.new_zeros(x.shape[1], y.shape[1])

    def value(w: Tensor) -> tuple[Tensor, Tensor]:
        z = x @ w
        return (functional.softplus(z) - y * z).mean(0) + (penalty * w * w).sum(0) / 2, z

    def slope(w: Tensor, z: Tensor) -> Tensor:
        return x.T @ (z.sigmoid() - y) / len(x) + penalty * w

    f, z = value(w)
    g = slope(w, z)
    past: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(iterations):
        d, shares = g.clone(), []
        for s, c, rho in reversed(past):
            shares.append(rho * (s * d).sum(0))
            d = d - shares[-1] * c
        if past:
            s, c, rho = past[-1]
            d = d * torch.where(rho > 0, (s * c).sum(0) / (c * c).sum(0).clamp(min=1e-20), 1.0)
        else:
            d = d / g.norm(dim=0).clamp(min=1e-12)
        for (s, c, rho), share in zip(past, reversed(shares), strict=True):
            d = d + s * (share - rho * (c * d).sum(0))
        down = (g * d).sum(0)
        d = torch.where(down > 0, d, g)
        down = (g * d).sum(0)
        t = torch.ones_like(f)
        for _ in range(8):
            f_new, z = value(w - t * d)
            good = f_new <= f - 1e-4 * t * down
            if bool(good.all()):
                break
            t = torch.where(good, t, t / 2)
        t = torch.where(value(w - t * d)[0] <= f, t, 0.0)
        w_new = w - t * d
        f, z = value(w_new)
        g_new = slope(w_new, z)
        s, c = w_new - w, g_new - g
        curvature = (s * c).sum(0)
        past = [*past[-9:], (s, c, torch.where(curvature > 1e-12, 1 / curvature, 0.0))]
        w, g = w_new, g_new
        if float(g.abs().max()) < 1e-5:
            break
    return w


def aurocs(score: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """score, y: (n, k); weight: (draws, n) -> (draws, k), nan where a class is absent."""
    made = []
    for k in range(y.shape[1]):
        order = score[:, k].argsort()
        positive = weight[:, order] * y[order, k]
        negative = weight[:, order] * (1 - y[order, k])
        below = negative.cumsum(1) - negative / 2
        made.append((positive * below).sum(1) / (positive.sum(1) * negative.sum(1)))
    return torch.stack(made, dim=1)


def readout(
    x: Tensor, y: Tensor, patient: NDArray[Any], part: NDArray[Any], *,
    share: float = 1.0, draws: int = 1, by_patient: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Macro AUROC on validation patients, with its standard error over patients (bootstrap)."""
    device = x.device
    train, held_out = part == TRAINING, patient % 5 == 0
    mean, spread = x[train].mean(0), x[train].std(0)
    x = torch.cat([(x - mean) / spread.clamp(min=1e-6) * (spread > 1e-6), x.new_ones(len(x), 1)], 1)
    k = y.shape[1]
    grid = torch.tensor(L2, device=device).repeat_interleave(k)
    everybody = np.unique(patient[train])
    logits, chosen = [], []
    for draw in range(draws):
        mixed = np.random.default_rng(draw).permutation(everybody)
        some = mixed[: math.ceil(share * len(everybody))]
        fit = train & np.isin(patient, some)
        if share == 1:
            tried, judged = fit & ~held_out, fit & held_out
        else:  # the strength of the penalty alone is chosen on other training patients
            tried, judged = fit, train & ~fit
        w = logistic(x[tried], y[tried].repeat(1, len(L2)), grid)
        ones = torch.ones(1, int(judged.sum()), device=device)
        grades = aurocs(x[judged] @ w, y[judged].repeat(1, len(L2)), ones)
        best = int(grades.view(len(L2), k).nanmean(dim=1).nan_to_num(0).argmax())
        if share == 1:
            w = logistic(x[fit], y[fit], grid[:k] * 0 + L2[best])
        else:
            w = w[:, best * k : (best + 1) * k]
        chosen.append(L2[best])
        logits.append(x[part == VALIDATION] @ w)
    truth, people = y[part == VALIDATION], patient[part == VALIDATION]
    unique, inverse = np.unique(people, return_inverse=True)
    number = torch.from_numpy(inverse).to(device)
    if by_patient:
        count = torch.bincount(number).clamp(min=1)[:, None]
        pooled = [torch.zeros(len(unique), k, device=device) for _ in range(draws + 1)]
        means = [
            p.index_add_(0, number, v) / count
            for p, v in zip(pooled, [*logits, truth], strict=True)
        ]
        logits, truth, number = means[:-1], means[-1], torch.arange(len(unique), device=device)
    drawn = np.random.default_rng(0).multinomial(len(unique), [1 / len(unique)] * len(unique), 200)
    weight = torch.from_numpy(drawn).to(device).float()[:, number]
    once = torch.ones(1, len(truth), device=device)
    classes = torch.stack([aurocs(z, truth, once)[0] for z in logits]).mean(0)
    spread_of = torch.stack([aurocs(z, truth, weight) for z in logits]).mean(0).nanmean(dim=1)
    return {
        "auroc": round(float(classes.nanmean()), 5), "se": round(float(spread_of.std()), 5),
        "classes": [round(float(c), 4) for c in classes], "l2": chosen, "n": len(truth),
    }  # fmt: skip


def scores(net: Net, data: dict[str, Dataset], at_once: int) -> dict[str, dict[str, Any]]:
    """Of every task: with the embedding alone, and with 36 amplitudes beside it."""
    made: dict[str, dict[str, Any]] = {}

    def add(task: str, source: str, columns: Callable[[str], bool], only: int | None = None,
            **how: Any) -> None:  # fmt: skip
        one = data[source]
        if (source, only) not in known:
            known[source, only] = embed(net, one, only, at_once)
        z, size = known[source, only]
        place = [i for i, name in enumerate(one.label_names) if columns(name)]
        y = one.labels[:, place]
        rows: NDArray[np.bool_] = np.asarray((y >= 0).all(axis=1))
        parts = [one.part[rows] == part for part in (TRAINING, VALIDATION)]
        least = 20 if task == "chapman form" and len(rows) > 1000 else 1
        enough = np.all([(y[rows][p] == 1).sum(0) >= least for p in parts], axis=0)
        enough &= np.all([(y[rows][p] == 0).sum(0) >= 1 for p in parts], axis=0)
        if not enough.any():
            made[task] = {"error": "no class has examples in both parts"}
            return
        use = torch.from_numpy(np.flatnonzero(rows)).to(z.device)
        target = torch.from_numpy(y[rows][:, enough]).to(z.device).float()
        person, part = one.patient[rows], one.part[rows]
        names = [one.label_names[i] for i, kept in zip(place, enough, strict=True) if kept]
        both = torch.cat([z, size], dim=1)
        made[task] = {"names": names} | {
            kind: readout(x[use], target, person, part, **how)
            for kind, x in (("embedding", z), ("with amplitudes", both))
        }

    known: dict[tuple[str, int | None], tuple[Tensor, Tensor]] = {}
    add("physionet2020", "physionet2020", lambda name: True)
    add("physionet2020 10 %", "physionet2020", lambda name: True, share=0.1, draws=3)
    add("chapman rhythm", "chapman", lambda name: name.startswith("rhythm"))
    add("chapman form", "chapman", lambda name: name.startswith("beat"))
    add("ptb infarction", "ptb", lambda name: True, by_patient=True)
    add("physionet2017 lead I", "physionet2017", lambda name: True)
    add("physionet2020 lead II", "physionet2020", lambda name: True, only=1)
    return made


def choice(made: dict[str, dict[str, Any]], kind: str) -> float:
    return float(np.mean([made[task].get(kind, {}).get("auroc", 0.5) for task in CHOICE]))

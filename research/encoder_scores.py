"""Logistic regressions on frozen embeddings: fitted on training, scored on validation patients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.evaluation.logistic import LogisticRegression, fit_logistic
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
    x = (x - mean) / spread.clamp(min=1e-6) * (spread > 1e-6)
    k, everybody = y.shape[1], np.unique(patient[train])

    def fitted(rows: NDArray[Any], l2: float) -> LogisticRegression:
        own = x[rows], y[rows]  # the loss is a mean over classes, so the penalty is, too
        return fit_logistic(
            own[0][None], own[1][None], *own, multilabel=True, l2_strengths=[l2 / k]
        )

    logits, chosen = [], []
    for draw in range(draws):
        mixed = np.random.default_rng(draw).permutation(everybody)
        some = mixed[: math.ceil(share * len(everybody))]
        fit = train & np.isin(patient, some)
        if share == 1:
            tried, judged = fit & ~held_out, fit & held_out
        else:  # the strength of the penalty alone is chosen on other training patients
            tried, judged = fit, train & ~fit
        ones = torch.ones(1, int(judged.sum()), device=device)
        grades = [
            aurocs(fitted(tried, l2).logits(x[judged][None])[0], y[judged], ones).nanmean()
            for l2 in L2
        ]
        chosen.append(L2[int(torch.stack(grades).nan_to_num(0).argmax())])
        best = fitted(fit, chosen[-1])
        logits.append(best.logits(x[part == VALIDATION][None])[0].float())
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

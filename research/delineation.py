"""Train the network that marks P, QRS and T (`clocs.measure`) on LUDB, by folds of patients.

    python -m research.delineation LUDB --out runs
    python -m benchmarks.delineation score LUDB runs/*.json
    python -m research.delineation LUDB --final delineator.safetensors

The first command trains, for each of five folds, on 100, 10, 25 and 50 % of the other patients: the
branch on the pre-trained trunk as it is (frozen), both from scratch, and both together (tuned). It
leaves the marks of each run, such as frozen-100-0, in a file, and goes on where it stopped. The
last command trains on all patients. Both take `--device cuda`.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from clocs.models import delineator
from clocs.models.delineator import BRANCH_HZ, MARK_HZ, TRUNK_HZ, Delineator

marked = import_module("benchmarks.delineation")
FOLDS = 5
RUNS = {
    f"{start}-{percent}-{fold}": (start, percent, fold)
    for percent in (100, 10, 25, 50)
    for start in ("frozen", "scratch", "tuned")
    for fold in range(FOLDS)
}
CROP, RECORDINGS, OF_EACH = 512, 8, 4  # steps at 100 Hz; recordings of a batch, leads of each
FACTS = {
    "trained_on": "all 200 recordings of LUDB 1.0.1 (Kalyakulina et al. 2020), ODC-By 1.0",
    "made_by": "python -m research.delineation LUDB --final delineator.safetensors",
}


class Data:
    """All recordings as tensors."""

    def __init__(self, recordings: list[Any], device: str) -> None:
        made = [delineator.network_inputs(one.signal, marked.RATE) for one in recordings]
        steps = made[0][0].shape[1] * MARK_HZ // TRUNK_HZ
        truth = [marked.targets(one, steps, MARK_HZ) for one in recordings]
        self.slow, self.fast, self.label, self.peaks = (
            torch.from_numpy(np.stack(each)).to(device)
            for each in (*zip(*made, strict=True), *zip(*truth, strict=True))
        )


def train(data: Data, rows: NDArray[np.int64], start: str, seed: int, steps: int) -> Delineator:
    """The network after that many batches of crops of these recordings."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    network = delineator.new_delineator(pretrained=start != "scratch", seed=seed)
    network = network.to(data.slow.device).train()
    network.trunk.requires_grad_(start != "frozen")
    branch = [p for name, p in network.named_parameters() if not name.startswith("trunk")]
    rates = [3e-3, 1e-3 if start == "tuned" else 3e-3]
    parts = zip((branch, [*network.trunk.parameters()]), rates, strict=True)
    groups = [{"params": own, "lr": rate} for own, rate in parts]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, pct_start=0.15)
    for _ in range(steps):
        if start == "frozen":
            network.trunk.eval()
        loss = _loss(network, data, rng.choice(rows, RECORDINGS), rng)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        schedule.step()
    return network.eval()


def _loss(
    network: Delineator, data: Data, rows: NDArray[np.int64], rng: np.random.Generator
) -> Tensor:
    first = rng.integers(0, data.slow.shape[2] - CROP + 1, len(rows)).tolist()
    few = rng.random(len(rows)) < 0.5  # half of them lack leads
    hidden: list[Any] = [rng.permutation(12)[rng.integers(1, 7) :] if one else [] for one in few]
    leads = [rng.permutation(12)[:OF_EACH] for _ in rows]

    def cut(x: Tensor, hertz: int) -> Tensor:
        steps = hertz // TRUNK_HZ
        each = zip(rows, leads, first, strict=True)
        return torch.cat(
            [x[row, own, ..., at * steps : (at + CROP) * steps] for row, own, at in each]
        )

    slow = torch.stack(
        [data.slow[row, :, at : at + CROP] for row, at in zip(rows, first, strict=True)]
    )
    for own, missing in zip(slow, hidden, strict=True):
        own[missing] = torch.nan
    fast, label = cut(data.fast, BRANCH_HZ), cut(data.label, MARK_HZ).long()
    fast = fast + torch.randn_like(fast) * 0.03 * torch.rand(len(fast), 1, device=fast.device)
    of = torch.arange(len(rows), device=fast.device).repeat_interleave(OF_EACH)
    made, peaks = network(slow, fast, of), cut(data.peaks, MARK_HZ).float()
    inside = (label != marked.IGNORED).float()
    near = functional.binary_cross_entropy_with_logits(made[:, 4:], peaks, reduction="none")
    of_waves = functional.cross_entropy(made[:, :4], label, ignore_index=marked.IGNORED)
    loss: Tensor = of_waves + (near.mean(dim=1) * inside).sum() / inside.sum().clamp(min=1)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ludb", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--only", nargs="*", default=RUNS, choices=RUNS, metavar="RUN")
    parser.add_argument("--final", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    recordings = list(marked.ludb(given.ludb))
    data = Data(recordings, given.device)
    order = np.random.default_rng(0).permutation(len(recordings))
    if given.final:
        train(data, order, "frozen", 0, given.steps).save(given.final, FACTS)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    for run in given.only:
        start, percent, fold = RUNS[run]
        if (path := given.out / f"{run}.json").exists():
            continue
        others = order[np.arange(len(order)) % FOLDS != fold]
        rows = others[: round(percent / 100 * len(others))]
        network = train(data, rows, start, fold, given.steps)
        made = {}
        for row in order[fold::FOLDS].tolist():
            waves = zip(marked.LEADS, network.waves(data.slow[row], data.fast[row]), strict=True)
            made[recordings[row].name] = marked.as_marks(waves)
        marked.save_marks(path, made)
        print(path, flush=True)


if __name__ == "__main__":
    main()

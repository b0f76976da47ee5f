"""Recordings that `encoder_data.py` packed, on a device, and random crops of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DATASETS = ("chapman", "physionet2020", "physionet2017", "ptb", "ludb", "cinc2011")
STEP_MV = 0.005
TRAINING, VALIDATION = 0, 1


@dataclass
class Dataset:
    """Recordings of one dataset on the device, but for those of test patients."""

    name: str
    signal: Tensor  # (samples of all recordings,) int16: of each the first lead, the second, …
    offset: Tensor  # (recordings,) where each begins
    length: Tensor  # (recordings,) samples per lead
    leads: int  # 8: I, II, V1–V6; 1: I
    patient: NDArray[np.int32]  # copies have the same
    part: NDArray[np.int8]
    labels: NDArray[np.int8]
    label_names: list[str]


def load(folder: Path, device: torch.device, most: int | None) -> dict[str, Dataset]:
    """`most`: at most so many recordings of each dataset, to try it out."""
    found = {}
    for name in DATASETS:
        meta = dict(np.load(folder / f"{name}.npz"))
        length, leads = meta["length"].astype(np.int64), len(meta["leads"])
        begins = (np.cumsum(length) - length) * leads
        values = meta["signal"]
        use = meta["part"] <= VALIDATION
        if name in ("chapman", "physionet2020", "physionet2017"):  # one of each group of copies
            first = np.zeros(len(use), bool)
            usable = np.flatnonzero(use)
            first[usable[np.unique(meta["patient"][usable], return_index=True)[1]]] = True
            labels = np.full((meta["patient"].max() + 1, meta["labels"].shape[1]), -1, np.int8)
            np.maximum.at(labels, meta["patient"], meta["labels"])  # copies differ in labels
            meta["labels"], use = labels[meta["patient"]], use & first
        rows = np.flatnonzero(use)[:most]
        found[name] = Dataset(
            name,
            torch.from_numpy(values).to(device),
            torch.from_numpy(begins[rows]).to(device),
            torch.from_numpy(length[rows]).to(device),
            leads,
            meta["patient"][rows],
            meta["part"][rows],
            meta["labels"][rows],
            [str(one) for one in meta["label_names"]],
        )
    return found


def synthetic(device: torch.device, n: int) -> dict[str, Dataset]:
    """Random waves in place of recordings, to try a machine."""
    found = {}
    numbers = np.random.default_rng(0)
    names = {
        "physionet2020": [f"class {i}" for i in range(9)],
        "chapman": [f"rhythm {i}" for i in range(4)] + ["beat LVHV"],
        "ptb": ["myocardial infarction"],
        "physionet2017": list("NAO~"),
    }
    for name in DATASETS:
        leads, length = (1 if name == "physionet2017" else 8), 600
        wave = np.sin(np.arange(length) * numbers.uniform(0.05, 0.5, (n, leads, 1)))
        signal = (wave * numbers.uniform(20, 400, (n, leads, 1))).astype(np.int16)
        columns = names.get(name, [])
        found[name] = Dataset(
            name,
            torch.from_numpy(signal.ravel()).to(device),
            torch.arange(n, device=device) * leads * length,
            torch.full((n,), length, device=device),
            leads,
            np.arange(n, dtype=np.int32),
            (np.arange(n) % 2).astype(np.int8),
            numbers.integers(0, 2, (n, len(columns))).astype(np.int8),
            columns,
        )
    return found


@dataclass
class Pool:
    """The training recordings of several datasets as one."""

    signal: Tensor
    offset: Tensor
    length: Tensor
    leads: Tensor
    patient: Tensor

    @classmethod
    def of(cls, datasets: Sequence[Dataset]) -> Pool:
        begins = np.cumsum([0] + [len(one.signal) for one in datasets])
        patients = np.cumsum([0] + [int(one.patient.max()) + 1 for one in datasets])
        parts = []
        for i, one in enumerate(datasets):
            rows = torch.from_numpy(np.flatnonzero(one.part == TRAINING)).to(one.signal.device)
            patient = torch.from_numpy(one.patient.astype(np.int64) + patients[i]).to(rows.device)
            leads = torch.full_like(rows, one.leads)
            offset = one.offset[rows] + int(begins[i])
            parts.append((offset, one.length[rows], leads, patient[rows]))
        offset, length, leads, patient = (torch.cat(column) for column in zip(*parts, strict=True))
        signal = torch.cat([one.signal for one in datasets])
        return cls(signal, offset, length, leads, patient)


def twelve(eight: Tensor) -> Tensor:
    """(n, 8, t) of I, II, V1–V6 -> (n, 12, t)."""
    one, two = eight[:, :1], eight[:, 1:2]
    limbs = [one, two, two - one, -(one + two) / 2, one - two / 2, two - one / 2]
    return torch.cat([*limbs, eight[:, 2:]], dim=1)


def crops(
    signal: Tensor, offset: Tensor, length: Tensor, leads: Tensor, times: Tensor
) -> tuple[Tensor, Tensor]:
    """times: (n, t) in samples -> (n, 12, t) mV, linear between samples; (n, 12) bool: there."""
    low = times.floor()
    share = (times - low)[:, None]
    low = low.long()[:, None]
    several = (leads > 1)[:, None, None]
    lead = torch.arange(8, device=signal.device)[None, :, None] * several
    index = offset[:, None, None] + lead * length[:, None, None] + low
    after = torch.minimum(low + 1, length[:, None, None] - 1) - low
    x = torch.lerp(signal[index].float(), signal[index + after].float(), share) * STEP_MV
    there = several[:, :, 0] | (torch.arange(12, device=signal.device) == 0)
    return twelve(x), there


def random_subset(there: Tensor, most: Tensor) -> Tensor:
    """1 to `most` (n, 1) of the leads there, every number equally likely."""
    order = torch.rand(there.shape, device=there.device).masked_fill(~there, 2.0)
    rank = order.argsort(dim=1).argsort(dim=1)
    limit = there.sum(dim=1, keepdim=True).minimum(most)
    number = 1 + (torch.rand(len(there), 1, device=there.device) * limit).long()
    return rank < number

"""The paper's tables as printed: `paper_results.csv`, one AUC per row."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

TAU_D = 0.9  # of BYOL rows that do not state it

METHOD_TITLES = {  # in the paper's order, with its names; random-bn is our addition
    "random": "Random init.",
    "random-bn": "Random, BN fitted",
    "supervised": "Supervised",
    "mtssl": "MT-SSL",
    "byol": "BYOL",
    "simclr": "SimCLR",
    "cmsc": "CMSC",
    "cmlc": "CMLC",
    "cmsmlc": "CMSMLC",
}
CLOCS = ("cmsc", "cmlc", "cmsmlc")
UNTRAINED = ("random", "random-bn")
DATASET_TITLES = {
    "chapman": "Chapman",
    "physionet2020": "PhysioNet 2020",
    "physionet2017": "PhysioNet 2017",
    "cardiology": "Cardiology",
}
SINGLE_LEAD = ("physionet2017", "cardiology")
MULTI_LABEL = ("physionet2020",)  # a sigmoid per class: the AUC of logits is that of probabilities
PRETRAIN = ("chapman", "physionet2020")
DOWNSTREAM = {  # the transfers, in the paper's order of columns
    "chapman": ("cardiology", "physionet2017", "physionet2020"),
    "physionet2020": ("cardiology", "physionet2017", "chapman"),
}
PAIRS = tuple((p, d) for p, downstream in DOWNSTREAM.items() for d in downstream)
DIMENSIONS = (32, 64, 128, 256)
FRACTIONS = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Printed:
    """One AUC of one table, over five seeds."""

    table: str  # its name in the paper's source
    scenario: str  # 'linear' or 'finetune'
    leads: int
    embedding_dim: int
    fraction: float
    pretrain: str | None  # None for a random encoder
    downstream: str
    method: str
    tau_d: float | None  # BYOL's decay rate; 0.9 where the table does not state it
    mean: float
    std: float


@cache
def read_toml(name: str) -> dict[str, Any]:
    """A data file of this package."""
    return tomllib.loads(files("clocs.experiments").joinpath(name).read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def printed() -> tuple[Printed, ...]:
    """All 1,428 AUCs of the paper's tables; some are in two tables."""
    text = files("clocs.experiments").joinpath("paper_results.csv").read_text(encoding="utf-8")
    return tuple(_row(row) for row in csv.DictReader(text.splitlines()))


def _row(row: dict[str, str]) -> Printed:
    tau_d = float(row["tau_d"]) if row["tau_d"] else TAU_D if row["method"] == "byol" else None
    leads, embedding_dim = int(row["leads"]), int(row["embedding_dim"])
    fraction, mean, std = (float(row[name]) for name in ("fraction", "auc_mean", "auc_std"))
    table, where = row["table"].removeprefix("table:"), (row["pretrain"] or None, row["downstream"])
    shape = (leads, embedding_dim, fraction)
    return Printed(table, row["scenario"], *shape, *where, row["method"], tau_d, mean, std)

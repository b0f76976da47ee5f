"""Attempts: one step of an experiment, tried here or on a node of a cluster, as plain values.

On a node, data come from a folder of stores that every node sees under the same path, and the files
of encoders travel with the task: only the process that asked for it writes to the folder of runs.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from clocs.errors import ClocsError, SettingError
from clocs.experiments.data import Library, library_of, open_library
from clocs.experiments.grid import Cell, Pretraining
from clocs.experiments.ledger import versions
from clocs.experiments.simulated import simulated_datasets
from clocs.experiments.steps import Profile, Throughput, learn, score
from clocs.files import LOCK
from clocs.training.loop import Epoch

Files = dict[str, bytes]


@dataclass(frozen=True)
class Attempt:
    """What came of a step: one result per run, or an error."""

    seconds: float = 0.0
    results: Sequence[Mapping[str, Any]] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    speed: str = ""  # of a training, for people
    files: Files = field(default_factory=dict)  # of an encoder, made on a node
    counts: Mapping[str, Any] = field(default_factory=dict)  # of a dataset, scored on a node


def try_to_learn(
    encoder: Pretraining,
    folder: Path,
    library: Library,
    profile: Profile,
    *,
    seeds: int,
    device: torch.device,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Attempt:
    """Pre-train one encoder in a folder, all seeds at once."""
    began, throughput = time.monotonic(), Throughput()

    def count(epoch: Epoch) -> None:
        throughput.add(epoch)
        on_epoch(epoch)

    try:
        metrics = learn(
            encoder, folder, library, profile, seeds=seeds, device=device, on_epoch=count
        )
    except Exception as error:
        return Attempt(time.monotonic() - began, error=_text(error))
    return Attempt(
        time.monotonic() - began,
        [metrics | throughput.json()],
        versions(device.type),
        speed=str(throughput),
    )


def try_to_score(
    cells: Sequence[Cell],
    folders: Sequence[Path],
    library: Library,
    profile: Profile,
    *,
    device: torch.device,
) -> Attempt:
    """Score one fleet, whose encoders are in `folders`."""
    began = time.monotonic()
    try:
        results = score(cells, folders, library, profile, device=device)
    except Exception as error:  # its text keeps no reference to memory on the device
        return Attempt(time.monotonic() - began, error=_text(error))
    return Attempt(time.monotonic() - began, results, versions(device.type))


def counts_of(library: Library, cell: Cell) -> dict[str, Any]:
    """The size of a cell's downstream dataset, for the report."""
    frames = library.frames(cell.downstream, leads=cell.pretraining.leads)
    return {
        "recordings": len(frames.recording_ids),
        "patients": len(frames.patient_ids),
        "frames": len(frames),
        "patients_by_part": [len(frames.patients_of(part)) for part in range(3)],
    }


@dataclass(frozen=True)
class Site:
    """What a node is told of every task: where the data are, and how to train."""

    stores: str | None  # a folder; None: simulated datasets
    contents: Mapping[str, str]  # the hash of each dataset's recordings
    profile: Profile
    seeds: int
    device: str

    def library(self, *datasets: str) -> Library:
        """The data as this node sees it, which must be the same as the driver's."""
        library = node_library(self.stores)
        for name in datasets:
            source = library.sources.get(name)
            if source is None or source.content != self.contents[name]:
                seen = "does not see" if source is None else "sees another version of"
                raise SettingError(
                    f"a node {seen} {name} in {self.stores}; give as `stores` a folder that every "
                    "node of the cluster sees under this path"
                )
        return library


@lru_cache(maxsize=1)
def node_library(stores: str | None) -> Library:
    """Opened once per process of a node, which runs many tasks."""
    return simulated_library() if stores is None else open_library(Path(stores))


@lru_cache(maxsize=1)
def simulated_library() -> Library:
    """The simulated datasets, made once."""
    return library_of(simulated_datasets())


def learn_on_node(site: Site, encoder: Pretraining) -> Attempt:
    """Pre-train one encoder on this node; its files come with the attempt."""
    library = site.library(encoder.dataset)
    device = torch.device(site.device)
    with TemporaryDirectory(prefix="clocs-") as temporary:
        folder = Path(temporary)
        attempt = try_to_learn(
            encoder, folder, library, site.profile, seeds=site.seeds, device=device
        )
        return replace(attempt, files={} if attempt.error else files_of(folder))


def score_on_node(site: Site, cells: Sequence[Cell], encoders: Sequence[Files]) -> Attempt:
    """Score one fleet on this node, from the files of its encoders."""
    library = site.library(*{cell.downstream for cell in cells})
    with TemporaryDirectory(prefix="clocs-") as temporary:
        folders = [Path(temporary) / str(number) for number in range(len(encoders))]
        for folder, files in zip(folders, encoders, strict=True):
            folder.mkdir()
            for name, content in files.items():
                (folder / name).write_bytes(content)
        device = torch.device(site.device)
        attempt = try_to_score(cells, folders, library, site.profile, device=device)
    return replace(attempt, counts=counts_of(library, cells[0]))


def files_of(folder: Path) -> Files:
    """The files of an encoder, by name."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name != LOCK)
    return {path.name: path.read_bytes() for path in paths}


def _text(error: Exception) -> str:
    """What the ledger keeps of an error: the message of our own, the traceback of others."""
    return str(error) if isinstance(error, ClocsError) else traceback.format_exc()

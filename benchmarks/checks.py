"""What comparing digests on every read costs: the time spent on it, beside all of the reading.

    python benchmarks/checks.py [--store stores/chapman] [--repeats 5]

The fastest of all repeats counts. Without a store, one is simulated. (Differences between two whole
runs, with and without the comparison, are smaller than their noise.)
"""

from __future__ import annotations

import argparse
import pkgutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import clocs
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.patients.embeddings import Embeddings
from clocs.patients.index import PatientIndex
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained

SAMPLES = ("clocs.store.store.digest",)
ARRAYS = ("clocs.sealed._checksum",)
PARQUET = ("clocs.patients.embeddings.is_sealed",)
INDEX = ("clocs.patients.index_files._compare",)


def seconds(action: Callable[[], object], checks: Sequence[str]) -> tuple[float, float]:
    """Of the action, and of these functions within it."""
    within = [0.0]

    def timed(check: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = check(*arguments)
            within[0] += time.perf_counter() - began
            return result

        return call

    with ExitStack() as patches:
        for name in checks:
            check = pkgutil.resolve_name(name)
            patches.enter_context(patch(name, timed(check)))
        began = time.perf_counter()
        action()
        return time.perf_counter() - began, within[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.store is None:
            clocs.prepare("synthetic", out=folder / "store", patients=1000)
        store = clocs.open_store(given.store or folder / "store")
        frames = make_frames(store)
        encoder = untrained(frames, Plan("random-bn"))[0]
        frames.save(folder / "f.safetensors")
        embeddings = clocs.embed(encoder, store, level="frame")
        embeddings.save(folder / "e.parquet")
        PatientIndex.build(embeddings.to("patient")).save(folder / "index")
        cases: dict[str, tuple[Callable[[], object], Sequence[str]]] = {
            "read all signals of a store": (lambda: list(store.iter_signals()), SAMPLES),
            "cut a store into frames": (lambda: make_frames(store), SAMPLES),
            "embed a store": (lambda: clocs.embed(encoder, store), SAMPLES),
            "load saved frames": (lambda: Frames.load(folder / "f.safetensors"), ARRAYS),
            "load embeddings": (lambda: Embeddings.load(folder / "e.parquet"), PARQUET),
            "open an index": (lambda: PatientIndex.load(folder / "index"), INDEX),
        }
        print(f"{len(store):,} recordings of {store.manifest.dataset}")
        print(f"{'':<30}{'whole ms':>10}{'checks ms':>11}{'share':>8}")
        for case, (action, checks) in cases.items():
            action()
            whole, within = min(seconds(action, checks) for _ in range(given.repeats))
            print(f"{case:<30}{1000 * whole:>10.1f}{1000 * within:>11.2f}{within / whole:>8.1%}")


if __name__ == "__main__":
    main()

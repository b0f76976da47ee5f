"""What comparing digests on every read costs: processor time with the comparison and without it.

    python benchmarks/checks.py [--store stores/chapman] [--repeats 5]

Both are measured in turn, and the fastest of each counts. Without a store, one is simulated.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import clocs
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.patients.embeddings import Embeddings
from clocs.patients.index import PatientIndex
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain_frames import untrained


class Equal(int):
    """A digest that equals every other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def nothing(*arguments: Any) -> None:
    return None


SAMPLES = {"clocs.store.store.digest": lambda samples: Equal()}
ARRAYS = {"clocs.sealed._checksum": lambda arrays: Equal()}
PARQUET = {"clocs.patients.embeddings.is_sealed": lambda file: True}
INDEX = {f"clocs.patients.index_files.{name}": nothing for name in ("_compare", "_compare_vectors")}


def seconds(action: Callable[[], object]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def unchecked(action: Callable[[], object], without: dict[str, Any]) -> float:
    patches = [patch(name, new) for name, new in without.items()]
    for one in patches:
        one.start()
    try:
        return seconds(action)
    finally:
        for one in patches:
            one.stop()


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
        cases: dict[str, tuple[Callable[[], object], dict[str, Any]]] = {
            "read all signals of a store": (lambda: list(store.iter_signals()), SAMPLES),
            "cut a store into frames": (lambda: make_frames(store), SAMPLES),
            "embed a store": (lambda: clocs.embed(encoder, store), SAMPLES),
            "load saved frames": (lambda: Frames.load(folder / "f.safetensors"), ARRAYS),
            "load embeddings": (lambda: Embeddings.load(folder / "e.parquet"), PARQUET),
            "open an index": (lambda: PatientIndex.load(folder / "index"), INDEX),
        }
        print(f"{len(store):,} recordings of {store.manifest.dataset}")
        print(f"{'':<30}{'checked ms':>12}{'unchecked ms':>14}{'cost':>9}")
        for case, (action, without) in cases.items():
            action()
            both = [(seconds(action), unchecked(action, without)) for _ in range(given.repeats)]
            checked, plain = (1000 * min(times) for times in zip(*both, strict=True))
            print(f"{case:<30}{checked:>12.1f}{plain:>14.1f}{checked / plain - 1:>+9.1%}")


if __name__ == "__main__":
    main()

"""The process that computes a map: `python -m clocs.explorer.umap_worker vectors.npy SETTINGS`.

The settings are JSON. It writes positions.safetensors next to its input and progress to standard
output, as one line of JSON per step.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

_SHARE = 0.35  # of the time spent finding neighbours; the rest is layout
_NEAREST, _PROBES = 10, 8  # neighbours of a patient that is placed, and lists searched for them
_AT_ONCE = 65_536  # patients


def main(source: Path, settings: dict[str, Any]) -> None:
    vectors = np.load(source, mmap_mode="r", allow_pickle=False)
    _report(0.02, "starting")
    warnings.simplefilter("ignore")
    try:
        # the first are a random sample: they are in the order of their pseudonyms
        some = np.ascontiguousarray(vectors[: settings["most"]])
        positions = _layout(some, settings)
        if len(some) < len(vectors):
            others = vectors[len(some) :]
            positions = np.concatenate([positions, placed(others, some, positions)])
    except Exception as error:  # any failure of UMAP becomes a sentence on the page
        _write({"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]})
        sys.exit(1)
    from clocs.explorer.patient_map import MAP

    positions = _rotated(positions)
    MAP.write(source.with_name("positions.safetensors"), {}, {"positions": positions})


def _layout(vectors: Any, settings: dict[str, Any]) -> Any:
    import umap

    _report(0.05, "finding nearest neighbours")
    reducer = umap.UMAP(
        n_neighbors=min(settings["neighbours"], len(vectors) - 1),
        min_dist=settings["min_dist"],
        metric="cosine",
        random_state=settings["seed"],  # single-threaded, but reproducible
        init="pca",
        verbose=True,
        tqdm_kwds={"file": _Steps(), "bar_format": "{n_fmt}/{total_fmt}", "mininterval": 0.2},
    )
    # UMAP prints to stdout, which must carry nothing but progress lines.
    _outputs.append(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        sys.stdout = nowhere
        made = reducer.fit_transform(vectors)
    return np.ascontiguousarray(made, np.float32)


def placed(others: Any, some: Any, positions: Any) -> Any:
    """(m, 2) positions of others: the mean of their nearest neighbours', as of uploads.

    Args:
        others: (m, dim) unit vectors, perhaps memory-mapped.
        some: (n, dim) unit vectors that have a position.
        positions: (n, 2) theirs.
    """
    import faiss

    faiss.omp_set_num_threads(1)  # as UMAP, which leaves the other cores to the pages
    lists = max(1, round(math.sqrt(len(some))))
    index: Any = faiss.index_factory(some.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.min_points_per_centroid = 0, 1
    index.train(some)
    index.add(some)
    index.nprobe = _PROBES
    made = np.empty((len(others), 2), np.float32)
    for start in range(0, len(others), _AT_ONCE):
        part = np.ascontiguousarray(others[start : start + _AT_ONCE])
        near, rows = index.search(part, _NEAREST)
        # -1 where the lists that were searched hold fewer
        weights = np.where(rows < 0, 0, 1 / np.maximum(1 - near, 1e-4))
        weights /= weights.sum(axis=1, keepdims=True)
        made[start : start + len(part)] = np.einsum("nk,nkd->nd", weights, positions[rows])
        _report(0.99, "placing all patients")
    return made


def _rotated(positions: Any) -> Any:
    """Centerd, with the longer axis horizontal, to fill a wide screen."""
    centered = positions - positions.mean(axis=0)
    _, axes = np.linalg.eigh(centered.T @ centered)
    return np.ascontiguousarray(centered @ axes[:, ::-1], np.float32)


class _Steps:
    """The file that tqdm writes its epoch counts to."""

    def write(self, text: str) -> int:
        done, _, total = text.strip().rpartition("\r")[2].partition("/")
        if done.isdigit() and total.isdigit() and int(total):
            _report(_SHARE + (1 - _SHARE) * int(done) / int(total), "computing the layout")
        return len(text)

    def flush(self) -> None: ...


_outputs: list[Any] = [sys.stdout]  # the last is written to


def _report(progress: float, stage: str) -> None:
    _write({"progress": round(progress, 3), "stage": stage})


def _write(message: dict[str, Any]) -> None:
    try:
        _outputs[-1].write(json.dumps(message) + "\n")
        _outputs[-1].flush()
    except BrokenPipeError:  # the server has ended: nobody waits for the map
        os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

"""The map: patients' embeddings in two dimensions, and the columns it is colored and filtered by.

UMAP runs once, in a process of its own (it compiles for seconds, which would block the pages), and
is cached under a hash of the vectors and the settings; the map shows PCA until it has finished. Of
many patients, UMAP lays out a random sample and the others are placed among them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import ClocsError, FileError, with_extra
from clocs.files import private_cache
from clocs.frames.frames import SEXES
from clocs.frames.splits import PARTS
from clocs.sealed import ArrayFile
from clocs.workers import start_python

MAX_LABELS = 31  # bits of a patient's mask; the last means all rarer ones
UNKNOWN_AGE = 255
OTHER = "other"
Positions = NDArray[np.float32]  # (patients, 2)
UMAP = {"neighbors": 15, "min_dist": 0.1, "seed": 0}
SAMPLE = 100_000  # patients that UMAP lays out; the others are placed among them, as uploads are
_NEAREST, _PROBES = 10, 8  # neighbors of a patient that is placed, and lists searched for them
_AT_ONCE = 65_536  # patients
MAP = ArrayFile("a cached map", key="clocs.map", format=1, remedy="delete it")  # of `positions`


@dataclass(frozen=True)
class ProjectionState:
    """Which projection the map shows, and the progress of UMAP."""

    kind: Literal["pca", "umap"]
    state: Literal["ready", "working", "failed"]  # PCA remains after a failure
    progress: float  # between 0 and 1
    description: str  # of the current step or problem, for the page


def pca(vectors: NDArray[np.float32]) -> Positions:
    """(n, dim) -> (n, 2): the two principal components, with fixed signs."""
    centered = vectors - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    _, axes = np.linalg.eigh((centered.T @ centered).astype(np.float64))
    two = axes[:, :-3:-1] if axes.shape[1] > 1 else np.repeat(axes, 2, axis=1)
    two = two * np.where(two[np.abs(two).argmax(axis=0), [0, 1]] < 0, -1, 1)
    return np.asarray(centered @ two.astype(np.float32), np.float32)


def position_among(
    positions: Positions, rows: NDArray[np.int64], cosine: NDArray[np.float32]
) -> Positions:
    """(2,) position of a new recording: its neighbors' mean, weighted by inverse distance.

    UMAP's own transform starts there too, but would need the fitted model, not just the map.
    """
    weights = 1.0 / np.maximum(cosine.astype(np.float64), 1e-4)
    return np.asarray(np.average(positions[rows], axis=0, weights=weights), np.float32)


class Projection:
    """Patients' positions: PCA at once, UMAP when it has finished.

    A thread reads what the process of UMAP reports. Every failure ends in a state that the page
    shows, so that it never waits in vain.

    Attributes:
        now: The positions and the state that belongs to them.
    """

    _process: subprocess.Popen[bytes] | None = None
    _thread: threading.Thread | None = None
    _stopped = False

    def __init__(self, vectors: NDArray[np.float32], cache: Path) -> None:
        self.vectors = vectors
        self.file = cache / f"map-{_key(vectors)}.safetensors"
        cached = _load(self.file, len(vectors))
        if cached is not None:
            self._set(cached, "umap", "ready", 1.0, "UMAP")
        elif len(vectors) < 5:
            self._set(pca(vectors), "pca", "ready", 1.0, "PCA (too few patients for UMAP)")
        else:
            self._set(pca(vectors), "pca", "working", 0.0, "waiting to start")

    def _set(self, positions: Positions, *state: Any) -> None:
        self.now = positions, ProjectionState(*state)  # at once, for other threads

    def start(self) -> None:
        """Begin, unless it is done."""
        if self._thread is None and self.now[1].state == "working":
            self._thread = threading.Thread(target=self._compute, daemon=True)
            self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Until it has ended."""
        if self._thread is not None:
            self._thread.join(seconds)

    def stop(self) -> None:
        """End it if it is running or about to start, and let it clean up."""
        self._stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
        self.wait(5)

    def _compute(self) -> None:
        made, problem = None, "UMAP failed; the map shows PCA"
        try:
            with tempfile.TemporaryDirectory(prefix="clocs-map-") as folder:
                source = Path(folder, "vectors.npy")
                np.save(source, self.vectors, allow_pickle=False)
                for message in self._messages(source):
                    if "error" in message:
                        problem = f"UMAP failed ({message['error']}); the map shows PCA"
                    else:
                        self._set(self.now[0], "pca", "working", *message.values())
                made = _load(source.with_name("positions.safetensors"), len(self.vectors))
        except OSError as error:
            problem = f"UMAP failed ({error.strerror}); the map shows PCA"
        if made is None:
            self._set(self.now[0], "pca", "failed", 0.0, problem)
            return
        self._set(made, "umap", "ready", 1.0, "UMAP")
        with suppress(OSError, FileError):  # it will be computed again next time
            private_cache(self.file.parent)
            MAP.write(self.file, {}, {"positions": made})

    def _messages(self, source: Path) -> Iterator[dict[str, Any]]:
        """What the process reports until it ends; what its libraries print is left out."""
        self._process = start_python(__name__, str(source), stdin=subprocess.DEVNULL)
        if self._stopped:
            self._process.terminate()
        for line in self._process.stdout or ():
            with suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message
        self._process.wait()


def report(**message: Any) -> None:
    """Tell the thread of the server that follows this process."""
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the server has ended: nobody waits
        os._exit(1)


def _key(vectors: NDArray[np.float32]) -> str:
    # sha256 because processors have instructions for it
    settings = UMAP | ({"sample": SAMPLE} if len(vectors) > SAMPLE else {})
    key = hashlib.sha256(json.dumps(settings).encode())
    key.update(str(vectors.shape).encode())
    key.update(np.ascontiguousarray(vectors, "<f4").data)
    return key.hexdigest()[:24]


def _load(path: Path, n: int) -> Positions | None:
    """The file's positions, or None if it is missing, damaged or of other patients."""
    try:
        positions = MAP.read(path)[1]["positions"]
    except (ClocsError, KeyError):
        return None
    good = positions.shape == (n, 2) and positions.dtype == np.float32
    return positions if good and np.isfinite(positions).all() else None


def label_names(rows: pl.DataFrame, first: Sequence[str]) -> tuple[str, ...]:
    """The labels in use, `first` in their order; beyond 31 the rare ones become 'other'."""
    counts = dict(rows["labels"].explode().drop_nulls().value_counts().iter_rows())
    known = [label for label in dict.fromkeys([*first, *sorted(counts)]) if counts.get(label)]
    if len(known) <= MAX_LABELS:
        return tuple(known)
    common = set(sorted(known, key=lambda label: -counts[label])[: MAX_LABELS - 1])
    return (*(label for label in known if label in common), OTHER)


def map_columns(
    rows: pl.DataFrame, labels: Sequence[str], datasets: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """One value per patient: labels as bits; split, sex and dataset as codes; age in years."""
    bit = {label: 1 << i for i, label in enumerate(labels)}
    other = bit.get(OTHER, 0)
    # Most patients have one of a few sets of labels: look up sets, not patients.
    sets = rows["labels"].list.join("\0")
    mask_of = {
        text: sum({bit.get(label, other) for label in text.split("\0") if label})
        for text in sets.unique().to_list()
    }
    masks = sets.replace_strict(mask_of, return_dtype=pl.UInt32).to_numpy()
    age = rows["age"].fill_nan(None).clip(0, UNKNOWN_AGE - 1).round()
    return {
        "labels": np.asarray(masks, np.uint32),
        "split": _coded(rows["split"], {str(part): i for i, part in enumerate(PARTS)}, len(PARTS)),
        "sex": _coded(rows["sex"], {sex: i for i, sex in enumerate(SEXES)}, 0),
        "age": age.fill_null(UNKNOWN_AGE).cast(pl.UInt8).to_numpy(),
        "dataset": _coded(rows["dataset"], {name: i for i, name in enumerate(datasets)}, 0),
    }


def _coded(column: pl.Series, codes: Mapping[str, int], unknown: int) -> NDArray[np.uint8]:
    coded = column.replace_strict(codes, default=unknown, return_dtype=pl.UInt8)
    return coded.fill_null(unknown).to_numpy()


# The process that computes a map: `python -m clocs.explorer.patient_map vectors.npy`. It writes
# positions.safetensors next to its input, and progress to standard output: a line of JSON per step.


def main(source: Path) -> None:
    """Lay out the vectors of a file."""
    vectors = np.load(source, mmap_mode="r", allow_pickle=False)
    report(progress=0.02, description="starting")
    warnings.simplefilter("ignore")
    try:
        # the first are a random sample: they are in the order of their pseudonyms
        some = np.ascontiguousarray(vectors[:SAMPLE])
        positions = _layout(some)
        if len(some) < len(vectors):
            others = vectors[len(some) :]
            positions = np.concatenate([positions, placed(others, some, positions)])
    except Exception as error:  # any failure of UMAP becomes a sentence on the page
        report(error=f"{type(error).__name__}: {error}".splitlines()[0][:200])
        sys.exit(1)
    positions = _rotated(positions)
    MAP.write(source.with_name("positions.safetensors"), {}, {"positions": positions})


def _layout(vectors: Positions) -> Positions:
    try:
        import umap
    except ImportError:
        report(error=f"it is not installed; {with_extra('web')}")
        sys.exit(1)
    report(progress=0.1, description="computing the layout")
    reducer = umap.UMAP(
        n_neighbors=min(UMAP["neighbors"], len(vectors) - 1),
        min_dist=UMAP["min_dist"],
        metric="cosine",
        random_state=UMAP["seed"],  # single-threaded, but reproducible
        init="pca",
    )
    return np.ascontiguousarray(reducer.fit_transform(vectors), np.float32)


def placed(others: Positions, some: Positions, positions: Positions) -> Positions:
    """(m, 2) positions of others: the mean of their nearest neighbors', as of uploads.

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
        report(progress=0.99, description="placing all patients")
    return made


def _rotated(positions: Positions) -> Positions:
    """Centered, with the longer axis horizontal, to fill a wide screen."""
    centered = positions - positions.mean(axis=0)
    _, axes = np.linalg.eigh(centered.T @ centered)
    return np.ascontiguousarray(centered @ axes[:, ::-1], np.float32)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

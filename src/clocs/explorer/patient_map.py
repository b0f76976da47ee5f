"""Projection: embeddings -> two dimensions for a map. UMAP, once, cached; PCA until it is there.

UMAP runs in a process of its own (it compiles for seconds and would hold up the pages), is kept on
disk under a hash of the vectors and the settings, and reports its progress. Knows nothing about
patients or pages.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clocs.explorer.packing import pack, unpack
from clocs.files import write_atomic

Positions = NDArray[np.float32]


@dataclass(frozen=True)
class Settings:
    """Of UMAP; a map is a function of these and of the vectors."""

    neighbours: int = 15
    min_dist: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class State:
    """How far the map is.

    Attributes:
        kind: What is shown now.
        state: 'ready', 'working', or 'failed' (then PCA stays).
        progress: 0 to 1.
        words: What goes on, for a person.
    """

    kind: Literal["pca", "umap"]
    state: Literal["ready", "working", "failed"]
    progress: float
    words: str


def pca(vectors: NDArray[np.float32]) -> Positions:
    """(n, dim) -> (n, 2): the two directions of largest spread, each sign fixed."""
    centred = vectors - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    _, axes = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    two = axes[:, :-3:-1] if axes.shape[1] > 1 else np.repeat(axes, 2, axis=1)
    two = two * np.where(two[np.abs(two).argmax(axis=0), [0, 1]] < 0, -1, 1)
    return np.asarray(centred @ two.astype(np.float32), np.float32)


def between(
    positions: Positions, rows: NDArray[np.int64], cosine: NDArray[np.float32]
) -> Positions:
    """(2,) where a newcomer lies: the mean of its neighbours' places, nearer ones counting more.

    UMAP's own transform starts there too; it is kept out so that a map on disk is all that is
    needed.
    """
    weights = 1.0 / np.maximum(cosine.astype(np.float64), 1e-4)
    return np.asarray(np.average(positions[rows], axis=0, weights=weights), np.float32)


class Projection:
    """A map that gets better: PCA at once, UMAP when it is done."""

    def __init__(
        self, vectors: NDArray[np.float32], cache: Path, settings: Settings | None = None
    ) -> None:
        self.vectors, self.settings = vectors, settings or Settings()
        self.file = cache / f"map-{_key(vectors, self.settings)}.clocs"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._lock = threading.Lock()
        kept = _load(self.file, len(vectors))
        if kept is not None:
            self._set(kept, State("umap", "ready", 1.0, "UMAP"))
        elif len(vectors) < 5:
            self._set(pca(vectors), State("pca", "ready", 1.0, "PCA (too few patients for UMAP)"))
        else:
            self._set(pca(vectors), State("pca", "working", 0.0, "waiting"))

    def _set(self, positions: Positions, state: State) -> None:
        with self._lock:
            self.positions, self.state = positions, state

    def now(self) -> tuple[Positions, State]:
        """Where everybody is, and how far the map is; the two belong together."""
        with self._lock:
            return self.positions, self.state

    def start(self) -> None:
        """Compute the map in the background, unless it is there."""
        if self.state.state != "working" or self._process is not None:
            return
        if importlib.util.find_spec("umap") is None:
            words = "PCA: UMAP needs the extra `web` (pip install 'clocs[web]')"
            self._set(self.positions, State("pca", "failed", 0.0, words))
            return
        threading.Thread(target=self._compute, name="projection", daemon=True).start()

    def stop(self) -> None:
        """End the computation, if one runs or is about to."""
        self._stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def _compute(self) -> None:
        """Whatever goes wrong is said on the page: nobody should wait for a map for ever."""
        try:
            made, words = self._computed()
        except OSError as error:
            made, words = None, f"UMAP failed ({error.strerror}): the map shows PCA"
        if made is None:
            self._set(self.positions, State("pca", "failed", 0.0, words))
            return
        self._set(made, State("umap", "ready", 1.0, "UMAP"))
        with suppress(OSError):  # then it is computed again next time
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.file, pack({}, {"positions": made}))

    def _computed(self) -> tuple[Positions | None, str]:
        """The map by a process of its own, or None and why not."""
        with tempfile.TemporaryDirectory(prefix="clocs-map-") as folder:
            source = Path(folder, "vectors.npy")
            np.save(source, self.vectors, allow_pickle=False)
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",  # the folder that the explorer was started in holds no modules for it
                    "-m",
                    "clocs.explorer.umap_worker",
                    str(source),
                    json.dumps(asdict(self.settings)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
            if self._stopped:
                self._process.terminate()
            words = "UMAP failed: the map shows PCA"
            for said in _said(self._process):
                if "error" in said:
                    words = f"UMAP failed ({said['error']}): the map shows PCA"
                else:
                    state = State("pca", "working", said["progress"], said["words"])
                    self._set(self.positions, state)
            self._process.wait()
            return _load(Path(folder, "positions.clocs"), len(self.vectors)), words


def _said(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """What the process says of its progress; what its libraries print between is passed over."""
    assert process.stdout is not None
    for line in process.stdout:
        with suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict):
                yield said


def _key(vectors: NDArray[np.float32], settings: Settings) -> str:
    total = hashlib.sha256(json.dumps(asdict(settings)).encode())  # processors have it built in
    total.update(str(vectors.shape).encode())
    total.update(np.ascontiguousarray(vectors, "<f4").data)
    return total.hexdigest()[:24]


def _load(path: Path, n: int) -> Positions | None:
    """What the file holds, or None where it is missing, damaged or of others."""
    try:
        positions = unpack(path.read_bytes())[1]["positions"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    good = positions.shape == (n, 2) and positions.dtype == np.float32
    return positions if good and np.isfinite(positions).all() else None

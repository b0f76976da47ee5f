"""Ways to find candidates among unit vectors with FAISS.

'exact' scans the vectors themselves; 'hnsw' walks a graph; 'ivf' searches the nearest of many lists
of vectors stored with 8 bits per dimension; 'ivfpq' does so on disk, with 2 bits, see
`on_disk_engine`. Candidates are ranked again by exact distances: they may miss a neighbour, but
every distance is exact.
"""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError, StoreError, with_extra

Kind = Literal["exact", "hnsw", "ivf", "ivfpq"]
KindOrAuto = Literal["auto", "exact", "hnsw", "ivf", "ivfpq"]
Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]

EXACT_UP_TO = 1_000_000
HNSW_UP_TO = 4_000_000  # its graph and vectors must be in memory: 0.65 kB each at 128 dimensions
IVF_UP_TO = 10_000_000  # its codes must be in memory: 0.14 kB each
MIN_CODED = 10_000  # vectors of 'ivfpq': fewer are too few to learn codes from, and are scanned
_LINKS, _BUILD_EFFORT, _EFFORT = 16, 64, 128  # of HNSW
_PROBES = 64  # lists of IVF that a query searches
_TRAINING = 64  # vectors per list, from which IVF's lists are learned
_REFINE = 10  # candidates fetched per neighbour, at least
_AT_ONCE = 65_536  # vectors gathered at a time


def load_faiss() -> Any:
    """The library; SettingError says how to install it."""
    try:
        import faiss
    except ImportError as error:
        raise SettingError(
            f"search needs faiss, which is not installed; {with_extra('search')}"
        ) from error
    return faiss


class Approximate:
    """An HNSW or IVF index, in FAISS's own memory and file."""

    def __init__(self, index: Any, kind: Kind) -> None:
        self._faiss, self._index, self.kind = load_faiss(), index, kind

    @classmethod
    def build(cls, vectors: Vectors, kind: Kind) -> Approximate:
        """Train on vectors and add them; (n, dim), perhaps memory-mapped."""
        faiss, (n, dim) = load_faiss(), vectors.shape
        if kind == "hnsw":
            index = faiss.IndexHNSWFlat(dim, _LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _BUILD_EFFORT
        else:
            lists = max(1, min(round(math.sqrt(n)), n // 39))
            index = faiss.index_factory(dim, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
            index.cp.seed = 0  # equal vectors give equal lists
            index.cp.min_points_per_centroid = 1  # no warning for a handful of vectors
            index.cp.max_points_per_centroid = _TRAINING
            sample = np.linspace(0, n - 1, min(n, lists * _TRAINING)).astype(np.int64)
            index.train(np.ascontiguousarray(vectors[sample]))
        made = cls(index, kind)
        made.add(vectors)
        return made

    @classmethod
    def read(cls, path: Path, kind: Kind, shape: tuple[int, int]) -> Approximate:
        """The engine for vectors of this shape (n, dim)."""
        return cls(read_faiss(path, shape), kind)

    def add(self, vectors: Vectors) -> None:
        """Append (n, dim) unit vectors."""
        for start in range(0, len(vectors), _AT_ONCE):
            self._index.add(np.ascontiguousarray(vectors[start : start + _AT_ONCE]))

    def scan_is_cheaper(self, k: int, passing: int) -> bool:
        """Whether to compare all rows that pass a filter: exact, and not slow, up to a million."""
        return passing <= EXACT_UP_TO

    def candidates(self, queries: Vectors, k: int, allowed: NDArray[np.bool_] | None) -> Rows:
        """(queries, about 10 k) allowed rows that may be nearest; -1 for none."""
        faiss = self._faiss
        k = min(k * _REFINE, self._index.ntotal)
        chosen: dict[str, Any] = {}
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            chosen["sel"] = faiss.IDSelectorBitmap(bits)
        if self.kind == "hnsw":
            parameters = faiss.SearchParametersHNSW(efSearch=max(_EFFORT, k), **chosen)
        else:
            parameters = faiss.SearchParametersIVF(nprobe=_PROBES, **chosen)
        found: Rows = self._index.search(queries, k, params=parameters)[1]
        return found

    def write(self, path: Path) -> None:
        """Write FAISS's own file; OSError where the system refuses it."""
        write_faiss(self._index, path)


def read_faiss(path: Path, shape: tuple[int, int] | None, flags: int = 0) -> Any:
    """FAISS's own file; StoreError where it is damaged, or not of vectors of a shape (n, dim)."""
    try:
        index = load_faiss().read_index(str(path), flags)
    except (RuntimeError, MemoryError) as error:
        raise StoreError(
            f"{path} is damaged (FAISS cannot read it); run `clocs index` again"
        ) from error
    if shape is not None and (index.ntotal, index.d) != shape:
        held, wanted = (f"{n} vectors of {dim}" for n, dim in ((index.ntotal, index.d), shape))
        raise StoreError(
            f"{path} holds {held} dimensions instead of {wanted}; run `clocs index` again"
        )
    return index


def write_faiss(index: Any, path: Path) -> None:
    """Write FAISS's own file; OSError where the system refuses it."""
    try:
        load_faiss().write_index(index, str(path))
    except RuntimeError as error:
        code = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error


def pick_kind(kind: KindOrAuto, count: int) -> Kind:
    """The kind given, or for 'auto' the one that suits this many vectors.

    A level with too few vectors for 'ivfpq', such as that of patients, is 'exact'.
    """
    kinds: tuple[Kind, ...] = get_args(Kind)
    if kind == "auto":
        return kinds[sum(count > most for most in (EXACT_UP_TO, HNSW_UP_TO, IVF_UP_TO))]
    if kind not in kinds:
        choices = ", ".join(get_args(KindOrAuto))
        raise SettingError(f"there is no `kind` {kind!r} of index; choose one of {choices}")
    return "exact" if kind == "ivfpq" and count < MIN_CODED else kind


def scan(vectors: Vectors, queries: Vectors, k: int, rows: Rows | None) -> tuple[Rows, Vectors]:
    """The k nearest of all vectors, or of some rows, by a full scan: (queries, k) rows and cosines.

    -1 and -inf where there are fewer.
    """
    faiss = load_faiss()
    count = len(vectors) if rows is None else len(rows)
    found = np.full((len(queries), k), -1, np.int64)
    cosine = np.full((len(queries), k), -np.inf, np.float32)
    few = min(k, count)
    if not few:
        return found, cosine
    if rows is None:
        near, at = faiss.knn(queries, vectors, few, metric=faiss.METRIC_INNER_PRODUCT)
        found[:, :few], cosine[:, :few] = at, near
        return found, cosine
    for start in range(0, count, _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        part = np.ascontiguousarray(vectors[some])
        top = min(k, len(some))
        near, at = faiss.knn(queries, part, top, metric=faiss.METRIC_INNER_PRODUCT)
        both = np.concatenate([cosine, near], axis=1)
        ids = np.concatenate([found, some[at]], axis=1)
        best = np.argsort(-both, axis=1, kind="stable")[:, :k]
        found, cosine = (np.take_along_axis(ids, best, 1), np.take_along_axis(both, best, 1))
    return found, cosine

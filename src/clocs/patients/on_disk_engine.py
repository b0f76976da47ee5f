"""IVF-PQ on disk, for more vectors than memory holds: lists of short codes, memory-mapped.

A vector is a code of two bits per dimension in the list of the nearest of many centers. A query
reads a few lists, and the best of their codes are candidates, whose distances are then computed
from the vectors themselves. How many lists and candidates that takes is measured on vectors of the
index after each change (`Effort`). The ten nearest of the tenth of the rows that pass a filter are
among about the hundred nearest of all, so a filter takes the effort for a hundred.

    building/trained-KEY.faiss      centers and codebook, learned from a sample
    building/shard-KEY.faiss        codes of a million vectors or more
    codes-N.ivf, engine-N.faiss     all shards in one file, and where each list is

A build that was killed goes on with what is whole in `building/`, if it is of the same vectors.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from clocs.files import PRIVATE, private_folder, replacing, sync_folder, write_atomic
from clocs.patients.faiss_engines import Rows, Vectors, load_faiss, read_faiss, scan, write_faiss

CODE_COST = 0.02  # of a code in a list, where a row compared costs 1 (benchmarks/vectors.py)
SHARD = 1_000_000  # vectors, at least: a billion are a hundred shards
RECALL = 0.95  # of the nearest, to be found by the measured effort
_DEPTHS, _QUERIES = (10, 40, 160), 256  # neighbours and queries with which it is measured
_FACTORS = (5, 10, 20, 40)  # candidates per neighbour
_MAX_CANDIDATES = 4_000
_LISTS, _TRAINING = 2, 32  # lists per √n, and vectors per list from which they are learned
_MAX_TRAINING = 4_000_000  # vectors
_CODEBOOK = 64  # vectors per codeword from which it is learned
_ROUNDS = 10  # of k-means
_FLAT_UP_TO, _LINKS = 16_384, 32  # centers; beyond that, a graph finds the nearest sooner
_BLOCK = 65_536  # vectors encoded at a time


@dataclass(frozen=True)
class Effort:
    """How a query for so many neighbours is answered, and how well that was found to do.

    Attributes:
        depth: Neighbors.
        probes: Lists that a query reads.
        factor: Candidates per neighbour.
        recall: Share of the nearest that a sample of the vectors found.
    """

    depth: int
    probes: int
    factor: int
    recall: float


class OnDisk:
    """A memory-mapped IVF-PQ index; `count` vectors."""

    def __init__(self, index: Any, efforts: Sequence[Effort]) -> None:
        self._faiss, self._index, self.efforts = load_faiss(), index, tuple(efforts)
        self.count, self.lists = int(index.ntotal), int(index.nlist)

    @classmethod
    def read(cls, path: Path, efforts: Sequence[Effort], shape: tuple[int, int]) -> OnDisk:
        """The engine for vectors of this shape (n, dim); its codes are in the same folder."""
        return cls(_opened(path, shape), efforts)

    def reads(self, k: int, passing: int) -> tuple[int, int, int]:
        """Lists, codes in them, and candidates that a query for k reads, of so many rows that pass.

        The fewer rows pass, the more lists: k of them are among so many more of all rows.
        """
        depth = k * self.count / max(1, passing)
        effort = next((one for one in self.efforts if one.depth >= depth), self.efforts[-1])
        probes = min(math.ceil(effort.probes * max(1, depth / effort.depth)), self.lists)
        wanted = min(max(k, self.efforts[0].depth) * effort.factor, passing)
        return probes, math.ceil(probes / self.lists * self.count), wanted

    def scan_is_cheaper(self, k: int, passing: int) -> bool:
        """Whether comparing all rows that pass costs no more than reading lists for them."""
        _, codes, wanted = self.reads(k, passing)
        return passing <= CODE_COST * codes + wanted

    def candidates(self, queries: Vectors, k: int, allowed: NDArray[np.bool_] | None) -> Rows:
        """(queries, a multiple of k) allowed rows that may be nearest; -1 for none.

        More lists are read until they hold enough rows that pass.
        """
        faiss, lists, most = self._faiss, self.lists, self.count
        chosen: dict[str, Any] = {}
        if allowed is not None:
            bits = np.packbits(allowed[: self.count], bitorder="little")
            chosen["sel"] = faiss.IDSelectorBitmap(bits)
            most = int(np.count_nonzero(allowed[: self.count]))
        probes, _, wanted = self.reads(k, most)
        found: Rows = np.full((len(queries), wanted), -1, np.int64)
        left = np.arange(len(queries))
        while wanted and len(left):
            how = faiss.SearchParametersIVF(nprobe=probes, **chosen)
            found[left] = self._index.search(queries[left], wanted, params=how)[1]
            if probes == lists:
                break
            left = left[(found[left] < 0).any(axis=1)]
            probes = min(4 * probes, lists)
        return np.where(found < self.count, found, -1)  # whatever a damaged file says


def build(folder: Path, number: int, vectors: Vectors, previous: Path | None) -> OnDisk:
    """Encode vectors, (n, dim) and memory-mapped, into `codes-N.ivf` and `engine-N.faiss`.

    With an engine of the first of these vectors, only the others are encoded.
    """
    work = folder / "building"
    private_folder(work)
    before, done = None, 0
    if previous is None:
        trained = _trained(work, vectors)
    else:
        before, trained = _opened(previous, None), work / "trained.faiss"
        done = int(before.ntotal)
        write_faiss(_emptied(_opened(previous, None)), trained)
    size = max(SHARD, math.ceil(len(vectors) / 100))
    shards = [
        _shard(work, trained, vectors, start, min(start + size, len(vectors)))
        for start in range(done, len(vectors), size)
    ]
    codes, engine = (folder / name for name in file_names(number).values())
    _merge(trained, before, shards, codes, engine)
    shutil.rmtree(work)
    opened = _opened(engine, vectors.shape)
    return OnDisk(opened, _measured(opened, vectors))


def _merge(trained: Path, before: Any, shards: Sequence[Path], codes: Path, engine: Path) -> None:
    """Join the lists of an engine and of shards in one file, without reading them into memory."""
    faiss, index = load_faiss(), load_faiss().read_index(str(trained))
    parts = [] if before is None else [before]
    parts += [faiss.read_index(str(shard), faiss.IO_FLAG_MMAP) for shard in shards]
    pointers = faiss.InvertedListsPtrVector()
    for part in parts:
        pointers.push_back(part.invlists)
    codes.unlink(missing_ok=True)  # of a build that was killed
    codes.touch(PRIVATE)
    with _silence():
        lists = faiss.OnDiskInvertedLists(index.nlist, index.code_size, str(codes))
        index.ntotal = lists.merge_from_multiple(pointers.data(), pointers.size(), False)
    index.replace_invlists(lists, True)
    lists.this.disown()
    with replacing(engine) as temporary:
        write_faiss(index, temporary)
    with codes.open("rb+") as file:
        os.fsync(file.fileno())
    sync_folder(codes.parent)


@contextmanager
def _silence() -> Iterator[None]:
    """FAISS writes to standard output what it does with files; that belongs to the command."""
    library = ctypes.CDLL(None)
    library.fflush(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        library.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def file_names(number: int) -> dict[str, str]:
    """The files of an engine by role."""
    return {"codes": f"codes-{number}.ivf", "engine": f"engine-{number}.faiss"}


def _opened(path: Path, shape: tuple[int, int] | None) -> Any:
    faiss = load_faiss()
    with _silence():
        index = read_faiss(path, shape, faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY)
    lists = faiss.downcast_InvertedLists(index.invlists)
    lists.prefetch_nthread = 0  # starting 32 threads takes longer than a query
    return index


def _emptied(index: Any) -> Any:
    """The same centers and codebook without codes."""
    faiss = load_faiss()
    empty = faiss.ArrayInvertedLists(index.nlist, index.code_size)
    index.replace_invlists(empty, True)
    empty.this.disown()
    index.ntotal = 0
    return index


def _kept(path: Path, make: Callable[[Path], None]) -> Path:
    """A file that a killed build left whole, or else a new one."""
    seal = path.with_suffix(".xxh3")
    if not (path.is_file() and seal.is_file() and seal.read_text() == digest_of(path)):
        with replacing(path) as temporary:
            make(temporary)
        write_atomic(seal, digest_of(path).encode())
    return path


def digest_of(path: Path) -> str:
    """The XXH3 of a file, read block by block."""
    total = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(2**24):
            total.update(block)
    return total.hexdigest()


def _trained(work: Path, vectors: Vectors) -> Path:
    """The file of an empty index with centers and codebook."""
    n, dim = vectors.shape
    lists = max(1, min(round(_LISTS * math.sqrt(n)), n // 39))
    count = min(n, lists * _TRAINING, _MAX_TRAINING)
    sample = np.ascontiguousarray(vectors[np.linspace(0, n - 1, count).astype(np.int64)])
    key = xxhash.xxh3_64_hexdigest(sample.data, seed=lists)

    def make(path: Path) -> None:
        faiss, centers = load_faiss(), _centers(sample, lists)
        metric = faiss.METRIC_INNER_PRODUCT
        if len(centers) <= _FLAT_UP_TO:
            nearest = faiss.IndexFlat(dim, metric)
        else:
            nearest = faiss.IndexHNSWFlat(dim, _LINKS, metric)
        nearest.add(centers)
        size = next(m for m in range(min(dim, max(32, dim // 4)), 0, -1) if dim % m == 0)
        index = faiss.IndexIVFPQ(nearest, dim, len(centers), size, 8, metric)
        index.pq.cp.niter = _ROUNDS
        index.pq.cp.min_points_per_centroid = 1
        index.pq.cp.max_points_per_centroid = _CODEBOOK
        index.train(sample)
        write_faiss(index, path)

    return _kept(work / f"trained-{key}.faiss", make)


def _centers(sample: Vectors, lists: int) -> Vectors:
    """About `lists` centers, by k-means in two steps: coarse groups, and then each of them."""
    first = _k_means(sample, max(1, round(math.sqrt(lists))))
    group = first.assign(sample)[1]
    order = np.argsort(group, kind="stable")
    found = []
    for some in np.split(order, np.cumsum(np.bincount(group, minlength=first.k))[:-1]):
        if len(some):
            share = max(1, round(lists * len(some) / len(sample)))
            found.append(_k_means(sample[some], share).centroids)
    return np.concatenate(found)


def _k_means(sample: Vectors, k: int) -> Any:
    faiss = load_faiss()
    means = faiss.Kmeans(
        sample.shape[1],
        k,
        niter=_ROUNDS,
        seed=0,
        spherical=True,
        min_points_per_centroid=1,
        max_points_per_centroid=1000,
    )
    means.train(sample)
    return means


def _shard(work: Path, trained: Path, vectors: Vectors, start: int, end: int) -> Path:
    """The file with the codes of some vectors, whose IDs are their rows."""
    key = xxhash.xxh3_64(digest_of(trained).encode())
    for at in range(start, end, _BLOCK):
        key.update(np.ascontiguousarray(vectors[at : min(at + _BLOCK, end)]).data)

    def make(path: Path) -> None:
        index = load_faiss().read_index(str(trained))
        for at in range(start, end, _BLOCK):
            block = np.ascontiguousarray(vectors[at : min(at + _BLOCK, end)])
            index.add_with_ids(block, np.arange(at, at + len(block)))
        write_faiss(index, path)

    return _kept(work / f"shard-{start}-{key.hexdigest()}.faiss", make)


def _measured(index: Any, vectors: Vectors) -> list[Effort]:
    """For each depth, the least effort that finds `RECALL` of the nearest, with 95 % confidence.

    Where none does, all lists and the most candidates.
    """
    own = np.unique(np.linspace(0, len(vectors) - 1, _QUERIES).astype(np.int64))
    queries = np.ascontiguousarray(vectors[own])
    near, cosine = scan(vectors, queries, _DEPTHS[-1] + 1, None)
    cosine[near == own[:, None]] = -np.inf  # a vector is not its own neighbour
    cosine = -np.sort(-cosine, axis=1)
    found: list[Effort] = []
    for depth in _DEPTHS:
        bound = cosine[:, depth - 1] - 1e-6  # equal vectors count as found
        probes = found[-1].probes if found else 1
        while (effort := _tried(index, vectors, own, bound, depth, probes)) is None:
            probes = min(2 * probes, int(index.nlist))
        found.append(effort)
    return found


def _tried(
    index: Any, vectors: Vectors, own: Rows, bound: Vectors, depth: int, probes: int
) -> Effort | None:
    """The fewest candidates with which this many lists do; the most where these are all lists."""
    queries = np.ascontiguousarray(vectors[own])
    factors = [one for one in _FACTORS if one * depth <= _MAX_CANDIDATES]
    how = load_faiss().SearchParametersIVF(nprobe=probes)
    found = index.search(queries, min(factors[-1] * depth, len(vectors)), params=how)[1]
    hits = np.zeros(found.shape, bool)
    for query, rows in enumerate(found):
        cosines = vectors[np.maximum(rows, 0)] @ queries[query]
        hits[query] = (cosines >= bound[query]) & (rows >= 0) & (rows != own[query])
    for factor in factors:
        share = np.minimum(hits[:, : factor * depth].sum(axis=1), depth) / depth
        effort = Effort(depth, probes, factor, float(share.mean()))
        if share.mean() - 1.64 * share.std() / math.sqrt(len(share)) >= RECALL:
            return effort
    return effort if probes == index.nlist else None

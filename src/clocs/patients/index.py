"""PatientIndex: the nearest patients or recordings by cosine distance.

Unit vectors are compared by their inner product, with FAISS. Search is exact up to a million
vectors, and by choice beyond. 'hnsw' walks a graph; 'ivf' searches the nearest of many lists of
vectors stored with 8 bits per dimension. They find candidates, whose distances are then computed
exactly: they may miss a neighbor, but every distance is exact. With a filter the same holds for the
rows that pass it. Rows that an earlier version has replaced stay in place and are never returned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
import xxhash
from numpy.typing import NDArray

from clocs._version import __version__
from clocs.errors import SettingError, StoreError
from clocs.files import private_folder, replacing, write_atomic, writing
from clocs.patients.cohort import Where
from clocs.patients.embeddings import Embeddings, as_units, expect_comparable, expect_distinct
from clocs.patients.index_files import (
    FORMAT,
    REBUILD,
    VECTORS,
    Kind,
    checked_vectors,
    kind_of,
    load_faiss,
    read_engine,
    read_manifest,
    write_engine,
)
from clocs.patients.rows import ROW_SCHEMA, Level, write_rows
from clocs.sealed import own_hash
from clocs.store.manifest import MANIFEST

KindOrAuto = Literal["auto", "exact", "hnsw", "ivf"]
Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]

_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
EXACT_UP_TO = 1_000_000
HNSW_UP_TO = 4_000_000  # its graph and vectors must be in memory: 0.65 kB each at 128 dimensions
_LINKS, _BUILD_EFFORT, _EFFORT = 16, 64, 128  # of HNSW
_PROBES = 64  # lists of IVF that a query searches
_TRAINING = 64  # vectors per list, from which IVF's lists are learned
_REFINE = 10  # candidates fetched per neighbor, at least
_AT_ONCE = 65_536  # vectors gathered at a time


@dataclass(frozen=True)
class Hits:
    """What a search found, nearest first.

    Attributes:
        rows: (queries, k) rows of the index, k at most its size; -1 where fewer rows pass.
        cosine: (queries, k) cosine distances, 1 − inner product; infinite where there is no row.
        euclidean: (queries, k) Euclidean distances of the unit vectors, √(2 · cosine).
    """

    rows: Rows
    cosine: Vectors
    euclidean: Vectors


@dataclass(eq=False, repr=False)
class PatientIndex:
    """Unit vectors with their rows, searchable; build one, or load it from its folder.

    Rows, level, encoder, frame and leads are as in `Embeddings`.

    Attributes:
        vectors: (n, dim) unit vectors, perhaps memory-mapped.
        live: (n,) False where a row was replaced by a later one, as earlier versions did.
        engine: The FAISS index; None for the kind 'exact'.
    """

    vectors: Vectors
    rows: pl.DataFrame
    live: NDArray[np.bool_]
    level: Level
    encoder: str
    frame: float | None
    leads: tuple[str, ...] | None
    kind: Kind
    engine: Any = None

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        """How many rows a search can return."""
        return int(self.live.sum())

    def __repr__(self) -> str:
        return f"PatientIndex({len(self)} × {self.level}, {self.kind})"

    @classmethod
    def build(cls, embeddings: Embeddings, kind: KindOrAuto = "auto") -> PatientIndex:
        """Index embeddings; 'auto' is 'exact', 'hnsw' or 'ivf', depending on their number."""
        embeddings = embeddings.nonzero()
        if not len(embeddings):
            raise SettingError("an index needs at least one embedding that is not zero")
        expect_distinct(embeddings.rows, embeddings.level)
        vectors = as_units(embeddings.vectors)
        chosen = pick_kind(kind, len(vectors))
        return cls(
            vectors=vectors,
            rows=embeddings.rows.select(list(ROW_SCHEMA)),
            live=np.ones(len(vectors), bool),
            level=embeddings.level,
            encoder=embeddings.encoder,
            frame=embeddings.frame,
            leads=embeddings.leads,
            kind=chosen,
            engine=None if chosen == "exact" else _engine(vectors, chosen),
        )

    def rows_of(self, patients: pl.DataFrame) -> NDArray[np.bool_]:
        """(n,) which rows belong to these patients (columns dataset and patient)."""
        ids = self.rows.select("dataset", "patient").with_row_index("row")
        theirs = np.zeros(self.rows.height, bool)
        found = ids.join(patients, on=["dataset", "patient"], how="semi", nulls_equal=True)
        theirs[found["row"].to_numpy()] = True
        return theirs

    def search(
        self,
        vectors: Embeddings | Vectors,
        k: int = 10,
        *,
        where: Where | NDArray[np.bool_] | None = None,
        exclude: Sequence[tuple[str, str] | None] | None = None,
    ) -> Hits:
        """The k nearest rows of each query.

        Args:
            vectors: (queries, dim), or embeddings, which are checked to be comparable.
            k: Number of neighbors.
            where: Rows that may be returned: a filter, or a mask (n,). Results are exact with up
                to a million passing rows.
            exclude: One per query: the (dataset, patient) never to be returned; for `Embeddings`,
                their own patients by default.
        """
        if isinstance(vectors, Embeddings):
            expect_comparable([self, vectors])
            if exclude is None:
                exclude = list(vectors.rows.select("dataset", "patient").iter_rows())
            vectors = vectors.vectors
        queries = self._queries(vectors, k)
        excluded: list[Rows] = [
            np.zeros(0, np.int64)
            if one is None
            else np.flatnonzero(self._is("patient", one[1]) & self._is("dataset", one[0]))
            for one in exclude or [None] * len(queries)
        ]
        if len(excluded) != len(queries):
            raise SettingError(
                f"`exclude` needs one patient per query: {len(queries)}, not {len(excluded)}"
            )
        more = min(k + max(map(len, excluded), default=0), len(self.live))
        rows, cosine = self._nearest(queries, more, self._allowed(where))
        for query, own in enumerate(excluded):
            if len(own):
                cosine[query, np.isin(rows[query], own)] = -np.inf
        order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
        cosine = np.take_along_axis(cosine, order, axis=1)
        rows = np.where(np.isneginf(cosine), -1, np.take_along_axis(rows, order, axis=1))
        distance = np.maximum(1 - cosine, 0)  # rounding can make it slightly negative
        return Hits(rows, distance, np.sqrt(2 * distance))

    def row_of(self, patient: str, dataset: str | None = None) -> Rows:
        """Rows of a patient (or recording); SettingError if there is none, or in two datasets."""
        mine = self.live if dataset is None else self.live & self._is("dataset", dataset)
        found = np.flatnonzero(mine & self._is("patient", patient))
        if not len(found):
            found = np.flatnonzero(mine & self._is("recording", patient))
        if not len(found):
            of = "" if dataset is None else f" of {dataset}"
            raise SettingError(f"the index holds no {self.level} {patient!r}{of}; check the ID")
        sets = self.rows["dataset"][found].unique(maintain_order=True).to_list()
        if len(sets) > 1:
            raise SettingError(
                f"{patient!r} is an ID in {' and in '.join(map(repr, sets))}; say which one, as "
                f"{sets[0]}:{patient}"
            )
        return found

    def _is(self, column: str, value: str | None) -> NDArray[np.bool_]:
        return self.rows[column].eq_missing(value).to_numpy()

    def similar(
        self,
        patient: str,
        k: int = 10,
        *,
        where: Where | None = None,
        dataset: str | None = None,
    ) -> pl.DataFrame:
        """The k nearest to a patient: their rows with distances, nearest first; see `table`.

        For a patient with several rows (recordings), the query is the mean of their unit vectors.
        """
        own = self.row_of(patient, dataset)
        row = self.rows.row(int(own[0]), named=True)
        query = self.vectors[own].mean(axis=0, keepdims=True)
        hits = self.search(query, k, where=where, exclude=[(row["dataset"], row["patient"])])
        return self.table(hits)

    def table(self, hits: Hits, query: int = 0) -> pl.DataFrame:
        """The rows that one query found, nearest first, with the columns of their distances.

        `distance` is the cosine distance, `euclidean` that of the unit vectors.
        """
        there = hits.rows[query] >= 0
        found = self.rows.select(pl.all().gather(pl.Series(hits.rows[query][there])))
        return found.with_columns(
            pl.Series("distance", hits.cosine[query][there]),
            pl.Series("euclidean", hits.euclidean[query][there]),
        )

    def save(self, folder: Path | str) -> None:
        """Write into a folder that holds no index; the manifest last."""
        with writing(folder):
            self._save(Path(folder))

    def _save(self, folder: Path) -> None:
        if (folder / MANIFEST).is_file():
            raise SettingError(f"{folder} already holds an index; give another folder")
        private_folder(folder)
        content = xxhash.xxh3_128()
        with replacing(folder / VECTORS) as temporary, temporary.open("wb") as file:
            for start in range(0, len(self.vectors), _AT_ONCE):
                plain = np.ascontiguousarray(self.vectors[start : start + _AT_ONCE], "<f4")
                content.update(plain.data)
                file.write(plain.data)
        files = {"rows": "rows-0.parquet"}
        write_rows(self.rows.with_columns(pl.Series("live", self.live)), folder / files["rows"])
        if self.engine is not None:
            files["engine"] = "engine-0.faiss"
            with replacing(folder / files["engine"]) as temporary:
                write_engine(self.engine, temporary)
        counts = self.rows.filter(pl.Series(self.live))["dataset"].value_counts(sort=True)
        manifest = {
            "format": FORMAT,
            "number": 0,
            "level": self.level,
            "encoder": self.encoder,
            "frame": self.frame,
            "leads": self.leads,
            "metric": "cosine",
            "kind": self.kind,
            "dim": self.dim,
            "count": len(self.live),
            "live": int(self.live.sum()),
            "datasets": dict(counts.iter_rows()),
            "vectors": [{"bytes": 4 * self.vectors.size, "xxh3": content.hexdigest()}],
            "files": {
                role: {
                    "name": name,
                    "bytes": (folder / name).stat().st_size,
                    "xxh3": xxhash.xxh3_128_hexdigest(np.memmap(folder / name, np.uint8, "r").data),
                }
                for role, name in files.items()
            },
            "clocs": __version__,
        }
        manifest["sha256"] = own_hash(manifest)
        write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False).encode())

    @classmethod
    def load(cls, folder: Path | str) -> PatientIndex:
        """Open a folder, every file compared with its hash; vectors stay on disk, memory-mapped."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        vectors = checked_vectors(folder, manifest)
        path = folder / manifest["files"]["rows"]["name"]
        try:
            table = pl.read_ipc(path) if path.suffix == ".arrow" else pl.read_parquet(path)
            rows, live = table.drop("live"), table["live"].to_numpy().copy()
        except (OSError, ValueError, *_UNREADABLE) as error:
            raise StoreError(f"the rows of {folder} are damaged; {REBUILD}") from error
        if dict(rows.schema) != ROW_SCHEMA or rows.height != len(vectors):
            raise StoreError(f"the rows of {folder} do not match its manifest; {REBUILD}")
        facts = {name: manifest[name] for name in ("level", "encoder", "frame")}
        leads, kind, engine = manifest["leads"], kind_of(manifest), None
        if kind != "exact":
            path = folder / manifest["files"]["engine"]["name"]
            engine = read_engine(path, vectors.shape)
        leads = None if leads is None else tuple(leads)
        return cls(vectors, rows, live, **facts, leads=leads, kind=kind, engine=engine)

    def _nearest(
        self, queries: Vectors, k: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[Rows, Vectors]:
        """(queries, k) rows and cosines, -1 and -inf where there are fewer."""
        # a scan of what passes a filter is exact, and not slow, up to a million
        if self.engine is None or (allowed is not None and int(allowed.sum()) <= EXACT_UP_TO):
            some = None if allowed is None else np.flatnonzero(allowed)
            return scan(self.vectors, queries, k, some)
        rows = np.full((len(queries), k), -1, np.int64)
        cosine = np.full((len(queries), k), -np.inf, np.float32)
        found = _candidates(self.engine, self.kind, queries, k, allowed)
        for query, candidates in enumerate(found):
            own = np.sort(candidates[candidates >= 0])
            exact = self.vectors[own] @ queries[query]
            best = np.argsort(-exact, kind="stable")[:k]
            rows[query, : len(best)], cosine[query, : len(best)] = own[best], exact[best]
        return rows, cosine

    def _allowed(self, where: Where | NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        mask = where.mask(self.rows) if isinstance(where, Where) else where
        if mask is not None and mask.shape != self.live.shape:
            raise SettingError(f"`where` has {len(mask)} rows, but the index {len(self.live)}")
        allowed = self.live if mask is None else mask & self.live
        return None if allowed.all() else allowed

    def _queries(self, vectors: Vectors, k: int) -> Vectors:
        if k < 1:
            raise SettingError(f"`k` is {k}; give at least 1")
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise SettingError(f"queries have the shape (n, {self.dim}), not {vectors.shape}")
        if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
            raise SettingError("a query is zero or not finite, so it has no neighbors")
        return as_units(vectors)


def pick_kind(kind: KindOrAuto, count: int) -> Kind:
    """The kind given, or for 'auto' the one that suits this many vectors."""
    kinds: tuple[Kind, ...] = get_args(Kind)
    if kind == "auto":
        return kinds[sum(count > most for most in (EXACT_UP_TO, HNSW_UP_TO))]
    if kind not in kinds:
        choices = ", ".join(get_args(KindOrAuto))
        raise SettingError(f"there is no `kind` {kind!r} of index; choose one of {choices}")
    return kind


def _engine(vectors: Vectors, kind: Kind) -> Any:
    """A FAISS index of vectors; (n, dim), perhaps memory-mapped."""
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
    for start in range(0, n, _AT_ONCE):
        index.add(np.ascontiguousarray(vectors[start : start + _AT_ONCE]))
    return index


def _candidates(
    engine: Any, kind: Kind, queries: Vectors, k: int, allowed: NDArray[np.bool_] | None
) -> Rows:
    """(queries, about 10 k) allowed rows that may be nearest; -1 for none."""
    faiss, k = load_faiss(), min(k * _REFINE, engine.ntotal)
    chosen: dict[str, Any] = {}
    if allowed is not None:
        chosen["sel"] = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
    if kind == "hnsw":
        parameters = faiss.SearchParametersHNSW(efSearch=max(_EFFORT, k), **chosen)
    else:
        parameters = faiss.SearchParametersIVF(nprobe=_PROBES, **chosen)
    found: Rows = engine.search(queries, k, params=parameters)[1]
    return found


def scan(vectors: Vectors, queries: Vectors, k: int, rows: Rows | None) -> tuple[Rows, Vectors]:
    """The k nearest of all vectors, or of some rows, by a full scan: (queries, k) rows and cosines.

    -1 and -inf where there are fewer.
    """
    faiss = load_faiss()
    found = np.full((len(queries), k), -1, np.int64)
    cosine = np.full((len(queries), k), -np.inf, np.float32)
    count = len(vectors) if rows is None else len(rows)
    for start in range(0, count, _AT_ONCE):
        stop = min(start + _AT_ONCE, count)
        some = np.arange(start, stop) if rows is None else rows[start:stop]
        part = np.ascontiguousarray(vectors[start:stop] if rows is None else vectors[some])
        near, at = faiss.knn(queries, part, min(k, len(some)), metric=faiss.METRIC_INNER_PRODUCT)
        both = np.concatenate([cosine, near], axis=1)
        ids = np.concatenate([found, some[at]], axis=1)
        best = np.argsort(-both, axis=1, kind="stable")[:, :k]
        found, cosine = (np.take_along_axis(ids, best, 1), np.take_along_axis(both, best, 1))
    return found, cosine

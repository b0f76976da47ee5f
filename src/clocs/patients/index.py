"""PatientIndex: the nearest patients or recordings by cosine distance.

Unit vectors are compared by their inner product, with FAISS. Search is exact up to a million
vectors; beyond that, an approximate engine finds candidates, whose distances are then computed
exactly. With a filter the same holds for the rows that pass it. Replaced rows stay in place and are
never returned again: removing a vector would mean rebuilding the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import CheckpointError, SettingError
from clocs.files import writing
from clocs.patients.embeddings import Embeddings, expect_distinct
from clocs.patients.faiss_engines import Approximate, KindOrAuto, pick_kind, scan
from clocs.patients.filters import Where
from clocs.patients.index_files import IndexContents, load_index, save_index
from clocs.patients.on_disk_engine import OnDisk
from clocs.patients.rows import ID_COLUMNS, ROW_SCHEMA
from clocs.patients.unit_vectors import as_units

_PATIENT_HASH = pl.struct("dataset", "patient").hash(seed=0)


@dataclass(frozen=True)
class Hits:
    """What a search found, nearest first.

    Attributes:
        rows: (queries, k) rows of the index, k at most its size; -1 where fewer rows pass.
        cosine: (queries, k) cosine distances, 1 − inner product; infinite where there is no row.
        euclidean: (queries, k) Euclidean distances of the unit vectors, √(2 · cosine).
    """

    rows: NDArray[np.int64]
    cosine: NDArray[np.float32]
    euclidean: NDArray[np.float32]


@dataclass(eq=False, repr=False)
class PatientIndex(IndexContents):
    """Unit vectors with their rows, searchable; build one, or load it from its folder."""

    _hashes: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = field(default=None, init=False)

    def __len__(self) -> int:
        """How many rows a search can return."""
        return int(self.live.sum())

    def __repr__(self) -> str:
        return f"PatientIndex({len(self)} × {self.level}, {self.kind})"

    @property
    def vectors(self) -> NDArray[np.float32]:
        """(n, dim) unit vectors."""
        if len(self.parts) > 1:  # joined when needed, so that adding to a large index is quick
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0]

    @classmethod
    def build(cls, embeddings: Embeddings, kind: KindOrAuto = "auto") -> PatientIndex:
        """Index embeddings; 'auto' is 'exact', 'hnsw', 'ivf' or 'ivfpq', depending on their number.

        One of the kind 'ivfpq' is built on disk when it is saved; before that, search is exact.
        """
        embeddings = embeddings.nonzero()
        if not len(embeddings):
            raise SettingError("an index needs at least one embedding that is not zero")
        expect_distinct(embeddings.rows, embeddings.level)
        vectors = as_units(embeddings.vectors)
        chosen = pick_kind(kind, len(vectors))
        return cls(
            parts=[vectors],
            rows=embeddings.rows.select(list(ROW_SCHEMA)),
            live=np.ones(len(vectors), bool),
            level=embeddings.level,
            encoder=embeddings.encoder,
            frame=embeddings.frame,
            leads=embeddings.leads,
            kind=chosen,
            engine=Approximate.build(vectors, chosen) if chosen in ("hnsw", "ivf") else None,
        )

    def patients(self) -> pl.DataFrame:
        """Dataset and ID of every patient whom a search can return."""
        return self.rows.select("dataset", "patient").filter(pl.Series(self.live)).unique()

    def rows_of(self, patients: pl.DataFrame) -> NDArray[np.bool_]:
        """(n,) which rows belong to these patients (columns dataset and patient)."""
        ids = self.rows.select("dataset", "patient").with_row_index("row")
        theirs = np.zeros(self.rows.height, bool)
        found = ids.join(patients, on=["dataset", "patient"], how="semi", nulls_equal=True)
        theirs[found["row"].to_numpy()] = True
        return theirs

    def add(self, embeddings: Embeddings, *, replace: bool = False) -> int:
        """Append rows without rebuilding; returns how many were added.

        They must be comparable and, unless `replace` is set, not in the index yet.
        """
        self._expect_comparable(embeddings)
        if embeddings.level != self.level:
            raise SettingError(
                f"this index holds vectors of the level {self.level!r}, not {embeddings.level!r}"
            )
        embeddings = embeddings.nonzero()
        expect_distinct(embeddings.rows, embeddings.level)
        numbers = self.row_numbers(embeddings)
        known = numbers >= 0
        if known.any() and not replace:
            first = embeddings.rows.row(int(np.flatnonzero(known)[0]))
            raise SettingError(
                f"{int(known.sum())} of {len(embeddings)} are in the index already, such as "
                f"{first[2] or first[1]} of {first[0] or 'the files'}; replace them with `replace`"
            )
        self.live[numbers[known]] = False
        fresh = as_units(embeddings.vectors)
        if isinstance(self.engine, Approximate):  # one on disk is built when it is saved
            self.engine.add(fresh)
        self.parts.append(fresh)
        self.rows = pl.concat([self.rows, embeddings.rows.select(list(ROW_SCHEMA))])
        self.live = np.concatenate([self.live, np.ones(len(fresh), bool)])
        self._hashes = None
        return len(fresh)

    def search(
        self,
        vectors: Embeddings | NDArray[np.float32],
        k: int = 10,
        *,
        where: Where | NDArray[np.bool_] | None = None,
        exclude: Sequence[tuple[str, str] | None] | None = None,
    ) -> Hits:
        """The k nearest rows of each query.

        Args:
            vectors: (queries, dim), or embeddings, which are checked to be comparable.
            k: Number of neighbours.
            where: Rows that may be returned: a filter, or a mask (n,). Results are exact with up
                to a million passing rows; 20,000 of the kind 'ivfpq'.
            exclude: One per query: the (dataset, patient) never to be returned; for `Embeddings`,
                their own patients by default.
        """
        if isinstance(vectors, Embeddings):
            self._expect_comparable(vectors)
            if exclude is None:
                exclude = list(vectors.rows.select("dataset", "patient").iter_rows())
            vectors = vectors.vectors
        queries = self._queries(vectors, k)
        excluded = [self._numbers_of(one) for one in exclude] if exclude else [[]] * len(queries)
        if len(excluded) != len(queries):
            raise SettingError(
                f"`exclude` needs one patient per query: {len(queries)}, not {len(excluded)}"
            )
        more = min(k + max(map(len, excluded), default=0), len(self.live))
        rows, cosine = self._nearest(queries, more, self._allowed(where))
        for query, own in enumerate(excluded):
            if own:
                cosine[query, np.isin(rows[query], own)] = -np.inf
        order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
        cosine = np.take_along_axis(cosine, order, axis=1)
        rows = np.where(np.isneginf(cosine), -1, np.take_along_axis(rows, order, axis=1))
        distance = np.maximum(1 - cosine, 0)  # rounding can make it slightly negative
        return Hits(rows, distance, np.sqrt(2 * distance))

    def row_of(self, patient: str, dataset: str | None = None) -> NDArray[np.int64]:
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

    def _is(self, column: str, value: str) -> NDArray[np.bool_]:
        return (self.rows[column] == value).fill_null(value=False).to_numpy()

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
        """Write the folder; its manifest last."""
        with writing(folder):
            save_index(self, Path(folder))

    @classmethod
    def load(cls, folder: Path | str, *, verify: bool = False) -> PatientIndex:
        """Open a folder; vectors stay on disk, memory-mapped.

        Every file is compared with its hash; of the kind 'ivfpq' the large ones only to `verify`.
        """
        return cls(**vars(load_index(Path(folder), verify=verify)))

    def _nearest(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(queries, k) rows and cosines, -1 and -inf where there are fewer."""
        passing = len(self.vectors) if allowed is None else int(allowed.sum())
        engine = self.engine
        if engine is None or (allowed is not None and engine.scan_is_cheaper(k, passing)):
            some = None if allowed is None else np.flatnonzero(allowed)
            return scan(self.vectors, queries, k, some)
        found = engine.candidates(queries, k, allowed)
        if isinstance(engine, OnDisk) and engine.count < len(self.live):  # added, not yet saved
            fresh = np.arange(engine.count, len(self.live))
            fresh = fresh if allowed is None else fresh[allowed[fresh]]
            found = np.concatenate([found, np.tile(fresh, (len(queries), 1))], axis=1)
        rows = np.full((len(queries), k), -1, np.int64)
        cosine = np.full((len(queries), k), -np.inf, np.float32)
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

    def _queries(self, vectors: NDArray[np.float32], k: int) -> NDArray[np.float32]:
        if k < 1:
            raise SettingError(f"`k` is {k}; give at least 1")
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise SettingError(f"queries have the shape (n, {self.dim}), not {vectors.shape}")
        if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
            raise SettingError("a query is zero or not finite, so it has no neighbours")
        return as_units(vectors)

    def _expect_comparable(self, embeddings: Embeddings) -> None:
        if embeddings.encoder != self.encoder:
            raise CheckpointError(
                f"this index was made by the encoder {self.encoder[:12]}…, the embeddings by "
                f"{embeddings.encoder[:12]}…, and their vectors cannot be compared; use the index's"
            )
        if None not in (self.frame, embeddings.frame) and self.frame != embeddings.frame:
            raise SettingError(
                f"this index was made from frames of {self.frame:g} s, the embeddings from "
                f"{embeddings.frame:g} s, and their vectors cannot be compared; give "
                f"{self.frame:g} as `frame`"
            )
        expect_same_leads("this index", self.leads, embeddings.leads)

    def row_numbers(self, embeddings: Embeddings) -> NDArray[np.int64]:
        """(n,) the live row of each of these, -1 where there is none."""
        ids = list(ID_COLUMNS[self.level])
        own = self.rows.select(ids).with_row_index("row").filter(pl.Series(self.live))
        theirs = embeddings.rows.select(ids)
        joined = theirs.join(own, on=ids, how="left", maintain_order="left", nulls_equal=True)
        return joined["row"].cast(pl.Int64).fill_null(-1).to_numpy()

    def _numbers_of(self, patient: tuple[str, str] | None) -> list[int]:
        """All rows of a (dataset, patient), by binary search in sorted hashes."""
        if patient is None:
            return []
        if self._hashes is None:
            hashes = self.rows.select(_PATIENT_HASH.alias("hash"))["hash"].to_numpy()
            order = np.argsort(hashes, kind="stable")
            self._hashes = (hashes[order], order)
        schema = {name: self.rows.schema[name] for name in ("dataset", "patient")}
        one = pl.DataFrame([patient], schema=schema, orient="row")
        own = np.uint64(one.select(_PATIENT_HASH.alias("hash"))["hash"][0])
        hashes, order = self._hashes
        low, high = (np.searchsorted(hashes, own, side) for side in ("left", "right"))
        found = order[low:high].tolist()
        return [row for row in found if self.rows.row(row)[:2] == patient]


def expect_same_leads(
    name: str, leads: tuple[str, ...] | None, others: tuple[str, ...] | None
) -> None:
    """SettingError where both are known and differ, in whatever order."""
    if leads is not None and others is not None and set(leads) != set(others):
        raise SettingError(
            f"{name} was made from the leads {', '.join(leads)}, and vectors from "
            f"{', '.join(others)} cannot be compared with it; give {','.join(leads)} as `leads`"
        )

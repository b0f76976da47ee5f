"""PatientIndex: the nearest patients or recordings by cosine. Knows nothing about ECGs or files.

Unit vectors, compared by their inner product; FAISS underneath. Exact up to a million vectors;
beyond, an approximate engine finds candidates, whose distances are then computed exactly. Under a
condition the same holds for the rows that pass it. Replaced rows stay in place and are never
returned again: taking a vector out would mean building anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import CheckpointError, SettingError
from clocs.patients.embeddings import Embeddings
from clocs.patients.faiss_engines import EXACT_UP_TO, Approximate, Kind, KindOrAuto, pick_kind, scan
from clocs.patients.filters import Where
from clocs.patients.rows import ID_COLUMNS, Level
from clocs.patients.unit_vectors import expect_distinct, living, units

_PERSON = pl.struct("dataset", "patient").hash(seed=0)


@dataclass(frozen=True)
class Hits:
    """What a search found, nearest first.

    Attributes:
        rows: (queries, k) rows of the index, fewer where it has fewer; -1 where fewer pass.
        cosine: (queries, k) cosine distance, 1 − inner product; infinite where there is no row.
        euclidean: (queries, k) distance of the unit vectors, √(2 · cosine).
    """

    rows: NDArray[np.int64]
    cosine: NDArray[np.float32]
    euclidean: NDArray[np.float32]


class PatientIndex:
    """Unit vectors with their rows, searchable; build one, or load it from its folder.

    Attributes:
        rows: One a vector, of the columns of `ROW_SCHEMA`.
        level: 'patient' or 'recording' (or 'frame').
        encoder: The sha256 of the weights that made the vectors.
        frame: Seconds of the frames that they were made of; None where unknown.
        kind: How it searches.
        vectors: (n, dim) unit vectors, perhaps memory-mapped.
        live: (n,) False where a row was replaced by a later one.
        saved_as: The manifest that it was loaded from or saved with, by hash; '' before.
    """

    def __init__(
        self,
        vectors: NDArray[np.float32],
        rows: pl.DataFrame,
        *,
        level: Level,
        encoder: str,
        frame: float | None = None,
        kind: Kind,
        engine: Approximate | None = None,
        live: NDArray[np.bool_] | None = None,
    ) -> None:
        self._parts = [vectors]
        self.rows = rows
        self.level: Level = level
        self.encoder, self.frame = encoder, frame
        self.kind: Kind = kind
        self.live = np.ones(len(vectors), bool) if live is None else live
        self.saved_as = ""
        self._engine = engine
        self._hashes: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """How many can be found."""
        return int(self.live.sum())

    def __repr__(self) -> str:
        return f"PatientIndex({len(self)} × {self.level}, {self.kind})"

    @property
    def dim(self) -> int:
        return int(self._parts[0].shape[1])

    @property
    def vectors(self) -> NDArray[np.float32]:
        if len(self._parts) > 1:  # put together when needed: adding to a large index is quick
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def blocks(self, start: int, size: int) -> Iterator[NDArray[np.float32]]:
        """The vectors from `start` on, at most `size` at a time."""
        for part in self._parts:
            for first in range(min(start, len(part)), len(part), size):
                yield part[first : first + size]
            start = max(0, start - len(part))

    @classmethod
    def build(cls, embeddings: Embeddings, kind: KindOrAuto = "auto") -> PatientIndex:
        """An index of these; 'auto' is 'exact' up to a million vectors, then 'hnsw', then 'ivf'."""
        embeddings = living(embeddings)
        if not len(embeddings):
            raise SettingError("an index needs at least one embedding that is not zero")
        expect_distinct(embeddings)
        vectors = units(embeddings.vectors)
        chosen = pick_kind(kind, len(vectors))
        return cls(
            vectors,
            embeddings.rows,
            level=embeddings.level,
            encoder=embeddings.encoder,
            frame=embeddings.frame,
            kind=chosen,
            engine=None if chosen == "exact" else Approximate.build(vectors, chosen),
        )

    def missing(self, embeddings: Embeddings) -> NDArray[np.bool_]:
        """(n,) which of these the index does not hold yet."""
        return self._places(embeddings) < 0

    def people(self) -> pl.DataFrame:
        """Dataset and patient of everybody who can be found."""
        return self.rows.select("dataset", "patient").filter(pl.Series(self.live)).unique()

    def of(self, people: pl.DataFrame) -> NDArray[np.bool_]:
        """(n,) which rows are of these; people: columns dataset and patient."""
        ids = self.rows.select("dataset", "patient").with_row_index("row")
        theirs = np.zeros(self.rows.height, bool)
        found = ids.join(people, on=["dataset", "patient"], how="semi", nulls_equal=True)
        theirs[found["row"].to_numpy()] = True
        return theirs

    def retire(self, people: pl.DataFrame) -> None:
        """Never return the rows of these again; they stay in place. See `of`."""
        self.live &= ~self.of(people)

    def add(self, embeddings: Embeddings, *, replace: bool = False) -> int:
        """Append rows without rebuilding; how many were added.

        Raises:
            SettingError: Of another level, or a patient (recording) is there already and `replace`
                is not set.
            CheckpointError: Made by another encoder.
        """
        self._expect_fitting(embeddings)
        if embeddings.level != self.level:
            raise SettingError(
                f"this index holds vectors of the level {self.level!r}, not {embeddings.level!r}"
            )
        embeddings = living(embeddings)
        expect_distinct(embeddings)
        places = self._places(embeddings)
        there = places >= 0
        if there.any() and not replace:
            first = embeddings.rows.row(int(np.flatnonzero(there)[0]))
            raise SettingError(
                f"{int(there.sum())} of {len(embeddings)} stand in the index already, such as "
                f"{first[2] or first[1]} of {first[0] or 'the files'}; replace them with --replace"
            )
        self.live[places[there]] = False
        fresh = units(embeddings.vectors)
        if self._engine is not None:
            self._engine.add(fresh)
        self._parts.append(fresh)
        self.rows = pl.concat([self.rows, embeddings.rows])
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
            vectors: (queries, dim), or embeddings, which are checked to be of the same encoder.
            k: How many.
            where: Rows that may be returned: conditions, or a mask (n,). Results are exact under
                it up to a million passing rows, whatever the kind.
            exclude: One a query: the (dataset, patient) never to be returned; for `Embeddings`,
                their own patients by default.
        """
        if isinstance(vectors, Embeddings):
            self._expect_fitting(vectors)
            if exclude is None:
                exclude = list(vectors.rows.select("dataset", "patient").iter_rows())
            vectors = vectors.vectors
        queries = self._queries(vectors, k)
        banned = [self._rows_of(one) for one in exclude] if exclude else [[]] * len(queries)
        if len(banned) != len(queries):
            raise SettingError(f"{len(queries)} queries need as many excluded, not {len(banned)}")
        more = min(k + max(map(len, banned), default=0), len(self.live))
        rows, cosine = self._nearest(queries, more, self._allowed(where))
        for query, own in enumerate(banned):
            if own:
                cosine[query, np.isin(rows[query], own)] = -np.inf
        order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
        cosine = np.take_along_axis(cosine, order, axis=1)
        rows = np.where(np.isneginf(cosine), -1, np.take_along_axis(rows, order, axis=1))
        distance = np.maximum(1 - cosine, 0)  # rounding can make it a little less than nothing
        return Hits(rows, distance, np.sqrt(2 * distance))

    def row_of(self, patient: str, dataset: str | None = None) -> NDArray[np.int64]:
        """Rows of a patient (or recording); SettingError where none is, or in two datasets."""
        mine = self.live if dataset is None else self.live & self._is("dataset", dataset)
        found = np.flatnonzero(mine & self._is("patient", patient))
        if not len(found):
            found = np.flatnonzero(mine & self._is("recording", patient))
        if not len(found):
            whose = "" if dataset is None else f" of {dataset}"
            raise SettingError(f"the index holds no {self.level} {patient!r}{whose}; check the id")
        sets = self.rows["dataset"][found].unique(maintain_order=True).to_list()
        if len(sets) > 1:
            raise SettingError(
                f"{patient!r} stands in {' and in '.join(map(repr, sets))}; say which one, as "
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
        """The k nearest to a patient: their rows with `cosine` and `euclidean`, nearest first.

        A patient with several rows (recordings) is asked for by the mean of their unit vectors.
        """
        own = self.row_of(patient, dataset)
        row = self.rows.row(int(own[0]), named=True)
        query = self.vectors[own].mean(axis=0, keepdims=True)
        hits = self.search(query, k, where=where, exclude=[(row["dataset"], row["patient"])])
        return self.table(hits)

    def table(self, hits: Hits, query: int = 0) -> pl.DataFrame:
        """The rows that one query found, with `cosine` and `euclidean`, nearest first."""
        there = hits.rows[query] >= 0
        found = self.rows.select(pl.all().gather(pl.Series(hits.rows[query][there])))
        return found.with_columns(
            pl.Series("cosine", hits.cosine[query][there]),
            pl.Series("euclidean", hits.euclidean[query][there]),
        )

    def save(self, folder: Path | str) -> None:
        """Write the folder; its manifest last."""
        from clocs.patients.index_files import save_index

        save_index(self, Path(folder))

    @classmethod
    def load(cls, folder: Path | str) -> PatientIndex:
        """Open a folder; vectors stay on disk, memory-mapped."""
        from clocs.patients.index_files import load_index

        return load_index(Path(folder))

    @property
    def engine(self) -> Approximate | None:
        """FAISS's index, where the kind is not 'exact'."""
        return self._engine

    def _nearest(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(queries, k) rows and cosines, -1 and -inf where there are fewer."""
        passing = len(self.vectors) if allowed is None else int(allowed.sum())
        engine = self._engine
        if engine is None or (allowed is not None and passing <= EXACT_UP_TO):
            some = None if allowed is None else np.flatnonzero(allowed)
            return scan(self.vectors, queries, k, some)
        found = engine.candidates(queries, k, allowed)
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
            raise SettingError(f"the mask has {mask.shape} rows, the index {self.live.shape}")
        allowed = self.live if mask is None else mask & self.live
        return None if allowed.all() else allowed

    def _queries(self, vectors: NDArray[np.float32], k: int) -> NDArray[np.float32]:
        if k < 1:
            raise SettingError(f"k is {k}; ask for at least 1 neighbour")
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise SettingError(f"queries are (n, {self.dim}) vectors here, not {vectors.shape}")
        if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
            raise SettingError("a query is zero or not finite: it has no neighbours")
        return units(vectors)

    def _expect_fitting(self, embeddings: Embeddings) -> None:
        if embeddings.encoder != self.encoder:
            raise CheckpointError(
                f"this index was made by the encoder {self.encoder[:12]}…, the embeddings by "
                f"{embeddings.encoder[:12]}…: their vectors cannot be compared; use the index's own"
            )
        if None not in (self.frame, embeddings.frame) and self.frame != embeddings.frame:
            raise SettingError(
                f"this index was made of frames of {self.frame:g} s, the embeddings of "
                f"{embeddings.frame:g} s: their vectors cannot be compared; cut them as the index's"
            )

    def _places(self, embeddings: Embeddings) -> NDArray[np.int64]:
        """(n,) the live row of each of these, -1 where there is none."""
        ids = list(ID_COLUMNS[self.level])
        own = self.rows.select(ids).with_row_index("row").filter(pl.Series(self.live))
        theirs = embeddings.rows.select(ids)
        joined = theirs.join(own, on=ids, how="left", maintain_order="left", nulls_equal=True)
        return joined["row"].cast(pl.Int64).fill_null(-1).to_numpy()

    def _rows_of(self, patient: tuple[str, str] | None) -> list[int]:
        """All rows of a (dataset, patient), by a sorted list of hashes."""
        if patient is None:
            return []
        if self._hashes is None:
            both = self.rows.select(_PERSON.alias("hash"))["hash"].to_numpy()
            order = np.argsort(both, kind="stable")
            self._hashes = (both[order], order)
        kinds = {name: self.rows.schema[name] for name in ("dataset", "patient")}
        one = pl.DataFrame([patient], schema=kinds, orient="row")
        mark = one.select(_PERSON.alias("hash"))["hash"][0]
        hashes, order = self._hashes
        low, high = (np.searchsorted(hashes, np.uint64(mark), side) for side in ("left", "right"))
        found = order[low:high].tolist()
        return [row for row in found if self.rows.row(row)[:2] == patient]

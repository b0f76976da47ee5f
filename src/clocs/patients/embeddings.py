"""Embeddings: vectors with one row of facts each, saved as one parquet file.

At the level 'frame' a vector is what the encoder made of one lead of one frame. A recording's is
the mean of the unit vectors of its frames and leads, normalized again; a patient's is the same over
all frames and leads of all recordings. A zero vector has no direction: it is left out of means.
Where the encoder's card names maxima, it is the vector that linear layers get, normalized: the mean
of the frames' vectors, and of maxima the greatest.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import CheckpointError, SettingError, StoreError
from clocs.files import file_error, writing
from clocs.patients.rows import (
    ID_COLUMNS,
    READ_SCHEMA,
    ROW_SCHEMA,
    Level,
    check_level,
    group_rows,
    make_rows,
    with_readings,
    write_rows,
)
from clocs.sealed import footer_of, is_sealed

FORMAT = 2
_METADATA_KEY = "clocs.embeddings"
TABLE_MARK = r"problem\b|model-name"  # of tables of recordings, and of those in FHIR
_AT_ONCE = 65_536  # vectors processed together


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Vectors and their rows.

    Attributes:
        vectors: (n, dim) float32; unit vectors above the level 'frame', the encoder's own output at
            that level.
        rows: One per vector, with the columns of `clocs.patients.rows.ROW_SCHEMA`; then, where it
            is known how the recordings were read, those of `READ_SCHEMA`.
        level: What a vector represents.
        encoder: The sha256 of the encoder's weights; vectors of two encoders are not comparable.
        only_zeros: (dataset, patient, recording) of those with zero vectors only; recording is ''
            at the level 'patient'. They have no row, except at the level 'frame'.
        zero_vectors: Number of frames × leads with a zero vector.
        problems: (name, reason) of files that could not be embedded.
        frame: Seconds of the frames that the encoder saw. Frames of any length are resampled to the
            same number of samples, so vectors of two frame lengths are not comparable; None where
            unknown.
        leads: The leads that the vectors were made of; None where unknown.
        maxima: First and last + 1 of the numbers that are maxima over time, as on the encoder's
            card.
    """

    vectors: NDArray[np.float32]
    rows: pl.DataFrame
    level: Level
    encoder: str
    only_zeros: tuple[tuple[str, str, str], ...] = ()
    zero_vectors: int = 0
    problems: tuple[tuple[str, str], ...] = ()
    frame: float | None = None
    leads: tuple[str, ...] | None = None
    maxima: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_level(self.level)
        if self.vectors.ndim != 2 or len(self.vectors) != self.rows.height:
            raise SettingError(
                f"{self.rows.height} rows need as many vectors, not an array {self.vectors.shape}"
            )
        if dict(self.rows.schema) not in (ROW_SCHEMA, ROW_SCHEMA | READ_SCHEMA):
            raise SettingError(f"rows need the columns {', '.join(ROW_SCHEMA)}, in this order")

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    def where(self, kept: NDArray[np.bool_]) -> Embeddings:
        """Only these rows."""
        return replace(self, vectors=self.vectors[kept], rows=self.rows.filter(pl.Series(kept)))

    def nonzero(self) -> Embeddings:
        """Without zero vectors, which have no direction."""
        length = lengths(self.vectors)
        if not np.isfinite(length).all():
            patient = self.rows["patient"][int(np.flatnonzero(~np.isfinite(length))[0])]
            raise SettingError(f"the vector of {patient} is not finite; embed it again")
        return self if (length > 0).all() else self.where(length > 0)

    def to(self, level: Level) -> Embeddings:
        """Vectors of frames -> one per recording or patient."""
        if self.level == level:
            return self
        if self.level != "frame":
            raise SettingError(
                f"embeddings of the level {self.level!r} cannot become {level!r}: means are taken "
                "over frames; embed at the level 'frame' first"
            )
        readings = None
        if "rate" in self.rows.columns:
            ids = ID_COLUMNS["recording"]
            readings = self.rows.unique(ids, keep="first", maintain_order=True)
        rows = self.rows.select(list(ROW_SCHEMA))
        names = ("encoder", "problems", "frame", "leads", "maxima")
        facts = {name: getattr(self, name) for name in names}
        return collect([self.vectors], [level], rows, self.dim, readings, **facts)[level]

    def save(self, path: Path | str) -> None:
        """Write one parquet file, complete or not at all: the rows, and a column `vector`."""
        path = Path(path)
        vector = pl.Series(
            "vector", np.ascontiguousarray(self.vectors), dtype=pl.Array(pl.Float32, self.dim)
        )
        facts = {
            "format": FORMAT,
            "level": self.level,
            "encoder": self.encoder,
            "dead": self.only_zeros,
            "dead_views": self.zero_vectors,
            "problems": self.problems,
            "frame": self.frame,
            "leads": self.leads,
            "maxima": self.maxima,
        }
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_rows(self.rows.with_columns(vector), path, {_METADATA_KEY: json.dumps(facts)})

    @classmethod
    def load(cls, path: Path | str) -> Embeddings:
        """Read what `save` wrote, and compare it with its digest."""
        path = Path(path)
        facts, table = _read(path)
        try:
            kind = table.schema["vector"]
            if not isinstance(kind, pl.Array):
                raise ValueError("its column `vector` holds no arrays")
            vectors = table["vector"].to_numpy().astype(np.float32, copy=False)
            leads = facts["leads"]
            return cls(
                vectors=vectors.reshape(table.height, kind.size),
                rows=table.drop("vector"),
                level=facts["level"],
                encoder=facts["encoder"],
                only_zeros=tuple((d, p, r) for d, p, r in facts["dead"]),
                zero_vectors=facts["dead_views"],
                problems=tuple((name, reason) for name, reason in facts["problems"]),
                frame=facts["frame"],
                leads=None if leads is None else tuple(leads),
                maxima=tuple(facts.get("maxima", ())),  # not in files of earlier versions
            )
        except (KeyError, ValueError, TypeError) as error:
            raise _no_embeddings(path, str(error)) from error

    make_rows = staticmethod(make_rows)


def _read(path: Path) -> tuple[dict[str, Any], pl.DataFrame]:
    """Facts and table of a file, as `save` left it."""
    try:
        with path.open("rb") as file:
            if not is_sealed(file):
                if _METADATA_KEY.encode() not in footer_of(file):
                    raise _no_embeddings(path, "it is another file, or damaged")
                raise StoreError(
                    f"{path} is damaged, or an earlier version wrote it without a digest; embed "
                    "again with `clocs embed`"
                )
            facts: dict[str, Any] = json.loads(pl.read_parquet_metadata(file)[_METADATA_KEY])
            file.seek(0)
            table = pl.read_parquet(file)
    except OSError as error:
        raise file_error(error, path, doing="read") from error
    except (KeyError, ValueError, pl.exceptions.PolarsError) as error:
        raise _no_embeddings(path, str(error)) from error
    if facts["format"] != FORMAT:
        raise StoreError(
            f"{path} holds embeddings of another format; embed again with `clocs embed`"
        )
    return facts, table


def _no_embeddings(path: Path, why: str) -> StoreError:
    return StoreError(f"{path} holds no embeddings ({why}); make them with `clocs embed`")


def check_table(path: Path, suffixes: Sequence[str], mark: str) -> None:
    """SettingError where a table cannot be written, or would replace what `mark` is not in."""
    if not path.name.endswith(tuple(suffixes)):
        raise SettingError(f"`out` is {path}; give a name that ends in {' or '.join(suffixes)}")
    if path.is_dir():
        raise SettingError(f"`out` is {path}, a folder; give the name of a file in it")
    folder = next(one for one in path.absolute().parents if one.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise SettingError(f"{folder} cannot be written to; give another `out`")
    if path.exists():
        with path.open("rb") as file:
            held = file.read(16_384) + footer_of(file)
        if held and not re.search(mark.encode(), held):
            raise SettingError(
                f"{path} exists and is no such table; give another `out`, or delete it"
            )


def expect_replaceable(path: Path) -> None:
    """SettingError where embeddings would be written over something else."""
    check_table(path, (".parquet",), _METADATA_KEY)


def collect(
    vectors: Iterable[NDArray[np.float32]],
    levels: Sequence[Level],
    frames: pl.DataFrame,
    dim: int,
    readings: pl.DataFrame | None = None,
    **facts: Any,
) -> dict[Level, Embeddings]:
    """Vectors of frames, some at a time in the order of their rows -> embeddings of each level.

    Args:
        vectors: (some, dim) each.
        levels: Which ones.
        frames: Their rows.
        dim: Numbers of a vector.
        readings: How the recordings were read: dataset, patient, recording and `READ_SCHEMA`.
        facts: The other fields of `Embeddings`.
    """

    def read(rows: pl.DataFrame) -> pl.DataFrame:
        return rows if readings is None else with_readings(rows, readings)

    grouped = {level: group_rows(frames, level) for level in levels if level != "frame"}
    means = {
        level: UnitMeans(group, rows.height, dim, facts.get("maxima", ()))
        for level, (group, rows) in grouped.items()
    }
    # of many recordings, the rows of frames are larger than their vectors
    frames = frames if "frame" in levels else frames[:0]
    single = np.empty((frames.height, dim), np.float32)
    start = 0
    for part in vectors:
        for one in means.values():
            one.add(part)
        if "frame" in levels:
            single[start : start + len(part)] = part
        start += len(part)
    made: dict[Level, Embeddings] = {}
    for level, (_, rows) in grouped.items():
        own = means[level]
        without = rows.filter(pl.Series(~own.nonzero)).select("dataset", "patient", "recording")
        seen = read(rows).with_columns(pl.Series("views", own.views))
        made[level] = Embeddings(
            vectors=own.vectors if own.nonzero.all() else own.vectors[own.nonzero],
            rows=seen.filter(pl.Series(own.nonzero)),
            level=level,
            only_zeros=tuple((d, p, r or "") for d, p, r in without.iter_rows()),
            zero_vectors=own.zeros,
            **facts,
        )
    if "frame" in levels:
        nonzero = lengths(single) > 0
        rows = read(frames.with_columns(pl.Series("views", nonzero.astype(np.int32))))
        zeros = int((~nonzero).sum())
        made["frame"] = Embeddings(single, rows, "frame", zero_vectors=zeros, **facts)
    return made


def expect_distinct(rows: pl.DataFrame, level: Level) -> None:
    """SettingError where two rows of a level have the same ID."""
    twice = rows.filter(rows.select(ID_COLUMNS[level]).is_duplicated())
    if twice.height:
        dataset, patient = twice.row(0)[:2]
        raise SettingError(
            f"{patient} of {dataset or 'the files'} is among the embeddings twice; give it once"
        )


def expect_comparable(some: Sequence[Any]) -> None:
    """Refuse embeddings, or an index, of different encoders, frames or leads, as far as known."""
    encoders = sorted({one.encoder[:12] for one in some})
    if len(encoders) > 1:
        raise CheckpointError(
            f"these vectors were made by the encoders {'… and '.join(encoders)}…, and cannot be "
            "compared; use one encoder for all"
        )
    frames = sorted({one.frame for one in some if one.frame is not None})
    if len(frames) > 1:
        raise SettingError(
            f"these vectors are of frames of {' and '.join(f'{one:g} s' for one in frames)}, and "
            "cannot be compared; give the seconds of a frame for all as `frame`"
        )
    leads = sorted({tuple(sorted(one.leads)) for one in some if one.leads is not None})
    if len(leads) > 1:
        raise SettingError(
            f"these vectors were made from different leads ({', '.join(leads[0])} and "
            f"{', '.join(leads[1])}), and cannot be compared; choose `leads` for all"
        )


def joined(parts: Sequence[Embeddings]) -> Embeddings:
    """Several embeddings of one encoder, frame, level and choice of leads as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if len({part.level for part in parts}) > 1:
        raise SettingError("embeddings of different levels cannot be joined")
    expect_comparable(parts)
    rows = pl.concat([part.rows for part in parts], how="diagonal")
    expect_distinct(rows, first.level)
    return replace(
        first,
        vectors=np.concatenate([part.vectors for part in parts]),
        rows=rows,
        only_zeros=tuple(one for part in parts for one in part.only_zeros),
        zero_vectors=sum(part.zero_vectors for part in parts),
        problems=tuple(one for part in parts for one in part.problems),
    )


def halves(frames: Embeddings, level: Level = "recording") -> tuple[Embeddings, Embeddings]:
    """Embeddings of frames -> those of the first and of the second halves of recordings.

    A frame in the middle belongs to neither half; recordings of a single frame have no halves.
    """
    ids = ID_COLUMNS["recording"]
    place = pl.col("segment").rank("dense").over(ids) - 1
    count = pl.col("segment").n_unique().over(ids)
    at, total = (one.to_numpy() for one in frames.rows.select(place=place, count=count))
    half = total // 2
    return (
        frames.where(at < half).to(level),
        frames.where((at >= total - half) & (half > 0)).to(level),
    )


def patient_halves(frames: Embeddings) -> NDArray[np.float32]:
    """(patients, 2, dim): unit vectors of either half of each patient's recordings.

    Patients without two halves are left out.
    """
    first, second = halves(frames, "patient")
    ids = list(ID_COLUMNS["patient"])
    left, right = first.rows.select(ids).with_row_index("a"), second.rows.select(ids)
    pairs = left.join(right.with_row_index("b"), on=ids, maintain_order="left", nulls_equal=True)
    return np.stack([first.vectors[pairs["a"]], second.vectors[pairs["b"]]], axis=1)


class UnitMeans:
    """The vector of each group, as the module says; zero vectors are counted and left out.

    Sums are kept in float64 and grow view by view in order, so that they do not depend on how views
    are batched; only of groups that still have rows to come.

    Attributes:
        vectors: (groups, dim) unit vectors, once all rows are added.
        nonzero: (groups,) which of them are not zero.
        views: (groups,) unit vectors added.
        zeros: How many zero vectors there were.
    """

    def __init__(
        self, group: NDArray[np.int64], groups: int, dim: int, maxima: Sequence[int] = ()
    ) -> None:
        """group: (n,) of each row that will be added, in order; maxima: as in `Embeddings`."""
        self.vectors = np.zeros((groups, dim), np.float32)
        self.nonzero = np.zeros(groups, bool)
        self.views = np.zeros(groups, np.int32)
        self.zeros = 0
        self._group, self._added = group, 0
        self._maxima = slice(*maxima or (0,))
        self._last = np.zeros(groups, np.int64)  # row of each group
        self._last[group] = np.arange(len(group))
        self._open, self._sums = np.zeros(0, np.int64), np.zeros((0, dim))

    def add(self, vectors: NDArray[np.float32]) -> None:
        """vectors: (m, dim) of the next rows."""
        for start in range(0, len(vectors), _AT_ONCE):
            self._add(vectors[start : start + _AT_ONCE])

    def _add(self, vectors: NDArray[np.float32]) -> None:
        group = self._group[self._added : self._added + len(vectors)]
        self._added += len(vectors)
        unit, nonzero = _unit(vectors)
        each = vectors.astype(np.float64) if self._maxima.stop else unit
        greatest = each[nonzero, self._maxima].copy()
        each[:, self._maxima] = 0
        self.zeros += int((~nonzero).sum())
        np.add.at(self.views, group[nonzero], 1)
        here = np.union1d(self._open, group)
        sums = np.zeros((len(here), vectors.shape[1]))
        sums[np.searchsorted(here, self._open)] = self._sums
        place = np.searchsorted(here, group[nonzero])
        np.add.at(sums, place, each[nonzero])
        np.maximum.at(sums[:, self._maxima], place, greatest)  # none is negative
        ended = self._last[here] < self._added
        whole = sums[ended]
        whole[:, self._maxima] *= self.views[here[ended], None]
        self.vectors[here[ended]], self.nonzero[here[ended]] = _unit(whole)
        self._open, self._sums = here[~ended], sums[~ended]


def _unit(vectors: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(n, dim) -> the same with length 1, and (n,) which are not zero (zeros stay zero)."""
    wide = vectors.astype(np.float64)
    length = lengths(wide)
    nonzero = length > 0
    return wide / np.where(nonzero, length, 1.0)[:, None], nonzero


def as_units(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """(n, dim) unit vectors: the same array where they are already, perhaps memory-mapped."""
    if vectors.dtype == np.float32 and np.allclose(lengths(vectors), 1, rtol=0, atol=1e-6):
        return np.ascontiguousarray(vectors) if not vectors.flags.c_contiguous else vectors
    unit = np.empty(vectors.shape, np.float32)
    for start in range(0, len(vectors), _AT_ONCE):  # in bounded extra memory
        unit[start : start + _AT_ONCE] = _unit(vectors[start : start + _AT_ONCE])[0]
    return unit


def lengths(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """(n, dim) -> (n,), in bounded memory."""
    found = np.empty(len(vectors))
    for start in range(0, len(vectors), _AT_ONCE):
        some = vectors[start : start + _AT_ONCE].astype(np.float64)
        found[start : start + len(some)] = np.sqrt(np.einsum("nd,nd->n", some, some))
    return found

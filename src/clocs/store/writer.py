"""Writing recordings one after another: samples to chunks, rows to the journal, part by part.

A few threads compress; one does everything that touches the disk, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.datasets.base import Quarantined
from clocs.store import chunks
from clocs.store.journal import Done, Journal
from clocs.store.store import TABLE_SCHEMA
from clocs.store.workers import ReadRecording

_COMPRESSORS = 2
_MOST_JOBS = 24  # that wait for the disk, each holding at most one chunk


class Writer:
    """Appends results to the signals and commits them part by part; use it in a `with`."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder, self._journal = folder, journal
        self._pool = ThreadPoolExecutor(_COMPRESSORS, thread_name_prefix="compress")
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._jobs: deque[Future[None]] = deque()
        self._failed = False
        self._done = journal.done  # once all jobs are
        self._position = self._done.samples  # where the next recording starts
        self._index = self._done.chunks  # of the chunk being filled
        self._free: deque[NDArray[np.int16]] = (
            deque()
        )  # buffers to fill again: fresh memory is slow
        self._buffer = np.empty(chunks.CHUNK_SAMPLES, dtype=np.int16)
        self._waiting: deque[tuple[int, dict[str, Any] | Quarantined]] = deque()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.shutdown(cancel_futures=True)
        self._pool.shutdown(cancel_futures=True)

    def add(self, result: ReadRecording | Quarantined) -> None:
        """Append a recording, or note that an entry is in quarantine."""
        if isinstance(result, Quarantined):
            self._waiting.append((self._position, result))
            return
        result.row["offset"] = self._position
        self._append(result.flat)
        self._waiting.append((self._position, result.row))
        per_part = chunks.CHUNKS_PER_PART
        if self._index // per_part > self._done.chunks // per_part:
            self._commit()

    def finish(self) -> None:
        """Commit everything and wait until it is on disk."""
        filled = self._position - self._index * chunks.CHUNK_SAMPLES
        if filled > 0:
            self._buffer[filled:] = 0
            self._flush()
        self._commit()
        while self._jobs:
            self._jobs.popleft().result()

    def _append(self, flat: NDArray[np.int16]) -> None:
        size = chunks.CHUNK_SAMPLES
        stop = self._position + flat.size
        # After resuming, the first recording may begin in a chunk that is on disk already.
        at = max(self._position, self._index * size)
        while at < stop:
            inside = at - self._index * size
            taken = min(size - inside, stop - at)
            begin = at - self._position
            self._buffer[inside : inside + taken] = flat[begin : begin + taken]
            at += taken
            if inside + taken == size:
                self._flush()
        self._position = stop

    def _flush(self) -> None:
        encoded = self._pool.submit(self._compress, self._buffer)
        self._to_disk(self._write_chunk, self._index, encoded)
        empty = self._free.popleft() if self._free else np.empty_like(self._buffer)
        self._buffer = empty
        self._index += 1

    def _commit(self) -> None:
        """Commit everything that lies in whole chunks; the rest waits for the next part."""
        rows: list[dict[str, Any]] = []
        quarantined: list[Quarantined] = []
        before, samples = self._done, self._done.samples
        while self._waiting and self._waiting[0][0] <= self._index * chunks.CHUNK_SAMPLES:
            samples, result = self._waiting.popleft()
            if isinstance(result, Quarantined):
                quarantined.append(result)
            else:
                rows.append(result)
        entries = before.entries + len(rows) + len(quarantined)
        self._done = Done(before.parts + 1, entries, samples, self._index)
        self._to_disk(self._write_part, rows, quarantined, self._done)

    def _to_disk(self, job: Callable[..., None], *args: object) -> None:
        self._jobs.append(self._disk.submit(self._unless_failed, job, *args))
        while len(self._jobs) > _MOST_JOBS or self._jobs[0].done():
            self._jobs.popleft().result()
            if not self._jobs:
                break

    def _unless_failed(self, job: Callable[..., None], *args: object) -> None:
        """Run a job; none after one that failed, or a part could point to samples that are not."""
        if self._failed:
            return
        try:
            job(*args)
        except BaseException:
            self._failed = True
            raise

    def _compress(self, buffer: NDArray[np.int16]) -> bytes:
        encoded = chunks.compress(buffer)
        self._free.append(buffer)
        return encoded

    def _write_chunk(self, index: int, encoded: Future[bytes]) -> None:
        chunks.write_chunk(self._folder, index, encoded.result())

    def _write_part(
        self, rows: list[dict[str, Any]], quarantined: list[Quarantined], done: Done
    ) -> None:
        self._journal.commit(table_of(rows), quarantined, done)


def table_of(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows of recordings as a table."""
    columns = {
        name: _repeating([row[name] for row in rows], dtype)
        if isinstance(dtype, pl.List)
        else pl.Series([row[name] for row in rows], dtype=dtype)
        for name, dtype in TABLE_SCHEMA.items()
    }
    return pl.DataFrame(columns)


def _repeating(values: Sequence[Hashable], dtype: pl.List) -> pl.Series:
    """A column of tuples: leads, gains and labels repeat, and a list is slow to hand to polars."""
    index: dict[Hashable, int] = {}
    places = [index.setdefault(value, len(index)) for value in values]
    lists = [[_plain(one) for one in value] for value in index]  # type: ignore[attr-defined]
    return pl.Series(lists, dtype=dtype).gather(places)


def _plain(value: Any) -> Any:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value

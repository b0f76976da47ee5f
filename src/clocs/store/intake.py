"""Reading entries by a crew: outcomes in the order of the listing, a bounded number in flight.

Knows nothing about how they are stored.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clocs.datasets.base import Dataset, Entry, Quarantined
from clocs.errors import ClocsError, UnusableError
from clocs.files import digest
from clocs.recording import Recording

_as_json = json.JSONEncoder(ensure_ascii=False).encode
_BATCH_BYTES = 2 << 20  # of samples, roughly, that one task reads
_BATCH_ENTRIES = 16
# Reading one entry may fail for the entry's sake; these are the machine's.
_MACHINE_ERRORS = {errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EDQUOT}


@dataclass(slots=True)
class Read:
    """A recording on its way to the store: its table row, still without an offset, and samples."""

    row: dict[str, Any]
    flat: NDArray[np.int16]


Outcome: TypeAlias = Read | Quarantined


class Crew(Protocol):
    """Workers that read batches of entries."""

    @property
    def has_room(self) -> bool: ...
    @property
    def is_idle(self) -> bool: ...
    def submit(self, entries: Sequence[Entry]) -> None: ...
    def take(self) -> list[Outcome]:
        """The outcomes of the oldest batch; their samples hold until the next `submit`."""
        ...

    def close(self) -> None: ...


def read_all(crew: Crew, entries: Sequence[Entry]) -> Iterator[list[Outcome]]:
    """Outcomes of all entries in order, in batches; samples hold until the next batch."""
    left = iter(entries)
    size = 1  # grows once the size of recordings is known, so that memory stays bounded
    while True:
        while crew.has_room and (batch := list(islice(left, size))):
            crew.submit(batch)
        if crew.is_idle:
            return
        outcomes = crew.take()
        largest = max((one.flat.nbytes for one in outcomes if isinstance(one, Read)), default=1)
        size = max(1, min(_BATCH_ENTRIES, 2 * size, _BATCH_BYTES // largest))
        yield outcomes


def read_one(dataset: Dataset, entry: Entry) -> Outcome:
    """Read an entry; whatever is wrong with it alone is an outcome too."""
    try:
        recording = dataset.read(entry)
        _expect_sound(recording)
    except UnusableError as error:
        return Quarantined(entry.id, error.reason, error.detail)
    except (ClocsError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
            raise
        return Quarantined(entry.id, "unreadable", f"{type(error).__name__}: {error}")
    digital = np.ascontiguousarray(recording.digital)
    row = {
        "id": recording.id,
        "patient": recording.patient,
        "offset": 0,
        "samples": recording.samples,
        "leads": recording.leads,
        "rate": recording.rate,
        "gain": tuple(recording.gain.tolist()),
        "baseline": tuple(recording.baseline.tolist()),
        "unit": recording.unit,
        "labels": recording.labels,
        "episodes": recording.episodes,
        "age": recording.age,
        "sex": recording.sex,
        "taken": recording.taken,
        "extra": _as_json(recording.extra),
        "digest": digest(digital),
    }
    return Read(row, digital.reshape(-1))


def _expect_sound(recording: Recording) -> None:
    leads = len(recording.leads)
    if recording.digital.dtype != np.int16 or recording.digital.ndim != 2:
        raise TypeError("samples are not (leads, samples) of int16")
    if not recording.digital.shape[0] == recording.gain.size == recording.baseline.size == leads:
        raise ValueError(f"{leads} lead names, but other numbers of samples, gains or baselines")
    if len(set(recording.leads)) != leads:
        raise ValueError("a lead occurs twice")
    if recording.digital.size == 0:
        raise UnusableError("too short", "it holds no samples")

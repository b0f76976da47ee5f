"""A small dataset made of numbers, with every kind of entry, for tests."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from clocs.datasets.base import Dataset, Entry, Listing, Quarantined
from clocs.errors import UnusableError
from clocs.recording import Episode, FrameSpec, Recording

FRAME, SEGMENT = FrameSpec(10.0), FrameSpec(5.0)


@dataclass
class FakeDataset(Dataset):
    count: int = 50
    samples: int = 5000
    lead_names: tuple[str, ...] = ("II", "V2", "aVL", "aVR")
    per_patient: int = 2
    fingerprint: str = "one"
    version: str = "1"
    name: str = "fake"
    labels: tuple[str, ...] = ("A", "B")
    multilabel: bool = False
    frame: FrameSpec = FRAME
    segment_frame: FrameSpec = SEGMENT
    resample: Literal["recording", "frame"] = "recording"
    batch_size: int = 256
    skip_flat: bool = False
    keep_unlabeled: bool = False
    change: Callable[[int, Recording], Recording] = lambda _, recording: recording
    seen: list[str] = field(default_factory=list)
    log: Path | None = None
    halt: int | None = None  # this one and later ones are never read to their end
    notices: tuple[str, ...] = ()

    @property
    def settings(self) -> Mapping[str, str]:
        return {"version": self.version}

    def list(self) -> Listing:
        return Listing(
            entries=tuple(
                Entry(f"r{i}", f"p{i // self.per_patient}", f"r{i}.dat") for i in range(self.count)
            ),
            quarantined=(Quarantined("listed", "no label", "not in the table"),),
            rows_without_recording=("x1", "x2"),
            fingerprint=self.fingerprint,
        )

    def read(self, entry: Entry) -> Recording:
        self.seen.append(entry.id)
        if self.log is not None:
            handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(handle, f"{entry.id}\n".encode())
            os.close(handle)
        number = int(entry.id[1:])
        while self.halt is not None and number >= self.halt:
            time.sleep(1)
        if number % 10 == 3:
            raise UnusableError("flat", "all leads are flat")
        if number % 10 == 7:
            raise UnusableError("unreadable", "it breaks off")
        return self.change(number, self.recording(number, entry.patient))

    def recording(self, number: int, patient: str) -> Recording:
        random = np.random.default_rng(number)
        leads = len(self.lead_names)
        length = self.samples + number % 5
        steps = random.integers(-9, 10, (leads, length))
        return Recording(
            id=f"r{number}",
            patient=patient,
            leads=self.lead_names,
            rate=500.0,
            digital=np.cumsum(steps, axis=1).astype(np.int16),
            gain=np.full(leads, 200.0) + np.arange(leads) / 3,
            baseline=np.arange(leads, dtype=np.int32),
            labels=(self.labels[number % 2],),
            episodes=(Episode(0, length, "A"),) if number % 4 == 1 else (),
            age=None if number % 6 == 0 else number / 7,
            sex=None if number % 5 == 0 else "female",
            extra={"note": "é 'quoted'"} if number % 2 else {},
        )


def main() -> None:
    """Prepare in small parts, never to the end, for a test that kills it: OUT LOG.

    Nothing here imports polars, so that the readers are forked, as on the command line.
    """
    from clocs.store import chunks
    from clocs.store.prepare import prepare

    chunks.CHUNK_SAMPLES, chunks.CHUNKS_PER_PART = 50_000, 2
    assert "polars" not in sys.modules
    prepare(
        FakeDataset(count=200, log=Path(sys.argv[2]), halt=190), out=Path(sys.argv[1]), workers=2
    )


if __name__ == "__main__":
    main()

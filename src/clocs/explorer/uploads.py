"""Uploads: files from a browser -> a recording, read by a process with limits.

Knows nothing about maps or patients.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SourceError
from clocs.explorer.packing import pack, unpack
from clocs.explorer.upload_worker import unpacked
from clocs.recording import Recording

SECONDS = 20.0
FILES = 8  # in one upload
_KEPT = 16  # uploads remembered, so that a page can ask for their signals
_AT_ONCE = threading.BoundedSemaphore(2)


def read_bounded(
    files: Mapping[str, bytes], rate: float | None = None, seconds: float = SECONDS
) -> Recording:
    """The recording in these files; SourceError with a sentence where there is none."""
    names = {f"file{i}": name for i, name in enumerate(files)}
    data = {f"file{i}": np.frombuffer(data, np.uint8) for i, data in enumerate(files.values())}
    question = pack({"names": names, "rate": rate}, data)
    if not _AT_ONCE.acquire(timeout=seconds):
        raise SourceError("too many files are being read; try again in a moment")
    try:
        done = subprocess.run(
            # -P: the folder that the explorer was started in holds no modules for it.
            [sys.executable, "-P", "-m", "clocs.explorer.upload_worker"],
            input=question,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
            env={
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **{k: os.environ[k] for k in ("PATH", "SYSTEMROOT", "TMPDIR") if k in os.environ},
            },
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"the files took more than {seconds:g} s to read; send less") from None
    finally:
        _AT_ONCE.release()
    try:
        if done.returncode:
            raise ValueError(f"it ended with {done.returncode}")
        facts, _ = unpack(done.stdout)
        if "error" not in facts:
            return unpacked(done.stdout)
    except (ValueError, KeyError, TypeError):
        raise SourceError(
            "the files could not be read within the limits of memory and time; send less"
        ) from None
    raise SourceError(str(facts["error"]))


@dataclass(frozen=True)
class Upload:
    """A recording that a visitor gave, and where it lies.

    Attributes:
        recording: As read.
        vector: (dim,) its embedding, or None where it could not be embedded.
        notes: What the visitor should know about it.
    """

    recording: Recording
    vector: NDArray[np.float32] | None
    notes: tuple[str, ...]


class Uploads:
    """The latest uploads, in memory alone."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept, self._lock = kept, threading.Lock()
        self._held: OrderedDict[str, Upload] = OrderedDict()

    def add(self, code: str, upload: Upload) -> None:
        with self._lock:
            self._held[code] = upload
            while len(self._held) > self._kept:
                self._held.popitem(last=False)

    def get(self, code: str) -> Upload | None:
        with self._lock:
            return self._held.get(code)

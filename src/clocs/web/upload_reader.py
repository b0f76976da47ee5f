"""Reading uploads: few at a time, each in a process with limits on memory and time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread

from clocs.errors import SourceError, UnknownRateError
from clocs.recording import Recording
from clocs.web.packing import pack, unpack
from clocs.web.shield import TooMuchError
from clocs.web.upload_form import SentFiles, upload_form
from clocs.web.upload_unit import GivenUnit, UnitQuestionError
from clocs.web.upload_worker import unpacked_recording

if TYPE_CHECKING:
    from starlette.requests import Request

SECONDS = 20.0
AT_ONCE = 8  # uploads being received, waiting or being read; more are told to come back
READERS = 2  # of them being read: all others are in files of the system, not in memory

T = TypeVar("T")


def read_in_worker(
    files: Mapping[str, bytes],
    rate: float | None = None,
    unit: GivenUnit | None = None,
    seconds: float = SECONDS,
) -> Recording:
    """As `read_upload`, in a process with limits on memory and time."""
    names = {f"file{i}": name for i, name in enumerate(files)}
    data = {f"file{i}": np.frombuffer(data, np.uint8) for i, data in enumerate(files.values())}
    given = asdict(unit or GivenUnit())
    request = pack({"names": names, "rate": rate, "unit": given}, data)
    try:
        done = subprocess.run(
            # -P: import nothing from the current folder
            [sys.executable, "-P", "-m", "clocs.web.upload_worker"],
            input=request,
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
        raise SourceError(
            f"reading the files took more than {seconds:g} s; upload a shorter recording"
        ) from None
    try:
        if done.returncode:
            raise ValueError(f"the worker ended with {done.returncode}")
        facts, _ = unpack(done.stdout)
        if "error" not in facts:
            return unpacked_recording(done.stdout)
    except (ValueError, KeyError, TypeError):
        raise SourceError(
            "the files could not be read within the memory and time limits; "
            "upload a shorter recording"
        ) from None
    if asked := facts.get("question"):
        raise UnitQuestionError(**asked)
    if detail := facts.get("no rate"):
        raise UnknownRateError("no rate", str(detail))
    raise SourceError(str(facts["error"]))


class UploadReader:
    """Reads the uploads of a server.

    They are read by few threads of their own, so that many of them neither fill the memory nor
    keep other requests waiting.
    """

    def __init__(self) -> None:
        self._admitted = 0

    @cached_property
    def _readers(self) -> CapacityLimiter:
        return CapacityLimiter(READERS)

    async def read(self, request: Request, use: Callable[[Recording], T]) -> T:
        """Receive the files of one recording, read it, and return what `use` makes of it."""
        with self._place():
            async with upload_form(request) as sent:
                return await to_thread.run_sync(_read, sent, use, limiter=self._readers)

    @contextmanager
    def _place(self) -> Iterator[None]:
        """A place for one upload, from before its body is received until it has been read."""
        if self._admitted >= AT_ONCE:  # only the event loop's thread comes here
            raise TooMuchError(
                503, "too many files are being read; try again in a moment", {"retry-after": "5"}
            )
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1


def _read(sent: SentFiles, use: Callable[[Recording], T]) -> T:
    files = {name: file.read() for name, file in sent.files.items()}
    return use(read_in_worker(files, sent.rate, sent.unit))

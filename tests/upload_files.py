"""Recordings as files, as a visitor has them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import httpx
import numpy as np

from clocs import Recording
from clocs.web.body_reader import BodyReader
from clocs.web.uploads import read_posted


def wfdb_files(recording: Recording, name: str = "own") -> dict[str, bytes]:
    """A recording as a WFDB pair of format 16."""
    leads, samples = recording.digital.shape
    lines = [f"{name} {leads} {recording.rate:g} {samples}"]
    for lead, gain, zero in zip(recording.leads, recording.gain, recording.baseline, strict=True):
        lines.append(f"{name}.dat 16 {gain:.10g}({zero})/mV 16 0 0 0 0 {lead}")
    data = np.ascontiguousarray(recording.digital.T, "<i2").tobytes()
    return {f"{name}.hea": ("\n".join(lines) + "\n").encode(), f"{name}.dat": data}


def form_of(
    files: Mapping[str, bytes], fields: Mapping[str, str] | None = None
) -> tuple[str, bytes]:
    """The content type and the body of a form with these files."""
    listed = [("files", (name, data)) for name, data in files.items()]
    made = httpx.Request("POST", "http://127.0.0.1", files=listed, data=dict(fields or {}))
    return made.headers["content-type"], made.read()


def read_in_process(
    files: Mapping[str, bytes], fields: Mapping[str, str] | None = None, seconds: float = 600.0
) -> Recording:
    """As a server reads an upload."""
    kind, body = form_of(files, fields)
    reader = BodyReader(read_posted, at_once=1, seconds=seconds)
    try:
        (recording,) = reader.read({"type": kind}, [body]).recordings
        assert isinstance(recording, Recording)
        return recording
    finally:
        reader.close()


def csv_file(recording: Recording) -> bytes:
    """A recording as Chapman publishes them: µV, one column per lead."""
    rows = np.round(recording.signal.T * 1000, 1)
    head = ",".join(recording.leads)
    return (head + "\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n").encode()


def zipped(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return held.getvalue()


def bomb(size: int) -> bytes:
    """A zip whose one member unpacks to `size` zeros."""
    held = io.BytesIO()
    archive = zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("own.csv", "w") as member:
        for _ in range(size // (1 << 20)):
            member.write(b"\0" * (1 << 20))
    return held.getvalue()

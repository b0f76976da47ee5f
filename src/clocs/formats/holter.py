"""Files of Holter recorders: ISHNE (Badilini, 1998), and the raw samples of the Cardiology dataset.

Cardiology's (iRhythm's) are little-endian int16 at 200 Hz, one lead, without a header, and rhythm
episodes as JSON. The gain is unpublished, so the unit is 'adu' and never mV. Nothing in such a file
tells that it is an ECG, so only the dataset reads it: there is no `FileFormat` for it.
"""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from clocs.errors import UnusableError
from clocs.formats import base
from clocs.formats.base import FileFormat, FileMetadata, Part, ReadOptions
from clocs.formats.source import Source, stem
from clocs.limits import check_size
from clocs.recording import UNNAMED_LEAD, Episode, Recording, check_rate

_MAGIC = b"ISHNE1.0"
_HEADER = 522  # bytes, then a variable block, then 16-bit samples
_FAULT = -32768  # a sample of a lead that is off
_NAMES = ("X", "Y", "Z", "I", "II", "III", "aVR", "aVL", "aVF")
_LEADS = dict(enumerate((*_NAMES, "V1", "V2", "V3", "V4", "V5", "V6", "ES", "AS", "AI"), 2))
_MAX_VARIABLE = 64 << 20  # bytes of the variable block
RATE_HZ = 200.0
LEAD = UNNAMED_LEAD


def _header(source: Source, path: str) -> tuple[FileMetadata, tuple[int, ...], int, int]:
    """What a file says before its samples: nV per count, first byte and number of the samples."""
    name = stem(path)
    head = source.head(path, _HEADER)
    if not head.startswith(_MAGIC):
        raise UnusableError(
            "unreadable",
            f"{name} is no ISHNE file, the only kind of .ecg file that is recognized; convert "
            "files of other recorders (Contec …) to EDF, and read Cardiology's as the dataset "
            "cardiology",
        )
    if len(head) < _HEADER:
        raise UnusableError("truncated", f"{name} has no whole header of an ISHNE file")
    checksum, variable = struct.unpack_from("<Hi", head, 8)
    (count,) = struct.unpack_from("<h", head, 156)
    size = source.size(path)
    start = _HEADER + variable
    if not 1 <= count <= 12 or not 0 <= variable <= _MAX_VARIABLE or start > size:
        detail = f"{name} claims {count} leads behind {variable:,} bytes, which cannot be"
        raise UnusableError("unreadable", detail)
    born, day = _date(head, 132), _date(head, 138)
    hour, minute, second = struct.unpack_from("<3h", head, 150)
    try:
        moment = day and day.replace(hour=hour, minute=minute, second=second).isoformat()
    except ValueError:
        moment = day and day.date().isoformat()
    codes = struct.unpack_from(f"<{count}h", head, 158)
    crc = binascii.crc_hqx(source.piece(path, 10, start - 10), 0xFFFF) if checksum else 0
    intact = checksum in (crc, crc >> 8 | (crc & 255) << 8)  # either order of bytes
    recorder = head[232:272].partition(b"\0")[0].decode("latin-1").strip()
    said = FileMetadata(
        leads=[_LEADS.get(code, f"channel {i}") for i, code in enumerate(codes, 1)],
        rate=float(struct.unpack_from("<h", head, 272)[0]),
        patient=head[108:128].partition(b"\0")[0].decode("latin-1").strip() or None,
        sex={1: "male", 2: "female"}.get(struct.unpack_from("<h", head, 128)[0]),
        age=float(int((day - born).days / 365.25)) if born and day and day >= born else None,
        recorded_at=moment or None,
        extra={"recorder": recorder} if recorder else {},
        notices=() if intact else ("the checksum of the header does not fit",),
    )
    nanovolts = struct.unpack_from(f"<{count}h", head, 206)
    return said, nanovolts, start, (size - start) // (2 * count)


def _date(head: bytes, at: int) -> datetime | None:
    day, month, year = struct.unpack_from("<3h", head, at)
    try:
        return datetime(year, month, day)
    except ValueError:
        return None


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    name = stem(path)
    said, nanovolts, start, held = _header(source, path)
    rate = said.rate or 0.0
    check_rate(rate, name=name)
    kept = base.stretch(options, rate=rate, samples=held, name=name)
    width = 2 * len(nanovolts)
    count = kept.stop - kept.start
    check_size(count * width, packed=count * width, name=name)
    if min(nanovolts) <= 0:
        raise UnusableError("implausible", f"{name} has a resolution of {min(nanovolts)} nV")
    data = source.piece(path, start + kept.start * width, count * width)
    if len(data) < count * width:
        raise UnusableError("truncated", f"{name} ends before sample {kept.stop:,}")
    counts = np.frombuffer(data, "<i2").astype(np.int16, copy=False).reshape(count, -1).T
    leads = base.standard_names(said.leads or (), options, name=name)
    return base.make_recording(
        counts,
        replace(said, leads=leads),
        per_mv=1e6 / np.array(nanovolts, np.float64),
        missing=counts == _FAULT,
        name=name,
    )


def _parts(source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
    said, _, _, held = _header(source, path)
    return (Part("", held / said.rate if said.rate and said.rate > 0 else None, said.patient),)


def _recognize(head: bytes) -> bool:
    return head.startswith(_MAGIC)


ISHNE = FileFormat(
    "ISHNE",
    ".ecg",
    _read,
    recognize=_recognize,
    parts=_parts,
    single=True,
    reads_stretches=True,
)


def read_ecg(data: bytes, *, name: str) -> Recording:
    """Decode one `.ecg` file; patient and id are `name`.

    Raises:
        UnusableError: truncated.
    """
    if not data or len(data) % 2:
        detail = f"{name} has {len(data)} bytes, not a whole number of 16-bit samples"
        raise UnusableError("truncated", detail)
    return Recording(
        id=name,
        patient=name,
        leads=(LEAD,),
        rate=RATE_HZ,
        digital=np.frombuffer(data, "<i2").astype(np.int16).reshape(1, -1),
        gain=np.ones(1),
        baseline=np.zeros(1, np.int32),
        unit="adu",
    )


def read_episodes(data: bytes, *, name: str) -> tuple[Episode, ...]:
    """Episodes of an `.episodes.json` file, by their start; onset is 1-based, offset inclusive.

    Raises:
        UnusableError: unreadable.
    """
    try:
        rows = json.loads(data)["episodes"]
        episodes = [
            Episode(int(row["onset"]) - 1, int(row["offset"]), str(row["rhythm_name"]))
            for row in rows
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        detail = f"{name} is not a list of episodes with onset, offset and rhythm_name"
        raise UnusableError("unreadable", detail) from None
    for episode in episodes:
        if not 0 <= episode.start < episode.stop:
            detail = f"{name} has an episode from sample {episode.start + 1} to {episode.stop}"
            raise UnusableError("unreadable", detail)
    return tuple(sorted(episodes, key=lambda episode: (episode.start, episode.stop)))

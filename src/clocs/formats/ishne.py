"""ISHNE Holter files (Badilini, 1998): a header of 522 bytes, a variable block, 16-bit samples."""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np

from clocs.errors import UnusableError
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.samples import from_integers, leads_of, stretch
from clocs.formats.source import Source, stem
from clocs.limits import check_size
from clocs.recording import Recording, check_plausible, check_rate

_MAGIC = b"ISHNE1.0"
_HEADER = 522
_FAULT = -32768  # a sample of a lead that is off
_NAMES = ("X", "Y", "Z", "I", "II", "III", "aVR", "aVL", "aVF")
_LEADS = dict(enumerate((*_NAMES, "V1", "V2", "V3", "V4", "V5", "V6", "ES", "AS", "AI"), 2))
_MAX_VARIABLE = 64 << 20  # bytes of the variable block


class _Header(NamedTuple):
    """What a file says before its samples."""

    leads: tuple[str, ...]
    resolution: tuple[int, ...]  # nV per step
    rate: float
    start: int  # first byte of the samples
    samples: int
    patient: str
    sex: str | None
    age: float | None
    taken: str | None
    recorder: str
    is_intact: bool


def _header(source: Source, path: str) -> _Header:
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
    count = struct.unpack_from("<h", head, 156)[0]
    size = source.size(path)
    start = _HEADER + variable
    if not 1 <= count <= 12 or not 0 <= variable <= _MAX_VARIABLE or start > size:
        detail = f"{name} claims {count} leads behind {variable:,} bytes, which cannot be"
        raise UnusableError("unreadable", detail)
    born, taken = _date(head, 132), _date(head, 138)
    hour, minute, second = struct.unpack_from("<3h", head, 150)
    try:
        moment = taken and taken.replace(hour=hour, minute=minute, second=second).isoformat()
    except ValueError:
        moment = taken and taken.date().isoformat()
    codes = struct.unpack_from(f"<{count}h", head, 158)
    crc = binascii.crc_hqx(source.piece(path, 10, start - 10), 0xFFFF) if checksum else 0
    return _Header(
        leads=tuple(_LEADS.get(code, f"channel {i}") for i, code in enumerate(codes, 1)),
        resolution=struct.unpack_from(f"<{count}h", head, 206),
        rate=float(struct.unpack_from("<h", head, 272)[0]),
        start=start,
        samples=(size - start) // (2 * count),
        patient=head[108:128].partition(b"\0")[0].decode("latin-1").strip(),
        sex={1: "male", 2: "female"}.get(struct.unpack_from("<h", head, 128)[0]),
        age=float(int((taken - born).days / 365.25)) if born and taken and taken >= born else None,
        taken=moment or None,
        recorder=head[232:272].partition(b"\0")[0].decode("latin-1").strip(),
        is_intact=checksum in (crc, crc >> 8 | (crc & 255) << 8),  # either order of bytes
    )


def _date(head: bytes, at: int) -> datetime | None:
    day, month, year = struct.unpack_from("<3h", head, at)
    try:
        return datetime(year, month, day)
    except ValueError:
        return None


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    header, name = _header(source, path), stem(path)
    check_rate(header.rate, name=name)
    kept = stretch(options, rate=header.rate, samples=header.samples, name=name)
    width = 2 * len(header.leads)
    count = kept.stop - kept.start
    check_size(count * width, packed=count * width, name=name)
    if min(header.resolution) <= 0:
        raise UnusableError(
            "implausible", f"{name} has a resolution of {min(header.resolution)} nV"
        )
    data = source.piece(path, header.start + kept.start * width, count * width)
    if len(data) < count * width:
        raise UnusableError("truncated", f"{name} ends before sample {kept.stop:,}")
    steps = np.frombuffer(data, "<i2").reshape(count, -1).T
    samples = from_integers(
        steps,
        leads_of(header.leads, options.lead_names, name=name),
        gain=1e6 / np.array(header.resolution, np.float64),
        zero=np.zeros(len(header.leads)),
        missing=steps == _FAULT,
        name=name,
    )
    extra = {"recorder": header.recorder} if header.recorder else {}
    if not header.is_intact:
        extra["notice"] = "the checksum of the header does not fit"
    recording = Recording(
        id=name,
        patient=header.patient or name,
        leads=samples.leads,
        rate=header.rate,
        digital=samples.digital,
        gain=samples.gain,
        baseline=samples.baseline,
        age=header.age,
        sex=header.sex,
        taken=header.taken,
        extra=extra,
        gaps=samples.gaps,
    )
    check_plausible(recording)
    return recording


def _parts(source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
    header = _header(source, path)
    seconds = header.samples / header.rate if header.rate > 0 else None
    return (Part("", seconds, header.patient or None),)


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

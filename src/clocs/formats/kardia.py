"""ATC files of AliveCor's KardiaMobile: blocks of samples, one per lead.

The layout is that of AliveCor's specification of the format, version 1.7. Numbers are
little-endian; a block has a name, a length, its bytes and the sum of all bytes before that sum.
"""

from __future__ import annotations

import struct
from datetime import datetime
from operator import methodcaller

import numpy as np

from clocs.errors import UnusableError
from clocs.formats import base
from clocs.formats.base import FileFormat, FileMetadata, ReadOptions, truncated, unreadable
from clocs.formats.source import Source, stem
from clocs.recording import STANDARD_LEADS, Recording, check_rate

_MAGIC = b"ALIVE\0\0\0"
_FIRST = 12  # byte of the first block, after the version
_MAX_BYTES = 64 << 20
_BLOCKS = ("ecg ", *(f"ecg{mark}" for mark in "23456789abc"))
_LEADS = dict(zip(_BLOCKS, STANDARD_LEADS, strict=True))
_FORMAT = struct.Struct("<BHHB")  # 1 for 16 bits, rate in Hz, nV per step, filters
_DATE, _RECORDER = slice(0, 32), slice(180, 212)  # of the block 'info'; the rest tells the phone


def read_atc(data: bytes, *, name: str, options: ReadOptions | None = None) -> Recording:
    """Decode one file; the id and the patient are `name`.

    Raises:
        UnusableError: truncated, unreadable or implausible.
    """
    options = options or ReadOptions()
    if not data.startswith(_MAGIC):
        raise unreadable(f"{name} is no ATC file")
    blocks = _blocks(data, name)
    found = [block for block in _BLOCKS if block in blocks]
    if not found or len(blocks.get("fmt ", b"")) < _FORMAT.size:
        raise truncated(f"{name} has no whole blocks 'fmt ' and 'ecg '")
    kind, rate, nanovolts, _ = _FORMAT.unpack_from(blocks["fmt "])
    check_rate(rate, name=name)
    if kind != 1 or not nanovolts:
        what = f"samples of kind {kind}" if kind != 1 else "a resolution of 0 nV"
        raise UnusableError("implausible", f"{name} has {what}")
    leads = [np.frombuffer(blocks[one][: len(blocks[one]) // 2 * 2], "<i2") for one in found]
    if len({len(one) for one in leads}) > 1:
        raise unreadable(f"{name} has leads of different lengths")
    info = blocks.get("info", b"")
    recorder = _text(info[_RECORDER])
    meta = FileMetadata(
        leads=base.standard_names([_LEADS[one] for one in found], options, name=name),
        rate=float(rate),
        recorded_at=_moment(_text(info[_DATE])),
        extra={"recorder": recorder} if recorder else {},
    )
    kept = base.stretch(options, rate=rate, samples=len(leads[0]), name=name)
    counts = np.stack([one[kept] for one in leads]).astype(np.int16)
    return base.make_recording(counts, meta, per_mv=1e6 / nanovolts, name=name)


def _blocks(data: bytes, name: str) -> dict[str, bytes]:
    """The bytes of each block by its name; the first of a name counts."""
    found: dict[str, bytes] = {}
    at = _FIRST
    while at < len(data):
        if at + 8 > len(data):
            raise truncated(f"{name} breaks off within the head of a block")
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        end = at + 8 + size
        block = data[at : at + 4].decode("latin-1")
        if end + 4 > len(data):
            raise truncated(f"{name} breaks off within its block {block!r}")
        if sum(data[at:end]) & 0xFFFFFFFF != int.from_bytes(data[end : end + 4], "little"):
            raise unreadable(f"{name} is damaged: the sum of its block {block!r} differs")
        found.setdefault(block, data[at + 8 : end])
        at = end + 4
    return found


def _text(field: bytes) -> str:
    return "".join(filter(str.isprintable, field.partition(b"\0")[0].decode("latin-1"))).strip()


def _moment(text: str) -> str | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None).isoformat()
    except ValueError:
        return None


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    return read_atc(source.read(path, _MAX_BYTES), name=stem(path), options=options)


ATC = FileFormat("Kardia ATC", ".atc", _read, recognize=methodcaller("startswith", _MAGIC))

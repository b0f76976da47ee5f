"""Files of electrocardiographs, Holter recorders and their archives.

SCP-ECG, HL7 aECG, GE MUSE XML, Philips Sierra XML, MFER and the JSON of AliveCor's Kardia service
are read through ecgdatakit, which is an extra: `formats`. ISHNE (Badilini, 1998) and the raw
samples of the Cardiology dataset are read here. Cardiology's (iRhythm's) are little-endian int16 at
200 Hz, one lead, without a header, and rhythm episodes as JSON. The gain is unpublished, so the
unit is 'adu' and never mV. Nothing in such a file tells that it is an ECG, so only the dataset
reads it: there is no `FileFormat` for it.
"""

from __future__ import annotations

import binascii
import json
import re
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import date, datetime, time
from functools import partial
from importlib import import_module
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError, needing
from clocs.files import check_size, writing
from clocs.formats import base
from clocs.formats.base import FileFormat, FileMetadata, Part, ReadOptions, truncated, unreadable
from clocs.formats.source import Source, stem
from clocs.recording import UNITS_PER_MV, UNNAMED_LEAD, Episode, Recording, check_rate

_MAX_BYTES = 512 << 20  # of a file: these formats are of seconds, and XML takes ten times itself
_MAGIC = b"ISHNE1.0"
_HEADER = 522  # bytes, then a variable block, then 16-bit samples
# Checksum, size of the variable block, patient, sex, birth, day, clock, number of leads, their
# codes and nV per count, recorder, rate.
_FIXED = struct.Struct("<8xHi94x20sh2x6h6x4h12h24x12h2x40sh")
_FAULT = -32768  # a sample of a lead that is off
_NAMES = ("X", "Y", "Z", "I", "II", "III", "aVR", "aVL", "aVF")
_LEADS = dict(enumerate((*_NAMES, "V1", "V2", "V3", "V4", "V5", "V6", "ES", "AS", "AI"), 2))
_MAX_VARIABLE = 64 << 20  # bytes of the variable block


class _Reader:
    """Reads files of one format; an object, since processes are sent what they read with.

    Args:
        parser: Of ecgdatakit, as module and class.
        what: The format, for messages.
        mend: From the bytes and name of a file, its bytes as ecgdatakit can read them, None where
            they are right, and a notice.
    """

    def __init__(
        self, parser: str, what: str, mend: Callable[[bytes, str], tuple[bytes | None, str]] | None
    ) -> None:
        self.parser, self.what, self.mend = parser, what, mend

    def __call__(self, source: Source, path: str, options: ReadOptions) -> Recording:
        module, _, kind = self.parser.partition(":")
        with needing(f"{self.what} files need ecgdatakit", "formats"):
            import ecgdatakit

            parser = getattr(import_module(f"{ecgdatakit.__name__}.parsing.parsers.{module}"), kind)
        name, size, disk = stem(path), source.size(path), source.on_disk(path)
        check_size(size, packed=size, name=name, most=_MAX_BYTES)
        data, notice = None, ""
        if self.mend is not None:
            with base.decoding(name, self.what):
                data, notice = self.mend(source.read(path, _MAX_BYTES), name)
        copied = disk is None or data is not None
        with tempfile.TemporaryDirectory() if copied else nullcontext("") as folder:
            file = Path(folder, "recording" if copied else str(disk))
            if copied:
                with writing(folder):
                    file.write_bytes(source.read(path) if data is None else data)
            with base.decoding(name, self.what):
                try:
                    record = parser().parse(file)
                except Exception as error:
                    raise ValueError(str(error).replace(str(file), name)) from None
                return _recording(record, name, options, notice)


def _recording(record: Any, name: str, options: ReadOptions, notice: str) -> Recording:
    notices = [notice] if notice else []
    leads = _together(record.leads, notices, name)
    exact = record.raw_metadata.get("rhythm_time", {}).get("sampling_rate_exact")
    rate = float(exact or leads[0].sampling_rate)
    rate = float(round(rate)) if abs(rate - round(rate)) < 1e-6 * rate else rate
    check_rate(rate, name=name)
    kept = base.stretch(options, rate=rate, samples=len(leads[0].samples), name=name)
    patient, session = record.patient, record.recording
    pairs = [" ".join(filter(None, map(str, pair))) for pair in record.interpretation.statements]
    device = " ".join(filter(None, (session.device.manufacturer, session.device.model)))
    extra = {"statements": "; ".join(filter(None, pairs))}
    extra["device"] = "".join(filter(str.isprintable, device))
    meta = FileMetadata(
        leads=base.standard_names([one.label for one in leads], options, name=name),
        rate=rate,
        patient=patient.patient_id.strip() or None,
        age=None if patient.age is None or not 0 <= patient.age <= 150 else float(patient.age),
        sex=base.SEXES.get(str(patient.sex).lower()),
        recorded_at=session.date.replace(tzinfo=None).isoformat() if session.date else None,
        extra={key: value for key, value in extra.items() if value},
        notices=notices,
    )
    mv_per_count, offset = _scale(leads, options, name)
    values = np.stack([np.asarray(one.samples, np.float64)[kept] for one in leads])
    whole = np.isfinite(values).all() and np.array_equal(values, np.rint(values))
    if whole and np.abs(values).max(initial=0) < 2**40:
        zero = base.near_whole(-offset / mv_per_count)
        counts = values.astype(np.int64)
        return base.make_recording(counts, meta, per_mv=1 / mv_per_count, zero=zero, name=name)
    mv = values * mv_per_count[:, None] + offset[:, None]
    return base.make_recording(mv, meta, per_mv=1.0, name=name)


def _together(leads: list[Any], notices: list[str], name: str) -> list[Any]:
    """Leads that are voltages of one rate and length, as most have it."""
    odd = [one.label for one in leads if (_unit(one) or "mV").lower() not in UNITS_PER_MV]
    if odd:
        notices.append(f"channels that are no voltage were left out: {', '.join(odd)}")
    leads = [one for one in leads if one.label not in odd]
    if not leads:
        raise unreadable(f"{name} holds no lead")
    ((common, _),) = Counter(map(_kind, leads)).most_common(1)
    kept = [one for one in leads if _kind(one) == common]
    others = [one.label for one in leads if _kind(one) != common]
    if others:
        notices.append(f"leads of another rate, length or start were left out: {', '.join(others)}")
    return kept


def _kind(lead: Any) -> tuple[Any, ...]:
    return lead.sampling_rate, len(lead.samples), lead.annotations.get("start_sample")


def _unit(lead: Any) -> str:
    return str(lead.resolution_unit or lead.units or "")


def _scale(
    leads: list[Any], options: ReadOptions, name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mV of one count of each lead, and those of count 0."""
    units = [_unit(one) or options.unit or "" for one in leads]
    if not all(units):
        lead = next(one.label for one, unit in zip(leads, units, strict=True) if not unit)
        raise unreadable(f"{name} does not say the unit of lead {lead}; give `unit` (mV or µV)")
    per_mv = np.array([base.units_per_mv(unit) for unit in units])
    step = np.array([float(one.resolution) for one in leads]) / per_mv
    offset = np.array([float(one.offset) for one in leads]) / per_mv
    if not (np.isfinite(step).all() and np.isfinite(offset).all() and step.all()):
        raise unreadable(f"{name} has a resolution that is no number above 0")
    return step, offset


def _with_held_samples(data: bytes, name: str) -> tuple[bytes | None, str]:
    """An SCP-ECG record whose section 3 states the samples that section 6 holds, and a notice.

    Without compression (section 2), the bytes of a lead tell how many samples it has. Some makers
    count from 0 in section 3, or state more than the 16 bits of a lead's length can hold. None
    where nothing is to be changed.

    Raises:
        UnusableError: unreadable, where the file has no table of sections.
    """
    if not _is_scp(data) and int.from_bytes(data[2:6], "little") > len(data):
        raise unreadable(
            f"{name} has no section 0, the table of sections with which an SCP-ECG record begins; "
            "handheld recorders (Healforce, PC-80B) write .scp files of another layout, which are "
            "not read"
        )
    length = int.from_bytes(data[10:14], "little")
    table = range(22, min(6 + length, len(data)) - 9, 10)
    entries = (struct.unpack_from("<HII", data, at) for at in table)
    starts = {number: start - 1 for number, size, start in entries if size}
    if 2 in starts or not {3, 6} <= starts.keys():
        return None, ""
    described, rhythm = starts[3] + 16, starts[6] + 16
    mended, stated, held = bytearray(data), 0, 0
    for lead in range(data[described]):
        at = described + 2 + 9 * lead
        first, last = struct.unpack_from("<II", data, at)
        (size,) = struct.unpack_from("<H", data, rhythm + 6 + 2 * lead)
        if first == 0 or last - first + 1 > size // 2:
            stated, held = last - first + (first > 0), size // 2
            struct.pack_into("<II", mended, at, max(first, 1), max(first, 1) + held - 1)
    if not held:
        return None, ""
    notice = (
        f"section 3 states {stated:,} samples of a lead; section 6 holds {held:,}, which are read"
    )
    return bytes(mended), notice if stated != held else ""


def _has_root(pattern: str, head: bytes) -> bool:
    """Whether XML begins with an element that the pattern describes."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = head.decode("utf-16", "ignore")
    else:
        text = head.decode("utf-8", "ignore")
        if text.lstrip("\ufeff \t\r\n")[:1] != "<":
            return False
    return re.search(pattern, text, re.IGNORECASE) is not None


def _is_scp(head: bytes) -> bool:
    """Whether it begins with the table of sections, which describes itself first."""
    size, length = int.from_bytes(head[2:6], "little"), int.from_bytes(head[10:14], "little")
    itself = head[8:10] == b"\0\0" and head[22:24] == b"\0\0"
    return itself and 26 <= length <= size - 6 and head[28:32] == b"\x07\0\0\0"


def _is_mfer(head: bytes) -> bool:
    return head[:1] == b"\x40" and head[2:6] == b"MFR "


def _is_kardia(head: bytes) -> bool:
    fields = (b'"recordedAt"', b'"algorithmDetermination"', b'"amplitudeResolution"', b'"leadI"')
    return head.lstrip()[:1] == b"{" and sum(one in head for one in fields) > 1


def _row(name: str, suffix: str, parser: str, is_one: Any, mend: Any = None) -> FileFormat:
    read = _Reader(parser, name, mend)
    recognize = partial(_has_root, is_one) if suffix == ".xml" else is_one
    generic = suffix in (".xml", ".json")
    return FileFormat(name, suffix, read, recognize=recognize, generic=generic)


SCP = _row("SCP-ECG", ".scp", "scp_ecg:SCPECGParser", _is_scp, _with_held_samples)
AECG = _row("HL7 aECG", ".xml", "hl7_aecg:HL7aECGParser", r"<(?:[a-z_][\w.-]*:)?AnnotatedECG\b")
MUSE = _row("GE MUSE", ".xml", "ge_muse_xml:GEMuseXMLParser", r"<RestingECG[\s>]")
SIERRA = _row("Philips Sierra", ".xml", "sierra_xml:SierraXMLParser", r"<(?:\w+:)?restingecgdata\b")
KARDIA = _row("Kardia JSON", ".json", "alivecor_kardia:AliveCorKardiaParser", _is_kardia)
MFER = replace(_row("MFER", ".mwf", "mfer:MFERParser", _is_mfer), other_suffixes=(".mfer",))


class _IshneFile(base.OpenFile):
    """An ISHNE file, of which the header was read."""

    names = ("",)

    def __init__(self, source: Source, path: str, options: ReadOptions) -> None:
        self._source, self._path, self._name = source, path, stem(path)
        head, size = source.head(path, _HEADER), source.size(path)
        if not head.startswith(_MAGIC):
            raise unreadable(
                f"{self._name} is no ISHNE file, the only kind of .ecg file that is recognized; "
                "convert files of other recorders (Contec …) to EDF, and read Cardiology's as the "
                "dataset cardiology"
            )
        if len(head) < _HEADER:
            raise truncated(f"{self._name} has no whole header of an ISHNE file")
        checksum, variable, patient, sex, *numbers, recorder, rate = _FIXED.unpack_from(head)
        born, day, (*clock, count) = _date(*numbers[:3]), _date(*numbers[3:6]), numbers[6:10]
        self._start = _HEADER + variable
        if not 1 <= count <= 12 or not 0 <= variable <= _MAX_VARIABLE or self._start > size:
            raise unreadable(f"{self._name} claims {count} leads behind {variable:,} bytes")
        codes, self._nanovolts = numbers[10 : 10 + count], numbers[22 : 22 + count]
        self._samples = (size - self._start) // (2 * count)
        try:
            moment = day and datetime.combine(day, time(*clock)).isoformat()
        except ValueError:
            moment = day and day.isoformat()
        block = head[10:] + (source.piece(path, _HEADER, variable) if variable else b"")
        crc = binascii.crc_hqx(block, 0xFFFF) if checksum else 0
        intact = checksum in (crc, crc >> 8 | (crc & 255) << 8)  # either order of bytes
        patient, recorder = (
            text.partition(b"\0")[0].decode("latin-1").strip() for text in (patient, recorder)
        )
        self._meta = FileMetadata(
            leads=[_LEADS.get(code, f"channel {i}") for i, code in enumerate(codes, 1)],
            rate=float(rate),
            patient=patient or None,
            sex={1: "male", 2: "female"}.get(sex),
            age=base.age_on(day, born),
            recorded_at=moment or None,
            extra={"recorder": recorder} if recorder else {},
            notices=[] if intact else ["the checksum of the header does not fit"],
        )

    def parts(self, options: ReadOptions) -> list[Part]:
        """The recording, with its duration."""
        rate = self._meta.rate or 0.0
        return [Part("", self._samples / rate if rate > 0 else None, self._meta.patient)]

    def read(self, options: ReadOptions) -> Recording:
        """The recording; `lead_names`, `start` and `stop` of the options count."""
        name, meta, rate = self._name, self._meta, self._meta.rate or 0.0
        check_rate(rate, name=name)
        kept = base.stretch(options, rate=rate, samples=self._samples, name=name)
        width, count = 2 * len(self._nanovolts), kept.stop - kept.start
        check_size(count * width, packed=count * width, name=name)
        if min(self._nanovolts) <= 0:
            least = min(self._nanovolts)
            raise UnusableError("implausible", f"{name} has a resolution of {least} nV")
        data = self._source.piece(self._path, self._start + kept.start * width, count * width)
        if len(data) < count * width:
            raise truncated(f"{name} ends before sample {kept.stop:,}")
        counts = np.frombuffer(data, "<i2").astype(np.int16, copy=False).reshape(count, -1).T
        meta.leads = base.standard_names(meta.leads or (), options, name=name)
        per_mv = 1e6 / np.array(self._nanovolts, np.float64)
        missing = counts == _FAULT
        return base.make_recording(counts, meta, per_mv=per_mv, missing=missing, name=name)


def _date(day: int, month: int, year: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


ISHNE = base.format_of_several(
    "ISHNE",
    (".ecg",),
    _IshneFile,
    recognize=methodcaller("startswith", _MAGIC),
    single=True,
    reads_stretches=True,
)


def read_ecg(data: bytes, *, name: str) -> Recording:
    """Decode one `.ecg` file; patient and id are `name`.

    Raises:
        UnusableError: truncated.
    """
    if not data or len(data) % 2:
        raise truncated(f"{name} has {len(data)} bytes, not a whole number of 16-bit samples")
    meta = FileMetadata(leads=(UNNAMED_LEAD,), rate=200.0, unit="adu")
    counts = np.frombuffer(data, "<i2").astype(np.int16).reshape(1, -1)
    return base.make_recording(counts, meta, per_mv=1.0, name=name)


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
        text = f"{name} is not a list of episodes with onset, offset and rhythm_name"
        raise unreadable(text) from None
    for episode in episodes:
        if not 0 <= episode.start < episode.stop:
            found = f"from sample {episode.start + 1} to {episode.stop}"
            raise unreadable(f"{name} has an episode {found}")
    return tuple(sorted(episodes, key=lambda episode: (episode.start, episode.stop)))

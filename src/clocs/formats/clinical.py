"""Files of electrocardiographs and their archives, read through ecgdatakit.

SCP-ECG, HL7 aECG, GE MUSE XML, Philips Sierra XML and MFER. The package is an extra:
`formats`.
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError, UnusableError, with_extra
from clocs.files import writing
from clocs.formats import base
from clocs.formats.base import FileFormat, FileMetadata, ReadOptions
from clocs.formats.source import Source, stem
from clocs.limits import check_size
from clocs.recording import UNITS_PER_MV, Recording, check_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_BYTES = 512 << 20  # of a file: these formats are of seconds, and XML takes ten times itself
_SEXES = {"M": "male", "F": "female"}


def _parsed(parser: str, source: Source, path: str, what: str, data: bytes | None) -> Any:
    """The file as ecgdatakit gives it, or this data in its place."""
    module, _, kind = parser.partition(":")
    try:
        import ecgdatakit

        found = getattr(import_module(f"{ecgdatakit.__name__}.parsing.parsers.{module}"), kind)
    except ImportError:
        raise SettingError(
            f"{what} files need ecgdatakit, which is not installed; {with_extra('formats')}"
        ) from None
    size = source.size(path)
    check_size(size, packed=size, name=stem(path), most=_MAX_BYTES)
    with _on_disk(source, path, data) as file, base.decoding(stem(path), what):
        try:
            return found().parse(file)
        except Exception as error:
            raise ValueError(str(error).replace(str(file), stem(path))) from None


@contextmanager
def _on_disk(source: Source, path: str, data: bytes | None) -> Iterator[Path]:
    """A path of the file: its own, or of a temporary copy or of this data in its place."""
    disk = source.on_disk(path)
    if disk is not None and data is None:
        yield Path(disk)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "recording")
        with writing(folder):
            copy.write_bytes(source.read(path) if data is None else data)
        yield copy


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
    said = FileMetadata(
        leads=base.standard_names([one.label for one in leads], options, name=name),
        rate=rate,
        patient=patient.patient_id.strip() or None,
        age=None if patient.age is None or not 0 <= patient.age <= 150 else float(patient.age),
        sex=_SEXES.get(patient.sex),
        recorded_at=session.date.replace(tzinfo=None).isoformat() if session.date else None,
        extra={key: value for key, value in extra.items() if value},
        notices=tuple(notices),
    )
    mv_per_count, offset = _scale(leads, options, name)
    values = np.stack([np.asarray(one.samples, np.float64)[kept] for one in leads])
    whole = np.isfinite(values).all() and np.array_equal(values, np.rint(values))
    if whole and np.abs(values).max(initial=0) < 2**40:
        zero = base.near_whole(-offset / mv_per_count)
        counts = values.astype(np.int64)
        return base.make_recording(counts, said, per_mv=1 / mv_per_count, zero=zero, name=name)
    mv = values * mv_per_count[:, None] + offset[:, None]
    return base.make_recording(mv, said, per_mv=1.0, name=name)


def _together(leads: list[Any], notices: list[str], name: str) -> list[Any]:
    """Leads that are voltages of one rate and length, as most have it."""
    odd = [one.label for one in leads if (_unit(one) or "mV").lower() not in UNITS_PER_MV]
    if odd:
        notices.append(f"channels that are no voltage were left out: {', '.join(odd)}")
    leads = [one for one in leads if one.label not in odd]
    kinds = Counter(map(_kind, leads))
    if not kinds:
        raise UnusableError("unreadable", f"{name} holds no lead")
    common = kinds.most_common(1)[0][0]
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
        detail = f"{name} does not say the unit of lead {lead}; give it as `unit` (mV or µV)"
        raise UnusableError("unreadable", detail)
    per_mv = np.array([base.units_per_mv(unit) for unit in units])
    step = np.array([float(one.resolution) for one in leads]) / per_mv
    offset = np.array([float(one.offset) for one in leads]) / per_mv
    if not (np.isfinite(step).all() and np.isfinite(offset).all() and step.all()):
        raise UnusableError("unreadable", f"{name} has a resolution that is no number above 0")
    return step, offset


class _Reader:
    """Reads files of one format; an object, since processes are sent what they read with."""

    def __init__(
        self, parser: str, what: str, mend: Callable[[bytes, str], tuple[bytes | None, str]] | None
    ) -> None:
        self.parser, self.what, self.mend = parser, what, mend

    def __call__(self, source: Source, path: str, options: ReadOptions) -> Recording:
        data, notice = None, ""
        if self.mend is not None:
            with base.decoding(stem(path), self.what):
                data, notice = self.mend(source.read(path, _MAX_BYTES), stem(path))
        record = _parsed(self.parser, source, path, self.what, data)
        with base.decoding(stem(path), self.what):
            return _recording(record, stem(path), options, notice)


def _with_held_samples(data: bytes, name: str) -> tuple[bytes | None, str]:
    """An SCP-ECG record whose section 3 states the samples that section 6 holds, and a notice.

    Without compression (section 2), the bytes of a lead tell how many samples it has. Some makers
    count from 0 in section 3, or state more than the 16 bits of a lead's length can hold. None
    where nothing is to be changed.

    Raises:
        UnusableError: unreadable, where the file has no table of sections.
    """
    if not _is_scp(data) and int.from_bytes(data[2:6], "little") > len(data):
        raise UnusableError(
            "unreadable",
            f"{name} has no section 0, the table of sections with which an SCP-ECG record begins; "
            "handheld recorders (Healforce, PC-80B) write .scp files of another layout, which are "
            "not read",
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


def _text(head: bytes) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return head.decode("utf-16", "ignore")
    return head.decode("utf-8", "ignore") if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<" else ""


def _is_aecg(head: bytes) -> bool:
    return re.search(r"<(?:[A-Za-z_][\w.-]*:)?AnnotatedECG\b", _text(head)) is not None


def _is_muse(head: bytes) -> bool:
    return re.search(r"<RestingECG[\s>]", _text(head), re.IGNORECASE) is not None


def _is_sierra(head: bytes) -> bool:
    return re.search(r"<(?:\w+:)?restingecgdata\b", _text(head), re.IGNORECASE) is not None


def _is_scp(head: bytes) -> bool:
    """Whether it begins with the table of sections, which describes itself first."""
    size, length = int.from_bytes(head[2:6], "little"), int.from_bytes(head[10:14], "little")
    itself = head[8:10] == b"\0\0" and head[22:24] == b"\0\0"
    return itself and 26 <= length <= size - 6 and head[28:32] == b"\x07\0\0\0"


def _is_mfer(head: bytes) -> bool:
    return head[:1] == b"\x40" and head[2:6] == b"MFR "


def _row(name: str, suffix: str, parser: str, is_one: Any, mend: Any = None) -> FileFormat:
    read = _Reader(parser, name, mend)
    return FileFormat(name, suffix, read, recognize=is_one, generic=suffix == ".xml")


SCP = _row("SCP-ECG", ".scp", "scp_ecg:SCPECGParser", _is_scp, _with_held_samples)
AECG = _row("HL7 aECG", ".xml", "hl7_aecg:HL7aECGParser", _is_aecg)
MUSE = _row("GE MUSE", ".xml", "ge_muse_xml:GEMuseXMLParser", _is_muse)
SIERRA = _row("Philips Sierra", ".xml", "sierra_xml:SierraXMLParser", _is_sierra)
MFER = replace(_row("MFER", ".mwf", "mfer:MFERParser", _is_mfer), other_suffixes=(".mfer",))

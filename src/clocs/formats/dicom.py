"""ECG waveforms in DICOM files.

A value is its sample times sensitivity times correction factor, plus the channel's baseline, which
is in the unit of the sensitivity (PS3.3, C.10.9). Of several multiplex groups the rhythm is the
recording; the others, such as median beats, are further parts, named by their labels.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.formats import base
from clocs.formats.base import FileFormat, FileMetadata, Part, ReadOptions
from clocs.formats.source import Source, stem
from clocs.limits import MAX_BYTES, MAX_TIMES_SMALLER, UNPACKED_FREELY, check_size
from clocs.recording import UNITS_PER_MV, Recording, check_rate

# Leads by their numbers in SCP-ECG ('5.6.3-9-61') and ISO/IEEE 11073 ('2:61'), which are the same.
_CHEST = ("V1", "V2", "V3", "V4", "V5", "V6", "V7", "V2R", "V3R", "V4R", "V5R", "V6R", "V7R")
_LEADS = dict(enumerate(("I", "II", *_CHEST, "X", "Y", "Z"), 1))
_LEADS |= {19: "CC5", 20: "CM5", 61: "III", 62: "aVR", 63: "aVL", 64: "aVF", 65: "-aVR"}
_LEADS |= {66: "V8", 67: "V9", 68: "V8R", 69: "V9R", 70: "D", 71: "A", 72: "J"}
_SEEN: dict[tuple[Any, ...], tuple[_Channel, ...]] = {}
_MAX_SEEN = 64
_SEXES = {"M": "male", "F": "female"}
_YEARS = {"Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}
_FIELDS = {
    "manufacturer": "Manufacturer",
    "model": "ManufacturerModelName",
    "institution": "InstitutionName",
    "description": "StudyDescription",
    "study": "StudyInstanceUID",
    "series": "SeriesInstanceUID",
}
_KINDS = {"SB": "i1", "UB": "u1", "SS": "i2", "US": "u2", "SL": "i4", "UL": "u4"}
_DEFLATED, _PLAIN = b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.1\0\0\0"


class _Group(NamedTuple):
    """Multiplex groups that are one recording; nearly always a single one."""

    name: str
    items: tuple[Any, ...]
    samples: int
    rate: float


def read_dicom(data: bytes, *, name: str, options: ReadOptions | None = None) -> Recording:
    """Decode one file.

    Args:
        data: The file's bytes.
        name: The recording's id; its patient too, where the file has no PatientID.
        options: `part`, `start`, `stop` and `lead_names` count.

    Raises:
        UnusableError: truncated, unreadable, nan, implausible or beyond the limits.
    """
    options = options or ReadOptions()
    with base.decoding(name, "DICOM"):
        dataset = _dataset(data, name)
        groups = _groups(dataset, name)
        group = next((one for one in groups if one.name == options.part), None)
        if group is None:
            named = ", ".join(repr(one.name) for one in groups)
            detail = f"{name} has no part {options.part!r}; its parts are {named}"
            raise UnusableError("unreadable", detail)
        return _recording(dataset, group, name, options)


def _recording(dataset: Any, group: _Group, name: str, options: ReadOptions) -> Recording:
    check_rate(group.rate, name=name)
    kept = base.stretch(options, rate=group.rate, samples=group.samples, name=name)
    rows: list[NDArray[np.integer]] = []
    absent: list[NDArray[np.bool_]] = []
    names: list[str] = []
    scales: list[tuple[float, float]] = []
    notices: list[str] = []
    for item in group.items:
        counts = _counts(item, dataset, name)
        padding = _padding(item, counts.dtype)
        for number, channel in enumerate(_channels(item, _encoding(dataset))):
            lead, scale = channel.lead, channel.scale
            if scale is None:
                notices.append(f"channel {lead} is no voltage and was left out")
                continue
            shift = channel.shift(group.rate)
            if abs(shift) >= group.samples:
                raise UnusableError("unreadable", f"{name} shifts {lead} by {shift:,} samples")
            row, missing = _shifted(counts[:, number], padding, shift)
            rows.append(row[kept])
            absent.append(missing[kept])
            names.append(lead)
            scales.append(scale)
    if not rows:
        raise UnusableError("no known lead", f"{name} has no channel that is a voltage")
    mv_per_count, offset = np.array(scales).T
    recorded_at = _recorded_at(dataset)
    extra = {key: str(value) for key, tag in _FIELDS.items() if (value := dataset.get(tag))}
    if statements := _statements(dataset):
        extra["statements"] = statements
    said = FileMetadata(
        leads=base.leads_of(names, options.lead_names, name=name),
        rate=group.rate,
        patient=_patient(dataset),
        age=_age(dataset, recorded_at),
        sex=_SEXES.get(str(dataset.get("PatientSex") or "").upper()),
        recorded_at=recorded_at,
        extra=extra,
        notices=tuple(notices),
    )
    return base.make_recording(
        np.stack(rows),
        said,
        per_mv=1 / mv_per_count,
        zero=base.near_whole(-offset / mv_per_count),
        missing=np.stack(absent),
        name=name,
    )


class _Channel(NamedTuple):
    """One channel of a multiplex group.

    Attributes:
        lead: Its name.
        scale: The mV of one count and those of count 0; None where it is no voltage.
        late_samples: By how many samples it starts late; None where only the time is given.
        late_seconds: By how many seconds.
    """

    lead: str
    scale: tuple[float, float] | None
    late_samples: float | None
    late_seconds: float

    def shift(self, rate: float) -> int:
        """By how many samples it starts late; fractions, from one converter in turn, are 0."""
        late = self.late_seconds * rate if self.late_samples is None else self.late_samples
        return int(late + 0.5) if late >= 0 else -int(0.5 - late)


def _channels(item: Any, encoding: tuple[Any, ...]) -> tuple[_Channel, ...]:
    """The channels of a multiplex group; those of most files of a device are the same bytes.

    Args:
        item: The group.
        encoding: Of the dataset, with its character set.
    """
    raw = item.get_item("ChannelDefinitionSequence")
    held = getattr(raw, "value", None)
    key = (held, *encoding) if isinstance(held, bytes) else None
    if key is not None and key in _SEEN:
        return _SEEN[key]
    found = []
    for number, channel in enumerate(item.ChannelDefinitionSequence):
        samples = channel.get("ChannelSampleSkew")
        found.append(
            _Channel(
                _lead(channel, number),
                _scale(channel),
                None if samples in (None, "") else float(samples),
                float(channel.get("ChannelTimeSkew") or 0),
            )
        )
    if key is not None:
        if len(_SEEN) >= _MAX_SEEN:
            _SEEN.clear()
        _SEEN[key] = tuple(found)
    return tuple(found)


def _lead(channel: Any, number: int) -> str:
    """By its code, else its meaning or the channel's label."""
    source: Any = next(iter(channel.get("ChannelSourceSequence") or ()), {})
    code = str(source.get("CodeValue") or "")
    scheme = str(source.get("CodingSchemeDesignator") or "").upper()
    mark = {"SCPECG": "5.6.3-9-", "MDC": "2:"}.get(scheme)
    digits = code[len(mark) :] if mark and code.startswith(mark) else ""
    if digits.isdecimal() and int(digits) in _LEADS:
        return _LEADS[int(digits)]
    meaning = str(source.get("CodeMeaning") or "").replace("MDC_ECG_LEAD_", "")
    meaning = meaning.partition("(")[0].partition(",")[0].strip()
    return meaning or str(channel.get("ChannelLabel") or "").strip() or f"channel {number + 1}"


def _scale(channel: Any) -> tuple[float, float] | None:
    """The mV of one count and those of count 0; None where the channel is no voltage."""
    unit: Any = next(iter(channel.get("ChannelSensitivityUnitsSequence") or ()), {})
    per_mv = UNITS_PER_MV.get(str(unit.get("CodeValue") or "").lower())
    if per_mv is None or channel.get("ChannelSensitivity") in (None, ""):
        return None
    factor = channel.get("ChannelSensitivityCorrectionFactor")
    factor = 1.0 if factor in (None, "") else float(factor)
    step = float(channel.ChannelSensitivity) * factor / per_mv
    if not (np.isfinite(step) and step):
        raise ValueError(f"a channel's sensitivity is {step:g}")
    return step, float(channel.get("ChannelBaseline") or 0) / per_mv


def _patient(dataset: Any) -> str | None:
    return str(dataset.get("PatientID") or "").strip() or None


def _recorded_at(dataset: Any) -> str | None:
    days = ("AcquisitionDate", "ContentDate", "StudyDate")
    texts = [str(dataset.get("AcquisitionDateTime") or "")]
    for day in days:
        time = str(dataset.get(day.replace("Date", "Time")) or "")
        texts.append(str(dataset.get(day) or "") + time)
    for text in texts:
        digits = text.partition(".")[0].partition("+")[0].partition("-")[0].strip()
        for form, length in (("%Y%m%d%H%M%S", 14), ("%Y%m%d%H%M", 12), ("%Y%m%d", 8)):
            try:
                moment = datetime.strptime(digits[:length], form)
            except ValueError:
                continue
            return moment.isoformat() if length > 8 else moment.date().isoformat()
    return None


def _age(dataset: Any, recorded_at: str | None) -> float | None:
    text = str(dataset.get("PatientAge") or "").strip()
    if text[:-1].isdecimal() and text[-1] in _YEARS:
        return int(text[:-1]) * _YEARS[text[-1]]
    try:
        born = datetime.strptime(str(dataset.get("PatientBirthDate") or ""), "%Y%m%d")
        days = (datetime.fromisoformat(recorded_at or "") - born).days
    except ValueError:
        return None
    return float(int(days / 365.25)) if days >= 0 else None


def _statements(dataset: Any) -> str:
    notes = dataset.get("WaveformAnnotationSequence") or ()
    return "; ".join(
        text for note in notes if (text := str(note.get("UnformattedTextValue") or ""))
    )


def _dataset(data: bytes, name: str) -> Any:
    import pydicom

    return pydicom.dcmread(io.BytesIO(_inflated(data, name)), force=True)


def _inflated(data: bytes, name: str) -> bytes:
    """The file without deflation, which pydicom would undo whatever the size of the result."""
    meta = 132 if data[128:132] == b"DICM" else 0
    if data[meta : meta + 8] != b"\x02\0\0\0UL\x04\0":  # the length of what names the encoding
        if _DEFLATED in data and data[meta : meta + 2] == b"\x02\0":
            raise UnusableError("unreadable", f"{name} is deflated and does not say from where on")
        return data
    start = meta + 12 + int.from_bytes(data[meta + 8 : meta + 12], "little")
    if data[start : start + 2] == b"\x02\0":
        raise UnusableError("unreadable", f"{name} has a wrong length of its file meta information")
    if _DEFLATED not in data[:start]:
        return data
    packed = len(data) - start
    most = min(max(UNPACKED_FREELY, MAX_TIMES_SMALLER * packed), MAX_BYTES)
    body = zlib.decompressobj(-15).decompress(data[start:], most + 1)
    check_size(len(body), packed=packed, name=name)
    return data[:start].replace(_DEFLATED, _PLAIN) + body


def _groups(dataset: Any, name: str) -> list[_Group]:
    """The recordings of a file, the rhythm first and without a name."""
    items = list(dataset.get("WaveformSequence") or ())
    if not items:
        kind = getattr(dataset.get("SOPClassUID"), "name", None) or "no DICOM file"
        raise UnusableError("unreadable", f"{name} holds no waveform ({kind})")
    used: list[tuple[Any, ...]] = []
    for item in items:  # put together only what the file says was recorded at one time
        same = next((u for u in used if _are_one(u, item, _encoding(dataset))), None)
        if same is None:
            used.append((item,))
        else:
            used[used.index(same)] = (*same, item)
    used.sort(key=_rank)  # stable
    names: list[str] = []
    for number, (item, *_) in enumerate(used, 1):
        label = str(item.get("MultiplexGroupLabel") or f"group {number}")
        names.append("" if number == 1 else f"{label} {number}" if label in names else label)
    return [
        _Group(label, group, int(group[0].NumberOfWaveformSamples), _rate(group[0]))
        for label, group in zip(names, used, strict=True)
    ]


def _rate(item: Any) -> float:
    return float(item.SamplingFrequency)


def _rank(group: tuple[Any, ...]) -> tuple[bool, bool, float]:
    """What comes first is the recording."""
    labels = str(group[0].get("MultiplexGroupLabel") or "").upper()
    seconds = int(group[0].NumberOfWaveformSamples) / max(_rate(group[0]), 1e-9)
    return group[0].get("WaveformOriginality") == "DERIVED", "RHYTHM" not in labels, -seconds


def _are_one(group: tuple[Any, ...], item: Any, encoding: tuple[Any, ...]) -> bool:
    """Whether a group holds further leads of the same moments."""
    first, at = group[0], item.get("MultiplexGroupTimeOffset")
    fields = ("SamplingFrequency", "NumberOfWaveformSamples", "WaveformOriginality")
    if at is None or first.get("MultiplexGroupTimeOffset") != at:
        return False
    if any(first.get(field) != item.get(field) for field in fields):
        return False
    held = {channel.lead for one in group for channel in _channels(one, encoding)}
    return held.isdisjoint(channel.lead for channel in _channels(item, encoding))


def _encoding(dataset: Any) -> tuple[Any, ...]:
    return (*dataset.original_encoding, str(dataset.get("SpecificCharacterSet") or ""))


def _counts(item: Any, dataset: Any, name: str) -> NDArray[np.integer]:
    """(samples, channels), as the file has them."""
    bits, kind = int(item.WaveformBitsAllocated), str(item.WaveformSampleInterpretation)
    code = _KINDS.get(kind)
    if code is None or 8 * int(code[1]) != bits:
        detail = f"{name} has samples of {bits} bits and kind {kind}, which are not read"
        raise UnusableError("unreadable", detail)
    order = "<" if dataset.original_encoding[1] else ">"
    channels, samples = int(item.NumberOfWaveformChannels), int(item.NumberOfWaveformSamples)
    if channels != len(_channels(item, _encoding(dataset))) or channels < 1:
        detail = f"{name} has {channels} channels and describes another number"
        raise UnusableError("unreadable", detail)
    data = item.WaveformData
    held = len(data) // (channels * bits // 8)
    if held < samples or samples < 1:
        raise UnusableError("truncated", f"{name} has {held:,} of {samples:,} samples")
    flat: NDArray[np.integer] = np.frombuffer(data, order + code, count=samples * channels)
    return flat.reshape(samples, channels).astype(code)


def _padding(item: Any, kind: np.dtype[Any]) -> int | None:
    """The sample that stands for none."""
    value = item.get("WaveformPaddingValue")
    if value is None:
        return None
    if isinstance(value, bytes):
        return int(np.frombuffer(value[: kind.itemsize].ljust(kind.itemsize, b"\0"), kind)[0])
    return int(np.array(int(value)).astype(kind))  # 65436 and -100 are the same 16 bits


def _shifted(
    row: NDArray[np.integer], padding: int | None, shift: int
) -> tuple[NDArray[np.integer], NDArray[np.bool_]]:
    """A channel on the group's clock, and where it has no value."""
    missing = np.zeros(len(row), bool) if padding is None else row == padding
    if shift:
        row, missing = np.roll(row, shift), np.roll(missing, shift)
        missing[:shift] = shift > 0 or missing[:shift]
        if shift < 0:
            missing[shift:] = True
    return row, missing


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    return read_dicom(source.read(path), name=stem(path), options=options)


def _parts(source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
    name = stem(path)
    with base.decoding(name, "DICOM"):
        dataset = _dataset(source.read(path), name)
        patient = _patient(dataset)
        return [
            Part(one.name, one.samples / one.rate if one.rate > 0 else None, patient)
            for one in _groups(dataset, name)
        ]


def _recognize(head: bytes) -> bool:
    return head[128:132] == b"DICM"


DICOM = FileFormat(
    "DICOM",
    ".dcm",
    _read,
    other_suffixes=(".dicom",),
    recognize=_recognize,
    parts=_parts,
    reads_stretches=True,
)

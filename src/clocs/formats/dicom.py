"""ECG waveforms in DICOM files.

A value is its sample times sensitivity times correction factor, plus the channel's baseline, which
is in the unit of the sensitivity (PS3.3, C.10.9). Of several multiplex groups the rhythm is the
recording; the others, such as median beats, are further parts, named by their labels.
"""

from __future__ import annotations

import io
import re
import zlib
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.files import MAX_BYTES, MAX_TIMES_SMALLER, UNPACKED_FREELY, check_size
from clocs.formats import base
from clocs.formats.base import FileMetadata, Part, ReadOptions, format_of_several, unreadable
from clocs.formats.source import Source, stem
from clocs.recording import UNITS_PER_MV, Recording, check_rate

# Leads by their numbers in SCP-ECG ('5.6.3-9-61') and ISO/IEEE 11073 ('2:61'), which are the same.
_CHEST = ("V1", "V2", "V3", "V4", "V5", "V6", "V7", "V2R", "V3R", "V4R", "V5R", "V6R", "V7R")
_LEADS = dict(enumerate(("I", "II", *_CHEST, "X", "Y", "Z"), 1))
_LEADS |= {19: "CC5", 20: "CM5", 61: "III", 62: "aVR", 63: "aVL", 64: "aVF", 65: "-aVR"}
_LEADS |= {66: "V8", 67: "V9", 68: "V8R", 69: "V9R", 70: "D", 71: "A", 72: "J"}
_SEEN: dict[tuple[Any, ...], tuple[_Channel, ...]] = {}
_MAX_SEEN = 64
_MARKS = {"SCPECG": "5.6.3-9-", "MDC": "2:"}  # by scheme: what precedes those numbers
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


class _DicomFile(base.OpenFile):
    """A file; multiplex groups of the same moments are one recording."""

    def __init__(self, source: Source, path: str, options: ReadOptions) -> None:
        import pydicom

        self._name = stem(path)
        data = _inflated(source.read(path), self._name)
        self._dataset: Any = pydicom.dcmread(io.BytesIO(data), force=True)
        charset = str(self._dataset.get("SpecificCharacterSet") or "")
        self._encoding = (*self._dataset.original_encoding, charset)

    @cached_property
    def names(self) -> dict[str, list[Any]]:
        """The groups of each recording of the file, the rhythm first and without a name."""
        items = list(self._dataset.get("WaveformSequence") or ())
        if not items:
            kind = getattr(self._dataset.get("SOPClassUID"), "name", None) or "no DICOM file"
            raise unreadable(f"{self._name} holds no waveform ({kind})")
        used: list[list[Any]] = []
        for item in items:  # put together only what the file says was recorded at one time
            same = next((group for group in used if self._are_one(group, item)), None)
            if same is None:
                used.append([item])
            else:
                same.append(item)
        used.sort(key=_rank)  # stable
        found: dict[str, list[Any]] = {}
        for number, group in enumerate(used, 1):
            label = _text(group[0], "MultiplexGroupLabel") or f"group {number}"
            label = f"{label} {number}" if label in found else label
            found["" if number == 1 else label] = group
        return found

    def parts(self, options: ReadOptions) -> list[Part]:
        """One per recording."""
        patient, parts = _text(self._dataset, "PatientID") or None, []
        for name, (item, *_) in self.names.items():
            samples, rate = int(item.NumberOfWaveformSamples), float(item.SamplingFrequency)
            parts.append(Part(name, samples / rate if rate > 0 else None, patient))
        return parts

    def read(self, options: ReadOptions) -> Recording:
        """The recording of `part` in the options."""
        items, name = self.names[options.part], self._name
        samples, rate = int(items[0].NumberOfWaveformSamples), float(items[0].SamplingFrequency)
        check_rate(rate, name=name)
        kept = base.stretch(options, rate=rate, samples=samples, name=name)
        rows: list[tuple[str, tuple[float, float], NDArray[Any], NDArray[np.bool_]]] = []
        notices: list[str] = []
        for item in items:
            counts = self._counts(item)
            padding = _padding(item, counts.dtype)
            for number, channel in enumerate(self._channels(item)):
                if channel.scale is None:
                    notices.append(f"channel {channel.lead} is no voltage and was left out")
                    continue
                shift = channel.shift(rate)
                if abs(shift) >= samples:
                    raise unreadable(f"{name} shifts {channel.lead} by {shift:,} samples")
                row, missing = _shifted(counts[:, number], padding, shift)
                rows.append((channel.lead, channel.scale, row[kept], missing[kept]))
        if not rows:
            raise UnusableError("no known lead", f"{name} has no channel that is a voltage")
        leads, scales, values, absent = zip(*rows, strict=True)
        mv_per_count, offset = np.array(scales).T
        dataset, recorded_at = self._dataset, _recorded_at(self._dataset)
        extra = {key: str(value) for key, tag in _FIELDS.items() if (value := dataset.get(tag))}
        notes = dataset.get("WaveformAnnotationSequence") or ()
        texts = [text for note in notes if (text := _text(note, "UnformattedTextValue"))]
        meta = FileMetadata(
            leads=base.standard_names(leads, options, name=name),
            rate=rate,
            patient=_text(dataset, "PatientID") or None,
            age=_age(dataset, recorded_at),
            sex=base.SEXES.get(_text(dataset, "PatientSex").lower()),
            recorded_at=recorded_at,
            extra=extra | ({"statements": "; ".join(texts)} if texts else {}),
            notices=notices,
        )
        return base.make_recording(
            np.stack(values),
            meta,
            per_mv=1 / mv_per_count,
            zero=base.near_whole(-offset / mv_per_count),
            missing=np.stack(absent),
            name=name,
        )

    def _are_one(self, group: list[Any], item: Any) -> bool:
        """Whether an item holds further leads of the same moments as a group."""
        fields = ("SamplingFrequency", "NumberOfWaveformSamples", "WaveformOriginality")
        if item.get("MultiplexGroupTimeOffset") is None or any(
            group[0].get(field) != item.get(field)
            for field in ("MultiplexGroupTimeOffset", *fields)
        ):
            return False
        leads = {channel.lead for one in group for channel in self._channels(one)}
        return leads.isdisjoint(channel.lead for channel in self._channels(item))

    def _channels(self, item: Any) -> tuple[_Channel, ...]:
        """The channels of a multiplex group; those of most files of a device are the same bytes."""
        held = getattr(item.get_item("ChannelDefinitionSequence"), "value", None)
        key = (held, *self._encoding)
        if isinstance(held, bytes) and key in _SEEN:
            return _SEEN[key]
        channels = enumerate(item.ChannelDefinitionSequence, 1)
        found = tuple(_channel(one, number) for number, one in channels)
        if isinstance(held, bytes):
            if len(_SEEN) >= _MAX_SEEN:
                _SEEN.clear()
            _SEEN[key] = found
        return found

    def _counts(self, item: Any) -> NDArray[np.integer]:
        """(samples, channels), as the file has them."""
        bits, kind = int(item.WaveformBitsAllocated), str(item.WaveformSampleInterpretation)
        code = _KINDS.get(kind, "i0")
        if 8 * int(code[1]) != bits or not bits:
            found = f"samples of {bits} bits and kind {kind}"
            raise unreadable(f"{self._name} has {found}, which are not read")
        channels, samples = int(item.NumberOfWaveformChannels), int(item.NumberOfWaveformSamples)
        if channels != len(self._channels(item)) or channels < 1:
            raise unreadable(f"{self._name} has {channels} channels and describes another number")
        data = item.WaveformData
        held = len(data) // (channels * bits // 8)
        if held < samples or samples < 1:
            raise base.truncated(f"{self._name} has {held:,} of {samples:,} samples")
        order = "<" if self._encoding[1] else ">"
        flat: NDArray[np.integer] = np.frombuffer(data, order + code, count=samples * channels)
        return flat.reshape(samples, channels).astype(code)


def _text(item: Any, tag: str) -> str:
    return str(item.get(tag) or "").strip()


def _channel(channel: Any, number: int) -> _Channel:
    """Its lead is named by its code, else its meaning or the channel's label."""
    source: Any = next(iter(channel.get("ChannelSourceSequence") or ()), {})
    mark = _MARKS.get(_text(source, "CodingSchemeDesignator").upper(), "\n")
    code = _text(source, "CodeValue")
    meaning = _text(source, "CodeMeaning").replace("MDC_ECG_LEAD_", "")
    named = re.split(r"[(,]", meaning)[0].strip() or _text(channel, "ChannelLabel")
    digits = code.removeprefix(mark)
    if digits != code and digits.isdecimal():
        named = _LEADS.get(int(digits), named)
    samples = channel.get("ChannelSampleSkew")
    return _Channel(
        named or f"channel {number}",
        _scale(channel),
        None if samples in (None, "") else float(samples),
        float(channel.get("ChannelTimeSkew") or 0),
    )


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


def _recorded_at(dataset: Any) -> str | None:
    texts = [_text(dataset, "AcquisitionDateTime")]
    for kind in ("Acquisition", "Content", "Study"):
        texts.append(_text(dataset, f"{kind}Date") + _text(dataset, f"{kind}Time"))
    for text in texts:
        digits = re.split(r"[.+-]", text)[0].strip()
        for form, length in (("%Y%m%d%H%M%S", 14), ("%Y%m%d%H%M", 12), ("%Y%m%d", 8)):
            try:
                moment = datetime.strptime(digits[:length], form)
            except ValueError:
                continue
            return moment.isoformat() if length > 8 else moment.date().isoformat()
    return None


def _age(dataset: Any, recorded_at: str | None) -> float | None:
    text = _text(dataset, "PatientAge")
    if text[:-1].isdecimal() and text[-1] in _YEARS:
        return int(text[:-1]) * _YEARS[text[-1]]
    try:
        born = datetime.strptime(_text(dataset, "PatientBirthDate"), "%Y%m%d")
        return base.age_on(datetime.fromisoformat(recorded_at or ""), born)
    except ValueError:
        return None


def _inflated(data: bytes, name: str) -> bytes:
    """The file without deflation, which pydicom would undo whatever the size of the result."""
    meta = 132 if data[128:132] == b"DICM" else 0
    if data[meta : meta + 8] != b"\x02\0\0\0UL\x04\0":  # the length of what names the encoding
        if _DEFLATED in data and data[meta : meta + 2] == b"\x02\0":
            raise unreadable(f"{name} is deflated and does not say from where on")
        return data
    start = meta + 12 + int.from_bytes(data[meta + 8 : meta + 12], "little")
    if data[start : start + 2] == b"\x02\0":
        raise unreadable(f"{name} has a wrong length of its file meta information")
    if _DEFLATED not in data[:start]:
        return data
    packed = len(data) - start
    most = min(max(UNPACKED_FREELY, MAX_TIMES_SMALLER * packed), MAX_BYTES)
    body = zlib.decompressobj(-15).decompress(data[start:], most + 1)
    check_size(len(body), packed=packed, name=name)
    return data[:start].replace(_DEFLATED, _PLAIN) + body


def _rank(group: list[Any]) -> tuple[bool, bool, float]:
    """What comes first is the recording."""
    item = group[0]
    seconds = int(item.NumberOfWaveformSamples) / max(float(item.SamplingFrequency), 1e-9)
    rhythm = "RHYTHM" in _text(item, "MultiplexGroupLabel").upper()
    return item.get("WaveformOriginality") == "DERIVED", not rhythm, -seconds


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
        missing[slice(shift) if shift > 0 else slice(shift, None)] = True
    return row, missing


def _recognize(head: bytes) -> bool:
    return head[128:132] == b"DICM"


DICOM = format_of_several(
    "DICOM", (".dcm", ".dicom"), _DicomFile, recognize=_recognize, reads_stretches=True
)

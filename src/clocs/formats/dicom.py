"""ECG waveforms in DICOM files.

A value is its sample times sensitivity times correction factor, plus the channel's baseline, which
is in the unit of the sensitivity (PS3.3, C.10.9). Of several multiplex groups the rhythm is the
recording; the others, such as median beats, are further parts, named by their labels.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.dicom_fields import (
    FIELDS,
    SEXES,
    age_of,
    channels_of,
    patient_of,
    statements_of,
    taken_of,
)
from clocs.formats.samples import decoding, from_integers, leads_of, stretch
from clocs.formats.source import Source, stem
from clocs.limits import MAX_BYTES, MAX_TIMES_SMALLER, UNPACKED_FREELY, check_size
from clocs.recording import Recording, check_plausible, check_rate

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
    with decoding(name, "DICOM"):
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
    kept = stretch(options, rate=group.rate, samples=group.samples, name=name)
    rows: list[NDArray[np.integer]] = []
    absent: list[NDArray[np.bool_]] = []
    names: list[str] = []
    scales: list[tuple[float, float]] = []
    notices: list[str] = []
    for item in group.items:
        steps = _steps(item, dataset, name)
        padding = _padding(item, steps.dtype)
        for number, channel in enumerate(channels_of(item, _encoding(dataset))):
            lead, scale = channel.lead, channel.scale
            if scale is None:
                notices.append(f"channel {lead} is no voltage and was left out")
                continue
            shift = channel.shift(group.rate)
            if abs(shift) >= group.samples:
                raise UnusableError("unreadable", f"{name} shifts {lead} by {shift:,} samples")
            row, missing = _shifted(steps[:, number], padding, shift)
            rows.append(row[kept])
            absent.append(missing[kept])
            names.append(lead)
            scales.append(scale)
    if not rows:
        raise UnusableError("no known lead", f"{name} has no channel that is a voltage")
    mv_per_step, offset = np.array(scales).T
    samples = from_integers(
        np.stack(rows),
        leads_of(names, options.lead_names, name=name),
        gain=1 / mv_per_step,
        zero=_whole(-offset / mv_per_step),
        missing=np.stack(absent),
        name=name,
    )
    taken = taken_of(dataset)
    extra = {key: str(value) for key, tag in FIELDS.items() if (value := dataset.get(tag))}
    if statements := statements_of(dataset):
        extra["statements"] = statements
    if notices:
        extra["notice"] = "; ".join(notices)
    recording = Recording(
        id=name,
        patient=patient_of(dataset) or name,
        leads=samples.leads,
        rate=group.rate,
        digital=samples.digital,
        gain=samples.gain,
        baseline=samples.baseline,
        age=age_of(dataset, taken),
        sex=SEXES.get(str(dataset.get("PatientSex") or "").upper()),
        taken=taken,
        extra=extra,
        gaps=samples.gaps,
    )
    check_plausible(recording)
    return recording


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
    held = {channel.lead for one in group for channel in channels_of(one, encoding)}
    return held.isdisjoint(channel.lead for channel in channels_of(item, encoding))


def _encoding(dataset: Any) -> tuple[Any, ...]:
    return (*dataset.original_encoding, str(dataset.get("SpecificCharacterSet") or ""))


def _steps(item: Any, dataset: Any, name: str) -> NDArray[np.integer]:
    """(samples, channels), as the file has them."""
    bits, kind = int(item.WaveformBitsAllocated), str(item.WaveformSampleInterpretation)
    code = _KINDS.get(kind)
    if code is None or 8 * int(code[1]) != bits:
        detail = f"{name} has samples of {bits} bits and kind {kind}, which are not read"
        raise UnusableError("unreadable", detail)
    order = "<" if dataset.original_encoding[1] else ">"
    channels, samples = int(item.NumberOfWaveformChannels), int(item.NumberOfWaveformSamples)
    if channels != len(channels_of(item, _encoding(dataset))) or channels < 1:
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


def _whole(zero: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whole numbers where only rounding keeps them from it."""
    near = np.rint(zero)
    return np.where(np.abs(zero - near) < 1e-6, near, zero)


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    return read_dicom(source.read(path), name=stem(path), options=options)


def _parts(source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
    name = stem(path)
    with decoding(name, "DICOM"):
        dataset = _dataset(source.read(path), name)
        patient = patient_of(dataset)
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

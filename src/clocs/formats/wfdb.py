"""WFDB records, exactly as the wfdb package reads them.

The layouts of nearly all published 12-lead sets (one file of format 16, plain or in a MATLAB v4
file, or of FLAC format 516) are decoded here; all others go to wfdb itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.files import writing
from clocs.formats.base import FileFormat, ReadOptions
from clocs.formats.flac import decode_flac
from clocs.formats.source import Source, stem
from clocs.formats.wfdb_header import Header, Signal, is_header, parse_header
from clocs.limits import MOST_HEADER_BYTES, MOST_LINE, check_size
from clocs.recording import (
    STANDARD_LEADS,
    UNITS_PER_MV,
    Recording,
    canonical_lead,
    check_plausible,
    check_rate,
    quantise,
)

_BYTES_PER_SAMPLE = {"8": 1.0, "80": 1.0, "16": 2.0, "61": 2.0, "160": 2.0, "24": 3.0, "32": 4.0}
_BYTES_PER_SAMPLE |= {"212": 3 / 2, "310": 4 / 3, "311": 4 / 3}
_STANDARD = frozenset(STANDARD_LEADS)
_MOST_SKEW = 100_000  # samples between two signals of one moment; real ones are a few
_INVALID = -32768  # a missing sample in formats 16 and 516; NaN in wfdb


def read_wfdb(source: Source, path: str, leads: Sequence[str] | None = None) -> Recording:
    """Read one record.

    Args:
        source: Holds the header and the files it names.
        path: The header's name in the source.
        leads: Keep only these, in this order; signals that are no voltage (such as a blood
            pressure) are an error unless left out here.

    Returns:
        The recording under its file name as id and patient; `#Name: value` comments in `extra`.

    Raises:
        UnusableError: truncated, unreadable, nan, implausible or beyond the limits.
    """
    header = parse_header(source.read(path, MOST_HEADER_BYTES), name=path)
    check_rate(header.rate, name=path)
    first = header.signals[0] if header.signals else None
    if first is not None and _is_plain(header, first):
        data = _read_beside(source, path, first.file)
        digital = (_decode_16 if first.format == "16" else _decode_516)(header, data, path)
        gain = [signal.gain for signal in header.signals]
        recording = _recording(
            header, path, signals=header.signals, digital=digital, gain=gain, leads=leads
        )
    else:
        recording = _read_with_wfdb(source, path, header, leads)
    recording = recording if leads is None else recording.select(leads)
    check_plausible(recording)
    return recording


def _is_plain(header: Header, first: Signal) -> bool:
    if first.format not in ("16", "516") or (first.format == "516" and first.offset):
        return False
    for signal in header.signals:
        if (
            signal.file != first.file
            or signal.format != first.format
            or signal.samples_per_frame != 1
            or signal.skew
            or signal.offset != first.offset
        ):
            return False
    return first.file != "~" and (first.format == "16" or header.samples is not None)


def _read_beside(source: Source, path: str, file: str) -> bytes:
    name = path[: path.rfind("/") + 1] + file
    if name not in source:
        detail = f"{path} names {file}, which is not beside it"
        raise UnusableError("unreadable", detail)
    return source.read(name)


def _decode_16(header: Header, data: bytes, path: str) -> NDArray[np.int16]:
    """(signals, samples) of little-endian int16, all signals of one sample together."""
    signals, offset = len(header.signals), header.signals[0].offset
    held = max(len(data) - offset, 0) // (2 * signals)
    samples = held if header.samples is None else header.samples
    if held < samples or not samples:
        raise _truncated(path, held, header.samples)
    flat = np.frombuffer(data, "<i2", count=samples * signals, offset=offset)
    return _checked(flat.reshape(samples, signals), path)


def _decode_516(header: Header, data: bytes, path: str) -> NDArray[np.int16]:
    """(signals, samples) of a FLAC stream of 8 or 16 bits, one channel per signal."""
    signals, samples = len(header.signals), header.samples or 0
    decoded = decode_flac(data, signals=signals, samples=samples, bits=(8, 16), path=path)
    if len(decoded) < samples or not samples:
        raise _truncated(path, len(decoded), header.samples)
    return _checked(decoded, path)


def _checked(frames: NDArray[np.int16], path: str) -> NDArray[np.int16]:
    if frames.min() == _INVALID:
        raise UnusableError("nan", f"{path} has samples marked as missing")
    return np.ascontiguousarray(frames.T)


def _truncated(path: str, held: int, promised: int | None) -> UnusableError:
    return UnusableError("truncated", f"{path} has {held} of {promised or 'any'} samples")


class _Layout(NamedTuple):
    names: tuple[str, ...]
    factors: tuple[float | None, ...]  # units per mV; None if it is no voltage
    baseline: tuple[int, ...]


@lru_cache(maxsize=256)
def _layout(kinds: tuple[tuple[float, int, str, str], ...]) -> _Layout:
    """From (gain, baseline, unit, name) of all signals; most records of a dataset have the same."""
    return _Layout(
        names=tuple(
            name if name in _STANDARD else canonical_lead(name) or f"signal {i}"
            for i, (_, _, _, name) in enumerate(kinds)
        ),
        factors=tuple(UNITS_PER_MV.get(unit.lower()) for _, _, unit, _ in kinds),
        baseline=tuple(baseline for _, baseline, _, _ in kinds),
    )


def _recording(
    header: Header,
    path: str,
    *,
    signals: Sequence[Signal],
    digital: NDArray[np.int16],
    gain: Sequence[float],
    leads: Sequence[str] | None,
) -> Recording:
    layout = _layout(tuple([signal[5:] for signal in signals]))
    names, factors, baseline = list(layout.names), list(layout.factors), list(layout.baseline)
    extra = header.fields()
    if None in factors:
        wanted = {canonical_lead(lead) for lead in leads or ()}
        kept = [i for i, f in enumerate(factors) if f is not None or names[i] in wanted]
        for i, factor in enumerate(factors):
            if factor is None and leads is None:
                raise UnusableError(
                    "unreadable",
                    f"lead {names[i]} of {path} is in {signals[i].unit!r}, which is no voltage; "
                    "choose leads by name, this one or others",
                )
        names, factors = [names[i] for i in kept], [factors[i] for i in kept]
        gain, baseline = [gain[i] for i in kept], [baseline[i] for i in kept]
        digital = digital[kept]
        if None in factors:  # chosen by name: another channel takes the place of a lead
            units = [
                signals[i].unit if f is None else "mV" for i, f in zip(kept, factors, strict=True)
            ]
            extra["units"] = ", ".join(f"{n}: {u}" for n, u in zip(names, units, strict=True))
    if len(set(names)) != len(names):
        raise UnusableError("unreadable", f"{path} has several leads of one name: {names}")
    name = stem(path)
    return Recording(
        id=name,
        patient=name,
        leads=tuple(names),
        rate=header.rate,
        digital=digital,
        gain=np.array([g * (f or 1.0) for g, f in zip(gain, factors, strict=True)]),
        baseline=np.array(baseline, np.int32),
        unit="mixed" if None in factors else "mV",
        taken=header.taken,
        extra=extra,
    )


def _read_with_wfdb(
    source: Source, path: str, header: Header, leads: Sequence[str] | None
) -> Recording:
    """Any other layout, through wfdb: its files are copied to a temporary folder first."""
    import wfdb

    _refuse_gaps(path, header)
    with tempfile.TemporaryDirectory() as folder:
        with writing(folder):
            held, per_moment = _copy(source, path, header, Path(folder))
        samples = max(header.samples or 0, sum(header.segment_samples))
        check_size(2 * samples * per_moment, packed=held, name=path)
        try:
            record = wfdb.rdrecord(str(Path(folder, PurePosixPath(path).stem)))
            physical = np.array(record.p_signal.T, np.float64, order="C")
            details = list(zip(record.sig_name, record.units, strict=True))
            gains, baselines = record.adc_gain, record.baseline
        except (ImportError, NameError, MemoryError):
            raise  # a broken installation or too little memory, not a broken recording
        except Exception as error:  # wfdb raises bare Exceptions for whatever it cannot read
            reason = "truncated" if _is_cut(header, Path(folder)) else "unreadable"
            text = " ".join(str(error).replace(folder, "").split()) or type(error).__name__
            raise UnusableError(reason, f"{path} cannot be read by wfdb: {text}") from None
    if not np.isfinite(physical).all():
        raise UnusableError("nan", f"{path} has samples marked as missing")
    if not physical.size:
        raise _truncated(path, 0, header.samples)
    digital, gain, zero = _digitise(physical, details, gains, baselines)
    # The header's own units come first: wfdb drops the µ of µV.
    units = [signal.unit for signal in header.signals] or [unit for _, unit in details]
    signals = [
        Signal("", "", 1, 0, 0, g, z, unit, str(name or ""))
        for (name, _), unit, g, z in zip(details, units, gain, zero, strict=True)
    ]
    return _recording(header, path, signals=signals, digital=digital, gain=gain, leads=leads)


def _is_cut(header: Header, folder: Path) -> bool:
    """Whether a signal file is shorter than the header says."""
    needed: dict[str, float] = {}
    for signal in header.signals:
        samples = (header.samples or 0) * signal.samples_per_frame
        needed.setdefault(signal.file, signal.offset)
        needed[signal.file] += samples * _BYTES_PER_SAMPLE.get(signal.format, 0)
    sizes = {file: (folder / file).stat().st_size for file in needed if file != "~"}
    return any(size < int(needed[file]) for file, size in sizes.items())


def _digitise(
    physical: NDArray[np.float64],
    details: Sequence[tuple[str, str]],
    gains: Sequence[float] | None,
    baselines: Sequence[int] | None,
) -> tuple[NDArray[np.int16], list[float], list[int]]:
    """int16 samples that represent `physical` exactly, where that is possible."""
    if gains is not None and baselines is not None:
        gain = np.array(gains, np.float64)
        zero = np.array(baselines, np.float64)
        steps = np.rint(physical * gain[:, None] + zero[:, None])
        fits = np.abs(steps).max() <= 32767
        if fits and np.array_equal((steps - zero[:, None]) / gain[:, None], physical):
            return steps.astype(np.int16), gain.tolist(), [int(z) for z in zero]
    factors = np.array([UNITS_PER_MV.get(str(unit).lower(), 1.0) for _, unit in details])
    digital, gain = quantise(physical / factors[:, None])
    return digital, (gain / factors).tolist(), [0] * len(details)


def _refuse_gaps(path: str, header: Header) -> None:
    """A gap has no samples, however long it is said to be."""
    for name, samples in zip(header.segment_names, header.segment_samples, strict=True):
        if name == "~" and samples:
            raise UnusableError("nan", f"{path} has a gap of {samples:,} samples")
    for signal in header.signals:
        if signal.file == "~" and header.samples:
            raise UnusableError("nan", f"{path} has no samples of {signal.name}")
        if signal.skew > _MOST_SKEW:
            detail = f"{path} shifts {signal.name} by {signal.skew:,} samples"
            raise UnusableError("unreadable", detail)


def _copy(source: Source, path: str, header: Header, folder: Path) -> tuple[int, int]:
    """Copy a record's header, its segments' headers and all their signal files into a folder.

    Returns:
        The bytes of the signal files, and the samples of all signals at one moment.
    """
    text = source.read(path, MOST_HEADER_BYTES)
    Path(folder, PurePosixPath(path).name).write_bytes(text)
    held, signals = 0, sum(signal.samples_per_frame for signal in header.signals)
    for file in {signal.file for signal in header.signals} - {"~"}:
        if "/" in file or "\\" in file:
            raise UnusableError("unreadable", f"{path} names a file in another folder: {file}")
        held += Path(folder, file).write_bytes(_read_beside(source, path, file))
    for part in set(header.segment_names) - {"~"}:
        beside = f"{path[: path.rfind('/') + 1]}{part}.hea"
        if "/" in part or "\\" in part or beside not in source or beside == path:
            raise UnusableError("unreadable", f"{path} has no segment {part} beside it")
        inner = parse_header(source.read(beside, MOST_HEADER_BYTES), name=beside)
        if inner.segment_names:
            raise UnusableError("unreadable", f"{path} has segments inside segments")
        _refuse_gaps(beside, inner)
        inner_held, inner_signals = _copy(source, beside, inner, folder)
        check_size(2 * (inner.samples or 0) * inner_signals, packed=inner_held, name=beside)
        held, signals = held + inner_held, max(signals, inner_signals)
    return held, signals


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    return read_wfdb(source, path, options.leads)


def _files_beside(data: bytes, name: str) -> set[str] | None:
    """The signal files that a header names; None where it names segments, which name others."""
    header = parse_header(data, name=name)
    if header.segment_names:
        return None
    return {signal.file for signal in header.signals if "/" not in signal.file}


def _segments(source: Source, path: str, head: bytes) -> set[str]:
    """The headers beside this one that are its segments."""
    if b"/" not in head[:MOST_LINE]:
        return set()
    try:
        header = parse_header(source.read(path, MOST_HEADER_BYTES), name=path)
    except UnusableError:
        return set()
    folder = path[: path.rfind("/") + 1]
    return {f"{folder}{name}.hea" for name in header.segment_names} - {path}


WFDB = FileFormat(
    "WFDB",
    ".hea",
    _read,
    companions=(".dat", ".mat", ".flac"),
    files_beside=_files_beside,
    recognise=is_header,
    single=True,
    segments=_segments,
)

"""Bodies of requests: JSON, NumPy arrays and files -> recordings, in processes of their own.

And an ECG for examples: ten seconds of regular beats, short enough to print.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError
from clocs.formats.array_files import array_from
from clocs.formats.arrays import recording_from
from clocs.formats.base import FileMetadata, ReadOptions
from clocs.recording import STANDARD_LEADS, Recording
from clocs.web.uploads import Posted, read_arrays, read_posted

NPY = ("application/x-npy", "application/npy")
_JSON, _FORM = "application/json", "multipart/form-data"
KINDS = (_JSON, _FORM, *NPY, "application/x-npz", "application/npz")

EXAMPLE_RATE = 50.0  # Hz
# (seconds after the R peak, width in seconds, mV) of P, Q, R, S and T
_WAVES = ((-0.16, 0.03, 0.12), (-0.03, 0.01, -0.1), (0, 0.012, 1.0), (0.03, 0.01, -0.2))
_T_WAVE = (0.25, 0.05, 0.3)

_Lead = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Leads = Annotated[list[_Lead], msgspec.Meta(min_length=1, max_length=64)]
_Signal = list[list[float | None]]


class SentRecording(msgspec.Struct, forbid_unknown_fields=True):
    """A recording: a list of samples per lead, null where there is none; rate in Hz; unit or mV."""

    signal: _Signal
    rate: float  # one that no ECG has is refused for its recording alone, not for the whole batch
    leads: _Leads | None = None
    unit: str | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    signal: _Signal | None = None
    rate: float | None = None
    leads: _Leads | None = None
    unit: str | None = None
    recordings: list[SentRecording] | None = None


_DECODER = msgspec.json.Decoder(_Body)


@dataclass(frozen=True)
class Limits:
    """What a request may ask for.

    The defaults fit each other: a body holds 64 ECGs of twelve leads, 10 s and 500 Hz as JSON with
    all digits, and the queue two such bodies.

    Attributes:
        mebibytes: Of a body.
        recordings: In one request.
        seconds: Of one recording.
        queue: Seconds of ECG, summed over leads, that may wait or be computed.
        timeout: Seconds that a request may wait for its results.
    """

    mebibytes: int = 80
    recordings: int = 64
    seconds: float = 600.0
    queue: float = 15_360.0
    timeout: float = 10.0


def plain_kind(kind: str) -> str:
    """A content type without its parameters."""
    return kind.partition(";")[0].strip().lower()


def read_body(facts: Mapping[str, Any], body: bytes) -> Posted:
    """The recordings in a body; called in a process of a `BodyReader`.

    Args:
        facts: The content `type`, the `query` (`rate`, `leads` and `unit` of arrays, from the
            address) and the `limits`.
        body: All of it.

    Raises:
        ClocsError: It cannot be used at all.
    """
    limits: Limits = facts["limits"]
    kind, query = plain_kind(facts["type"]), facts["query"]
    rate, leads, unit = query["rate"], query["leads"], query["unit"]
    named = leads.split(",")[:65] if leads else None
    if kind == _JSON:
        posted = _from_json(body, limits.recordings)
    elif kind in NPY:
        posted = _from_npy(body, rate, named, unit, limits.recordings)
    elif kind == _FORM:
        posted = read_posted(facts, body, most=limits.recordings)
    else:
        options = ReadOptions(None if named is None else tuple(named), rate, unit)
        posted = read_arrays(body, options, most=limits.recordings)
    checked = [
        SettingError(f"{one.id} lasts {one.seconds:,.0f} s; send at most {limits.seconds:,.0f} s")
        if isinstance(one, Recording) and one.seconds > limits.seconds
        else one
        for one in posted.recordings
    ]
    return replace(posted, recordings=checked)


def _from_json(body: bytes, most: int) -> Posted:
    try:
        sent = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SettingError(f"the JSON is not as expected: {error}") from None
    beside = (sent.signal, sent.rate, sent.leads, sent.unit)
    if sent.recordings is None:
        if sent.signal is None or sent.rate is None:
            raise SettingError("the JSON needs `signal` and `rate`, or a list of `recordings`")
        return Posted([_recording(*beside, name="the recording")])
    if beside != (None,) * 4:
        raise SettingError(
            "beside `recordings` give nothing else: each has its own `signal`, `rate`, `leads` "
            "and `unit`"
        )
    return _batch([(one.signal, one.rate, one.leads, one.unit) for one in sent.recordings], most)


def _from_npy(
    body: bytes, rate: float | None, leads: list[str] | None, unit: str | None, most: int
) -> Posted:
    if rate is None:
        raise SettingError("give the sampling rate in Hz in the address, as ?rate=500")
    array = array_from(body, "the recording")
    array = array[None] if array.ndim == 1 else array
    if array.ndim not in (2, 3):
        raise SettingError(
            f"the array has {array.ndim} axes; send (leads, samples), or (recordings, leads, "
            "samples)"
        )
    if array.ndim == 2:
        return Posted([_recording(array, rate, leads, unit, name="the recording")])
    return _batch([(one, rate, leads, unit) for one in array], most)


def _batch(sent: Sequence[tuple[Any, ...]], most: int) -> Posted:
    if not 1 <= len(sent) <= most:
        raise SettingError(f"send 1 to {most} recordings at once, not {len(sent)}")
    made = [_recording(*one, name=f"recording {i}") for i, one in enumerate(sent)]
    return Posted(made, several=True)


def _recording(
    signal: Any, rate: float | None, leads: Sequence[str] | None, unit: str | None, *, name: str
) -> Recording | ClocsError:
    """A recording of arrays, or of lists, in which null is NaN, a gap; or why there is none."""
    try:
        if isinstance(signal, list):
            with suppress(struct.error):  # a null; then as `np.array` does, in twice the time
                signal = [np.frombuffer(struct.pack(f"{len(one)}d", *one)) for one in signal]
            signal = np.array(signal, np.float64)
    except ValueError:
        return SettingError(
            f"{name} has leads of different lengths; send one list of numbers per lead"
        )
    if signal.ndim != 2 or not signal.size:
        return SettingError(f"{name} has no samples; send one list of numbers per lead")
    if len(signal) > 64:
        return SettingError(f"{name} has {len(signal)} leads; send 1 to 64")
    if leads is None and len(signal) not in (1, len(STANDARD_LEADS)):
        return SettingError(f"{name} has {len(signal)} leads; name them in `leads`")
    assumed = [] if unit else ["values without a unit are taken as mV"]
    meta = FileMetadata(leads=leads, rate=rate, unit=unit or "mV", notices=assumed)
    try:
        return recording_from(signal, meta, ReadOptions(), name=name)
    except ClocsError as error:
        return error


def example_signal(seconds: float = 10.0, rate: float = EXAMPLE_RATE) -> NDArray[np.float64]:
    """(samples,) in mV, rounded to 0.01: a beat every 0.8 s."""
    phase = (np.arange(round(seconds * rate)) / rate + 0.4) % 0.8 - 0.4
    waves = [
        height * np.exp(-((phase - place) ** 2) / (2 * width**2))
        for place, width, height in (*_WAVES, _T_WAVE)
    ]
    return np.asarray(np.round(np.sum(waves, axis=0), 2))


def example_body(lead: str = "II", seconds: float = 10.0) -> dict[str, Any]:
    """A JSON body that every service with this lead answers."""
    signal = example_signal(seconds).tolist()
    return {"signal": [signal], "rate": EXAMPLE_RATE, "leads": [lead], "unit": "mV"}


def example_recording(leads: Sequence[str], seconds: float) -> Recording:
    """With these leads, all alike, and at least so long."""
    signal = np.tile(example_signal(max(10.0, seconds + 1)), (len(leads), 1))
    said = FileMetadata(leads=leads, rate=EXAMPLE_RATE, unit="mV")
    return recording_from(signal, said, ReadOptions(), name="the example")

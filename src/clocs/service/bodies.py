"""Bodies of requests: JSON, NumPy arrays and files -> recordings, in processes of their own.

And an ECG for examples: ten seconds of regular beats, short enough to print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from clocs.errors import ClocsError, SettingError
from clocs.formats.array_files import array_from
from clocs.formats.arrays import recording_from
from clocs.formats.base import FileMetadata, ReadOptions
from clocs.formats.read import options_of
from clocs.recording import STANDARD_LEADS, Recording
from clocs.web.body_reader import BodyReader
from clocs.web.uploads import Posted, read_arrays, read_posted

if TYPE_CHECKING:
    from starlette.requests import Request

NPY = ("application/x-npy", "application/npy")
NPZ = ("application/x-npz", "application/npz")
_JSON, _FORM = "application/json", "multipart/form-data"
KINDS = (_JSON, _FORM, *NPY, *NPZ)
_AT_ONCE = 256  # bodies being received, waiting or being read
_THE_ONE = "the recording"

EXAMPLE_RATE = 50.0  # Hz
# (seconds after the R peak, width in seconds, mV) of P, Q, R, S and T
_WAVES = ((-0.16, 0.03, 0.12), (-0.03, 0.01, -0.1), (0, 0.012, 1.0), (0.03, 0.01, -0.2))
_T_WAVE = (0.25, 0.05, 0.3)

_Lead = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Leads = Annotated[list[_Lead], msgspec.Meta(min_length=1, max_length=64)]
_Signal = list[list[float | None]]


class SentRecording(msgspec.Struct, forbid_unknown_fields=True):
    """A recording as JSON."""

    signal: Annotated[
        _Signal,
        msgspec.Meta(
            description="One list of samples per lead; null where there is no value.",
            extra_json_schema={"minItems": 1, "maxItems": 64},
        ),
    ]
    # a rate that no ECG has is refused for its recording alone, not for the whole batch
    rate: Annotated[
        float,
        msgspec.Meta(description="In Hz.", extra_json_schema={"minimum": 50, "maximum": 10_000}),
    ]
    leads: Annotated[
        _Leads | None, msgspec.Meta(description="The names of the leads, in order.")
    ] = None
    unit: Annotated[
        str | None, msgspec.Meta(extra_json_schema={"enum": ["mV", "µV", "uV", "nV", "V", None]})
    ] = None


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


class Bodies:
    """Receives bodies, within limits."""

    def __init__(self, limits: Limits) -> None:
        self._facts = {"limits": asdict(limits)}
        self.reader = BodyReader(read_body, at_once=_AT_ONCE)

    async def receive(self, request: Request, query: Mapping[str, Any]) -> Posted:
        """The recordings of a request, by the type of its body.

        Args:
            request: Whose body is awaited.
            query: `rate`, `leads` and `unit` of arrays, from the address.
        """
        kind = request.headers.get("content-type", "")
        if plain_kind(kind) not in KINDS:
            raise HTTPException(
                415,
                "send the ECG as application/json, application/x-npy or application/x-npz, or "
                "files as multipart/form-data",
            )
        return await self.reader.receive(request, self._facts | {"type": kind, "query": query})


def read_body(facts: Mapping[str, Any], body: bytes) -> Posted:
    """The recordings in a body, read by a process of `Bodies`.

    Args:
        facts: The content `type`, the `query` of the address and the `limits`.
        body: All of it.

    Raises:
        ClocsError: It cannot be used at all.
    """
    return _Reading(Limits(**facts["limits"]), facts["query"]).posted(facts["type"], body)


def plain_kind(kind: str) -> str:
    """A content type without its parameters."""
    return kind.partition(";")[0].strip().lower()


@dataclass(frozen=True)
class _Reading:
    limits: Limits
    query: Mapping[str, Any]

    def posted(self, kind: str, body: bytes) -> Posted:
        plain = plain_kind(kind)
        if plain == _JSON:
            return self._from_json(body)
        if plain in NPY:
            return self._from_npy(body)
        if plain == _FORM:
            sent = read_posted(body, kind, most=self.limits.recordings)
        else:
            rate, unit = self.query["rate"], self.query["unit"]
            options = options_of(rate=rate, leads=self._leads, unit=unit)
            sent = read_arrays(body, options, most=self.limits.recordings)
        checked = [
            one if isinstance(one, ClocsError) else self._checked(one) for one in sent.recordings
        ]
        return Posted(checked, sent.several, sent.names)

    def _from_json(self, body: bytes) -> Posted:
        try:
            sent = _DECODER.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise SettingError(f"the JSON is not as expected: {error}") from None
        if sent.recordings is None:
            if sent.signal is None or sent.rate is None:
                raise SettingError("the JSON needs `signal` and `rate`, or a list of `recordings`")
            one = SentRecording(sent.signal, sent.rate, sent.leads, sent.unit)
            return Posted([self._from_lists(one, _THE_ONE)])
        if (sent.signal, sent.rate, sent.leads, sent.unit) != (None,) * 4:
            raise SettingError(
                "beside `recordings` give nothing else: each has its own `signal`, `rate`, `leads` "
                "and `unit`"
            )
        self._expect_few(len(sent.recordings))
        named = [(one, f"recording {i}") for i, one in enumerate(sent.recordings)]
        return Posted([self._from_lists(one, name) for one, name in named], several=True)

    def _from_npy(self, body: bytes) -> Posted:
        rate, leads, unit = self.query["rate"], self._leads, self.query["unit"]
        if rate is None:
            raise SettingError("give the sampling rate in Hz in the address, as ?rate=500")
        array = array_from(body, _THE_ONE)
        array = array[None] if array.ndim == 1 else array
        if array.ndim not in (2, 3):
            raise SettingError(
                f"the array has {array.ndim} axes; send (leads, samples), or (recordings, leads, "
                "samples)"
            )
        if array.ndim == 2:
            return Posted([self._recording(array, rate, leads, unit, name=_THE_ONE)])
        self._expect_few(len(array))
        return Posted(
            [
                self._recording(one, rate, leads, unit, name=f"recording {i}")
                for i, one in enumerate(array)
            ],
            several=True,
        )

    @property
    def _leads(self) -> list[str] | None:
        return self.query["leads"].split(",")[:65] if self.query["leads"] else None

    def _expect_few(self, count: int) -> None:
        most = self.limits.recordings
        if not 1 <= count <= most:
            raise SettingError(f"send 1 to {most} recordings at once, not {count}")

    def _from_lists(self, one: SentRecording, name: str) -> Recording | ClocsError:
        try:
            array = np.array(one.signal, np.float64)  # null becomes NaN, a gap
        except ValueError:
            return SettingError(
                f"{name} has leads of different lengths; send one list of numbers per lead"
            )
        if array.ndim != 2 or not array.size:
            return SettingError(f"{name} has no samples; send one list of numbers per lead")
        return self._recording(array, one.rate, one.leads, one.unit, name=name)

    def _recording(
        self,
        array: NDArray[Any],
        rate: float | None,
        leads: Sequence[str] | None,
        unit: str | None,
        *,
        name: str,
    ) -> Recording | ClocsError:
        try:
            if not array.size or len(array) > 64:
                return SettingError(
                    f"{name} has {len(array)} leads and {array.shape[-1]} samples; send 1 to 64 "
                    "leads with samples"
                )
            if leads is None and len(array) not in (1, len(STANDARD_LEADS)):
                return SettingError(f"{name} has {len(array)} leads; name them in `leads`")
            assumed = () if unit else ("values without a unit are taken as mV",)
            said = FileMetadata(leads=leads, rate=rate, unit=unit or "mV", notices=assumed)
            return self._checked(recording_from(array, said, ReadOptions(), name=name))
        except ClocsError as error:
            return error

    def _checked(self, recording: Recording) -> Recording | ClocsError:
        most = self.limits.seconds
        if recording.seconds > most:
            return SettingError(
                f"{recording.id} lasts {recording.seconds:,.0f} s; send at most {most:,.0f} s"
            )
        return recording


def example_signal(seconds: float = 10.0, rate: float = EXAMPLE_RATE) -> NDArray[np.float64]:
    """(samples,) in mV, rounded to 0.01: a beat every 0.8 s."""
    time = np.arange(round(seconds * rate)) / rate
    phase = (time + 0.4) % 0.8 - 0.4
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

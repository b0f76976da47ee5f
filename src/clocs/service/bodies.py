"""Bodies of requests: JSON, NumPy arrays and files -> recordings, in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from clocs.errors import ClocsError, SettingError
from clocs.formats.arrays import Said, recording_from
from clocs.formats.base import ReadOptions
from clocs.formats.npy import array_from
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

_Lead = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Leads = Annotated[list[_Lead], msgspec.Meta(min_length=1, max_length=64)]
_Signal = list[list[float | None]]


class _Recording(msgspec.Struct, forbid_unknown_fields=True):
    signal: _Signal
    rate: float
    leads: _Leads | None = None
    unit: str | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    signal: _Signal | None = None
    rate: float | None = None
    leads: _Leads | None = None
    unit: str | None = None
    recordings: list[_Recording] | None = None


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

    async def receive(self, request: Request) -> Posted:
        """The recordings of a request, by the type of its body."""
        kind = request.headers.get("content-type", "")
        if plain_kind(kind) not in KINDS:
            raise HTTPException(
                415,
                "send the ECG as application/json, application/x-npy or application/x-npz, or "
                "files as multipart/form-data",
            )
        query = dict(request.query_params)
        return await self.reader.receive(request, self._facts | {"type": kind, "query": query})


def read_body(facts: dict[str, Any], body: bytes) -> Posted:
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
    query: Mapping[str, str]

    def posted(self, kind: str, body: bytes) -> Posted:
        plain = plain_kind(kind)
        if plain == _JSON:
            return self._from_json(body)
        if plain in NPY:
            return self._from_npy(body)
        if plain == _FORM:
            sent = read_posted(body, kind, most=self.limits.recordings)
        else:
            rate, leads, unit = self._rate(needed=False), self._leads(), self.query.get("unit")
            options = options_of(rate=rate, leads=leads, unit=unit)
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
            one = _Recording(sent.signal, sent.rate, sent.leads, sent.unit)
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
        rate, leads = self._rate(needed=True), self._leads()
        array = array_from(body, _THE_ONE)
        array = array[None] if array.ndim == 1 else array
        if array.ndim not in (2, 3):
            raise SettingError(
                f"the array has {array.ndim} axes; send (leads, samples), or (recordings, leads, "
                "samples)"
            )
        unit = self.query.get("unit")
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

    def _rate(self, *, needed: bool) -> float | None:
        given = self.query.get("rate", "")
        if not given and not needed:
            return None
        try:
            return float(given)
        except ValueError:
            raise SettingError(
                "give the sampling rate in Hz in the address, as ?rate=500"
            ) from None

    def _leads(self) -> list[str] | None:
        return self.query["leads"].split(",")[:65] if self.query.get("leads") else None

    def _expect_few(self, count: int) -> None:
        most = self.limits.recordings
        if not 1 <= count <= most:
            raise SettingError(f"send 1 to {most} recordings at once, not {count}")

    def _from_lists(self, one: _Recording, name: str) -> Recording | ClocsError:
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
            said = Said(leads=leads, rate=rate, unit=unit or "mV", notices=assumed)
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

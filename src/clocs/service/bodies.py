"""Bodies of requests: JSON, NumPy arrays and files -> recordings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from clocs.errors import ClocsError, SettingError
from clocs.formats.arrays import Said, recording_from
from clocs.formats.base import ReadOptions
from clocs.formats.npy import array_from
from clocs.recording import STANDARD_LEADS, Recording
from clocs.web.shield import TooMuchError
from clocs.web.upload_reader import UploadReader

if TYPE_CHECKING:
    from starlette.requests import Request

NPY = ("application/x-npy", "application/npy")
_AT_ONCE = 8  # times the limit of one body: bytes of bodies received at once
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

    Attributes:
        mebibytes: Of a body.
        recordings: In one request.
        seconds: Of one recording.
        queue: Seconds of ECG, summed over leads, that may wait or be computed.
        timeout: Seconds that a request may wait for its results.
    """

    mebibytes: int = 16
    recordings: int = 64
    seconds: float = 600.0
    queue: float = 1280.0
    timeout: float = 10.0


@dataclass(frozen=True)
class Posted:
    """The recordings of a request, or why one cannot be used.

    Attributes:
        recordings: In order.
        several: Whether they were sent as a batch, which gets a list of results.
    """

    recordings: Sequence[Recording | ClocsError]
    several: bool


class Bodies:
    """Receives bodies, within limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._bytes = 0  # of bodies being received; only the event loop's thread changes it
        self._uploads = UploadReader()

    async def receive(self, request: Request) -> Posted:
        """The recordings of a request, by the type of its body."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            recording = await self._uploads.read(request, lambda one: one)
            return Posted([self._checked(recording)], several=False)
        if kind not in ("application/json", *NPY):
            raise HTTPException(
                415,
                "send the ECG as application/json, application/x-npy, or files as "
                "multipart/form-data",
            )
        with self._reserved(request):
            body = await request.body()
        if kind == "application/json":
            return self._from_json(body)
        return self._from_npy(body, request)

    @contextmanager
    def _reserved(self, request: Request) -> Iterator[None]:
        """Memory for a body; many large ones at once would take too much."""
        limit = self.limits.mebibytes << 20
        length = request.headers.get("content-length", "")
        known = length.isdecimal() and "transfer-encoding" not in request.headers
        size = int(length) if known else limit
        if self._bytes + size > _AT_ONCE * limit:
            raise TooMuchError(
                503, "too many large requests at once; try again in a moment", {"retry-after": "1"}
            )
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size

    def _from_json(self, body: bytes) -> Posted:
        try:
            sent = _DECODER.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise HTTPException(422, f"the JSON is not as expected: {error}") from None
        if sent.recordings is None:
            if sent.signal is None or sent.rate is None:
                raise HTTPException(
                    422, "the JSON needs `signal` and `rate`, or a list of `recordings`"
                )
            one = _Recording(sent.signal, sent.rate, sent.leads, sent.unit)
            return Posted([self._from_lists(one, _THE_ONE)], several=False)
        if (sent.signal, sent.rate, sent.leads, sent.unit) != (None,) * 4:
            raise HTTPException(
                422,
                "beside `recordings` give nothing else: each has its own `signal`, `rate`, `leads` "
                "and `unit`",
            )
        self._expect_few(len(sent.recordings))
        named = [(one, f"recording {i}") for i, one in enumerate(sent.recordings)]
        return Posted([self._from_lists(one, name) for one, name in named], several=True)

    def _from_npy(self, body: bytes, request: Request) -> Posted:
        query = request.query_params
        try:
            rate = float(query.get("rate", ""))
        except ValueError:
            raise HTTPException(
                422, "give the sampling rate in Hz in the address, as ?rate=500"
            ) from None
        leads = query["leads"].split(",")[:65] if query.get("leads") else None
        array = array_from(body, _THE_ONE)
        array = array[None] if array.ndim == 1 else array
        if array.ndim not in (2, 3):
            raise SettingError(
                f"the array has {array.ndim} axes; send (leads, samples), or (recordings, leads, "
                "samples)"
            )
        unit = query.get("unit")
        if array.ndim == 2:
            one = self._recording(array, rate, leads, unit, name=_THE_ONE)
            return Posted([one], several=False)
        self._expect_few(len(array))
        return Posted(
            [
                self._recording(one, rate, leads, unit, name=f"recording {i}")
                for i, one in enumerate(array)
            ],
            several=True,
        )

    def _expect_few(self, count: int) -> None:
        most = self.limits.recordings
        if not 1 <= count <= most:
            raise HTTPException(422, f"send 1 to {most} recordings at once, not {count}")

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
        rate: float,
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

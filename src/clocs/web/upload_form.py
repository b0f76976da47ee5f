"""The form of an upload: the files of recordings, and what a CSV does not say."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from clocs.errors import SourceError
from clocs.recording import PLAUSIBLE_STEPS_PER_MV
from clocs.web.upload_unit import STEPS, UNITS, GivenUnit

MAX_FILES = 128  # in a form or a zip: 64 recordings of two files each
_FILES = ("files", "file")  # either name will do
_FIELDS = ("rate", "unit", "gain", "confirmed")
_LISTED = {"type": "array", "items": {"type": "string", "format": "binary"}}

FORM: dict[str, Any] = {  # in the OpenAPI description
    "schema": {
        "type": "object",
        "properties": {
            "files": {**_LISTED, "maxItems": MAX_FILES},
            "file": {**_LISTED, "description": "The same as `files`."},
            "rate": {"type": "number", "minimum": 10, "maximum": 10_000},
            "unit": {"type": "string", "enum": list(UNITS)},
            "gain": {"type": "number", "minimum": 1, "maximum": 1_000_000},
            "confirmed": {"type": "boolean"},
        },
    }
}


@dataclass(frozen=True)
class SentFiles:
    """What a visitor sent.

    Attributes:
        files: Contents by name.
        rate: Sampling rate of a CSV in Hz.
        unit: What the visitor says about the unit.
    """

    files: Mapping[str, bytes]
    rate: float | None = None
    unit: GivenUnit = field(default_factory=GivenUnit)


class _Parser(MultiPartParser):
    spool_max_size = 1 << 40  # the body is in memory already


def read_form(body: bytes, kind: str, *, most_files: int = MAX_FILES) -> SentFiles:
    """The files, sampling rate and unit of a form; anything else in it is refused.

    Args:
        body: All of it.
        kind: Its content type, with the boundary.
        most_files: Beyond which it is refused.
    """

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    limits = {"max_files": most_files, "max_fields": len(_FIELDS)}
    parsing = _Parser(Headers({"content-type": kind}), stream(), **limits).parse()
    try:
        parsing.send(None)  # it never waits: all is in memory
    except StopIteration as done:
        form: FormData = done.value
    except MultiPartException as error:
        raise SourceError(f"the form cannot be read: {error.message}") from None
    else:
        raise RuntimeError("the form was not parsed at once")
    received: dict[str, bytes] = {}
    for field_name, value in form.multi_items():
        if field_name in _FIELDS:
            continue
        if field_name not in _FILES:
            known = ", ".join((*_FILES, *_FIELDS))
            raise SourceError(f"the form has a field {field_name[:100]!r}; it may have {known}")
        if not isinstance(value, UploadFile):
            raise SourceError(f"`{field_name}` must contain files with their names")
        name = value.filename or "file"
        if name in received:
            raise SourceError(f"two files are called {name[:100]}; give each another name")
        received[name] = value.file.read()
    if not received:
        raise SourceError("the form contains no file; upload a recording as `files`")
    return SentFiles(received, *_rate_and_unit(form))


def _rate_and_unit(form: FormData) -> tuple[float | None, GivenUnit]:
    rate, unit, gain = _number(form, "rate"), form.get("unit") or None, _number(form, "gain")
    if rate is not None and not 10 <= rate <= 10_000:
        raise SourceError("the sampling rate must be between 10 and 10,000 Hz")
    if isinstance(unit, UploadFile) or unit not in (None, *UNITS):
        raise SourceError(f"the unit must be one of {', '.join(UNITS)}")
    low, high = PLAUSIBLE_STEPS_PER_MV
    if unit == STEPS and (gain is None or not low <= gain <= high):
        raise SourceError(f"steps need a gain of {low:g} to {high:,.0f} of them per mV")
    return rate, GivenUnit(unit, gain if unit == STEPS else None, form.get("confirmed") == "true")


def _number(form: FormData, name: str) -> float | None:
    """NaN where it is none."""
    given = form.get(name) or None
    try:
        return float(given) if isinstance(given, str) else None
    except ValueError:
        return math.nan

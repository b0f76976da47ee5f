"""The form of an upload: the files of one recording, and what a CSV does not say."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from clocs.recording import PLAUSIBLE_STEPS_PER_MV
from clocs.web.upload_unit import STEPS, UNITS, GivenUnit

if TYPE_CHECKING:
    from starlette.requests import Request

FILES = 8  # in one upload

FORM: dict[str, Any] = {  # in the OpenAPI description
    "schema": {
        "type": "object",
        "required": ["files"],
        "properties": {
            "files": {
                "type": "array",
                "maxItems": FILES,
                "items": {"type": "string", "format": "binary"},
            },
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
        files: Open files by name.
        rate: Sampling rate of a CSV in Hz.
        unit: What the visitor says about the unit.
    """

    files: Mapping[str, BinaryIO]
    rate: float | None = None
    unit: GivenUnit = field(default_factory=GivenUnit)


@asynccontextmanager
async def upload_form(request: Request) -> AsyncIterator[SentFiles]:
    """The files, sampling rate and unit of a form; anything else in it is refused.

    Files of more than 1 MiB are kept in nameless files of the system, not in memory.
    """
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise HTTPException(422, "send the files as multipart/form-data, each as `files`")
    try:
        async with request.form(max_files=FILES, max_fields=4) as form:
            received: dict[str, BinaryIO] = {}
            for value in form.getlist("files"):
                if not isinstance(value, UploadFile):
                    raise HTTPException(422, "`files` must contain files with their names")
                name = value.filename or "file"
                if name in received:
                    raise HTTPException(
                        422, f"two files are called {name[:100]}; upload one recording at a time"
                    )
                received[name] = value.file
            if not received:
                raise HTTPException(422, "the form contains no file; upload one recording")
            yield SentFiles(received, *_rate_and_unit(form))
    except (MultiPartException, HTTPException) as error:
        raise HTTPException(422, getattr(error, "detail", None) or str(error)) from None


def _rate_and_unit(form: FormData) -> tuple[float | None, GivenUnit]:
    rate, unit, gain = _number(form, "rate"), form.get("unit") or None, _number(form, "gain")
    if rate is not None and not 10 <= rate <= 10_000:
        raise HTTPException(422, "the sampling rate must be between 10 and 10,000 Hz")
    if isinstance(unit, UploadFile) or unit not in (None, *UNITS):
        raise HTTPException(422, f"the unit must be one of {', '.join(UNITS)}")
    low, high = PLAUSIBLE_STEPS_PER_MV
    if unit == STEPS and (gain is None or not low <= gain <= high):
        raise HTTPException(422, f"steps need a gain of {low:g} to {high:,.0f} of them per mV")
    return rate, GivenUnit(unit, gain if unit == STEPS else None, form.get("confirmed") == "true")


def _number(form: FormData, name: str) -> float | None:
    """NaN where it is none."""
    given = form.get(name) or None
    try:
        return float(given) if isinstance(given, str) else None
    except ValueError:
        return math.nan

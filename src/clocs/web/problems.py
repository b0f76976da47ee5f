"""Problems: every error becomes a JSON response with one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from clocs.errors import ClocsError, UnknownRateError
from clocs.web.shield import TooMuchError
from clocs.web.upload_unit import UnitQuestionError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request


class AskedUnit(BaseModel):
    name: str  # of the recording
    span: float  # of its leads, in the numbers of the file
    mv: float | None  # the same as it was read; None where it was not

    model_config = ConfigDict(
        json_schema_extra={"example": {"name": "my.csv", "span": 0.0013, "mv": 0.0013}}
    )


class Problem(BaseModel):
    message: str  # one sentence, in the response to every error
    unit_question: AskedUnit | None = None  # of an upload whose unit has to be given
    rate_question: bool | None = None  # whether the sampling rate of an upload has to be given


Kinds = type[ClocsError] | tuple[type[ClocsError], ...]


def add_problems(app: FastAPI, *, not_found: Kinds = (), conflict: Kinds = ()) -> None:
    """Answer errors with a `Problem`: 422 for a `ClocsError`.

    It is 404 for those of `not_found`, and 409 for those of `conflict`.
    """

    async def problem(request: Request, error: Exception) -> JSONResponse:
        status, message, headers = 500, "internal error; see the terminal for details", None
        asked: dict[str, Any] = {}
        if isinstance(error, UnitQuestionError):
            asked["unit_question"] = error.facts
        if isinstance(error, UnknownRateError):
            asked["rate_question"] = True
        if isinstance(error, ClocsError):
            status = (
                404 if isinstance(error, not_found) else 409 if isinstance(error, conflict) else 422
            )
            message = str(error)
        elif isinstance(error, HTTPException):
            status, message, headers = error.status_code, str(error.detail), error.headers
        elif isinstance(error, RequestValidationError):
            first = error.errors()[0]
            where = " ".join(str(part) for part in first["loc"][1:])
            status, message = 422, f"{where}: {first['msg']}"
        elif isinstance(error, ClientDisconnect):  # nobody reads it
            status, message = 400, "the request ended early"
        elif isinstance(error, TooMuchError):
            status, message, headers = error.status, str(error), error.headers
        return JSONResponse({"message": message} | asked, status, headers=headers)

    known = (ClocsError, HTTPException, RequestValidationError, ClientDisconnect, TooMuchError)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, problem)

"""The server: addresses and what answers them. Thin: every answer is made elsewhere.

Static files are read once, at the start: no part of an address ever reaches the file system.
"""

from __future__ import annotations

import csv
import io
import mimetypes
from collections.abc import Callable, Collection, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.formparsers import MultiPartException

from clocs._version import __version__
from clocs.errors import ClocsError
from clocs.explorer import responses, shield
from clocs.explorer.describing import LONGEST
from clocs.explorer.session import NEIGHBOURS, Session, UnknownPatientError
from clocs.explorer.uploads import FILES, read_bounded
from clocs.explorer.visitors import Visitors
from clocs.patients.filters import Where

Code = Annotated[str, Path(pattern="^[0-9a-f]{10}$", description="A patient's pseudonym.")]
UploadCode = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="Of an upload.")]
Number = Annotated[int, Path(ge=0, lt=100_000, description="Of a recording, from 0.")]
K = Annotated[int, Query(ge=1, le=100, description="How many.")]
Start = Annotated[float, Query(ge=0, le=1e6, allow_inf_nan=False, description="In seconds.")]
Seconds = Annotated[float, Query(gt=0, le=LONGEST, allow_inf_nan=False, description="How many.")]
Lead = Annotated[str | None, Query(max_length=24, description="One lead alone, by name.")]
Label = Annotated[str | None, Query(max_length=100, description="Only patients with this label.")]
Age = Annotated[float | None, Query(ge=0, le=150, allow_inf_nan=False, description="In years.")]
Sex = Annotated[Literal["female", "male"] | None, Query(description="Only of this sex.")]
Part = Annotated[Literal["train", "validation", "test"] | None, Query(description="Only of it.")]


def _conditions(
    label: Label = None,
    sex: Sex = None,
    min_age: Age = None,
    max_age: Age = None,
    split: Part = None,
) -> Where:
    return Where(label=label, sex=sex, min_age=min_age, max_age=max_age, split=split)


Conditions = Annotated[Where, Depends(_conditions)]
_BINARY: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    }
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": responses.Problem, "description": words}
    for status, words in {
        400: "Not understood",
        404: "Not here",
        405: "No such verb",
        408: "Too slow",
        413: "Too large",
        422: "Out of range",
    }.items()
}
_MULTIPART = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
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
                    },
                }
            }
        },
    }
}


def make_app(
    session: Session,
    *,
    hosts: Collection[str] | None = shield.LOOPBACK,
    token: str | None = None,
    body_limit: int = shield.BODY_LIMIT,
    body_seconds: float = shield.BODY_SECONDS,
) -> shield.Shield:
    """The whole application, behind its shield."""
    return shield.Shield(
        make_api(session),
        hosts=hosts,
        token=token,
        body_limit=body_limit,
        body_seconds=body_seconds,
    )


def make_api(session: Session) -> FastAPI:
    """The endpoints, without the shield."""
    app = FastAPI(
        title="clocs explorer",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=_PROBLEMS,
    )
    _add_errors(app)
    _add_pages(app, session)
    _add_everybody(app, session)
    _add_patients(app, session)
    _add_uploads(app, Visitors(session))
    return app


def _add_everybody(app: FastAPI, session: Session) -> None:
    @app.get("/api/session")
    def facts() -> responses.SessionFacts:
        """What this session shows."""
        return responses.SessionFacts.model_validate(session.facts())

    @app.get("/api/map", responses=_BINARY, response_class=Response)
    def everybody() -> Response:
        """Places, pseudonyms and columns of all patients, packed (see `clocs.explorer.packing`)."""
        return _binary(session.map())

    @app.get("/api/positions", responses=_BINARY, response_class=Response)
    def positions() -> Response:
        """Places alone, packed."""
        return _binary(session.positions())

    @app.get("/api/projection")
    def projection() -> responses.ProjectionState:
        """How far the map is."""
        return responses.ProjectionState(**vars(session.projection.now()[1]))

    @app.get("/api/distances")
    def distances() -> responses.Histogram:
        """Distances within and between patients."""
        return responses.Histogram.model_validate(session.distances.histogram())

    @app.get("/api/names")
    def names() -> list[str]:
        """What the page calls each patient, in the order of the map; empty without --show-ids."""
        if not session.show_ids:
            return []
        return [str(name) for name in session.embeddings.rows["patient"].to_list()]


def _add_patients(app: FastAPI, session: Session) -> None:
    @app.get("/api/patients/{code}")
    def patient(code: Code) -> responses.Patient:
        """Who, which recordings, and what the classifier says."""
        return responses.Patient.model_validate(session.patient(code))

    @app.get("/api/patients/{code}/recordings/{number}", responses=_BINARY, response_class=Response)
    def signal(
        code: Code, number: Number, start: Start = 0, seconds: Seconds = 60, lead: Lead = None
    ) -> Response:
        """Samples of a recording, packed: int16 with gain and baseline."""
        return _binary(session.signal(code, number, start=start, seconds=seconds, lead=lead))

    @app.get("/api/patients/{code}/neighbours")
    def neighbours(code: Code, where: Conditions, k: K = NEIGHBOURS) -> responses.Neighbours:
        """The most similar patients."""
        return responses.Neighbours.model_validate(session.neighbours(code, k, where))

    @app.get("/api/patients/{code}/neighbours.csv", response_class=Response)
    def neighbours_csv(code: Code, where: Conditions, k: K = NEIGHBOURS) -> Response:
        """The same as a table."""
        near = session.neighbours(code, k, where)["neighbours"]
        headers = {"content-disposition": f'attachment; filename="neighbours-{code}.csv"'}
        return Response(_table(near), media_type="text/csv", headers=headers)


def _add_uploads(app: FastAPI, visitors: Visitors) -> None:
    @app.post("/api/uploads", status_code=201, openapi_extra=_MULTIPART)
    async def upload(request: Request) -> responses.Uploaded:
        """Read one recording (WFDB pair or zip, CSV, .ecg) and place it among the patients."""
        received, rate = await _form(request)
        recording = await run_in_threadpool(read_bounded, received, rate)
        return responses.Uploaded.model_validate(await run_in_threadpool(visitors.place, recording))

    @app.get("/api/uploads/{code}")
    def uploaded(code: UploadCode) -> responses.Uploaded:
        """An upload of this session, as long as it is kept."""
        return responses.Uploaded.model_validate(visitors.upload(code))

    @app.get("/api/uploads/{code}/signal", responses=_BINARY, response_class=Response)
    def upload_signal(
        code: UploadCode, start: Start = 0, seconds: Seconds = 60, lead: Lead = None
    ) -> Response:
        """Samples of an upload, packed."""
        return _binary(visitors.signal(code, start=start, seconds=seconds, lead=lead))


async def _form(request: Request) -> tuple[dict[str, bytes], float | None]:
    """Files by name, and the rate; anything else in the form is refused."""
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise HTTPException(422, "send the files as multipart/form-data, each as `files`")
    try:
        async with request.form(max_files=FILES, max_fields=2) as form:
            received: dict[str, bytes] = {}
            for value in form.getlist("files"):
                if not isinstance(value, UploadFile):
                    raise HTTPException(422, "`files` should hold files, each with its name")
                name = value.filename or "file"
                if name in received:
                    raise HTTPException(422, f"two files are called {name[:100]}; send each once")
                received[name] = await value.read()
            text = form.get("rate")
    except (MultiPartException, StarletteHTTPException) as error:
        raise HTTPException(422, getattr(error, "detail", None) or str(error)) from None
    if not received:
        raise HTTPException(422, "there is no file in it; send one recording")
    if text is None or text == "":
        return received, None
    try:
        rate = float(text) if isinstance(text, str) else np.nan
    except ValueError:
        rate = np.nan
    if not 10 <= rate <= 10_000:
        raise HTTPException(422, "the rate should be 10 to 10,000 samples a second")
    return received, rate


def _add_pages(app: FastAPI, session: Session) -> None:
    static = dict(_static())

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return static["index.html"]()

    @app.get("/static/{name:path}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in static:
            raise HTTPException(404, "there is no such file")
        return static[name]()

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return static["icon.svg"]()

    @app.get("/report", include_in_schema=False)
    def report() -> Response:
        if session.report is None:
            raise HTTPException(404, "no report was given; start with --runs RUNS")
        headers = {"content-security-policy": shield.REPORT_CSP}
        return Response(session.report.read_bytes(), media_type="text/html", headers=headers)


def _static() -> Iterator[tuple[str, Callable[[], Response]]]:
    def walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry, f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name, entry

    def answer(content: bytes, kind: str) -> Callable[[], Response]:
        return lambda: Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    for name, entry in walk(files("clocs.explorer") / "static", ""):
        kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
        yield name, answer(entry.read_bytes(), kind or "text/plain")


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(UnknownPatientError)
    async def unknown(request: Request, error: UnknownPatientError) -> JSONResponse:
        return _problem(404, str(error))

    @app.exception_handler(ClocsError)
    async def ours(request: Request, error: ClocsError) -> JSONResponse:
        return _problem(422, str(error))

    @app.exception_handler(StarletteHTTPException)
    async def http(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return _problem(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = " ".join(str(part) for part in first["loc"][1:])
        return _problem(422, f"{where}: {first['msg']}")

    @app.exception_handler(shield.TooMuchError)
    async def too_much(request: Request, error: shield.TooMuchError) -> JSONResponse:
        return _problem(error.status, str(error), {"connection": "close"})

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return _problem(500, "something went wrong here; the terminal says what")


def _problem(status: int, message: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"message": message}, status, headers=headers)


def _binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


def _table(rows: list[dict[str, Any]]) -> str:
    """CSV; a text that a spreadsheet would take for a formula gets an apostrophe."""
    text = io.StringIO()
    columns = ("code", "name", "dataset", "labels", "split", "age", "sex", "cosine", "distance")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("rank", *columns))
    for rank, row in enumerate(rows, 1):
        values = [";".join(row[c]) if c == "labels" else row[c] for c in columns]
        safe = [f"'{v}" if isinstance(v, str) and v[:1] in tuple("=+-@\t\r") else v for v in values]
        writer.writerow((rank, *("" if v is None else v for v in safe)))
    return text.getvalue()

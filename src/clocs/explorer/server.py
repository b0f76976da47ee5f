"""The server: a thin layer of endpoints over a session and its uploads.

Static files are read once, at the start: no part of a URL ever reaches the file system.
"""

from __future__ import annotations

import mimetypes
from importlib.resources import files
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response

from clocs._version import __version__
from clocs.explorer import responses
from clocs.explorer.beats import packed_beats
from clocs.explorer.cohort_api import add_cohorts
from clocs.explorer.cohort_folder import NameTakenError, UnknownCohortError
from clocs.explorer.heart_rates import RatesState
from clocs.explorer.patient_map import ProjectionState
from clocs.explorer.rooms import add_rooms
from clocs.explorer.seen import Source
from clocs.explorer.session import NEIGHBORS, NotFoundError, Session
from clocs.explorer.signals import LONGEST, packed_signal
from clocs.explorer.uploads import Uploads
from clocs.files import csv_text
from clocs.patients.filters import Where
from clocs.recording import Recording
from clocs.web import shield
from clocs.web.body_reader import BodyReader
from clocs.web.shield import Problem, add_problems
from clocs.web.uploads import FORM, read_one

Code = Annotated[str, Path(pattern="^[0-9a-f]{10}$", description="A patient's pseudonym.")]
UploadCode = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="An upload's code.")]
Number = Annotated[int, Path(ge=0, lt=100_000, description="Number of a recording, from 0.")]
K = Annotated[int, Query(ge=1, le=100, description="Number of neighbours.")]
Start = Annotated[float, Query(ge=0, le=1e6, allow_inf_nan=False, description="Seconds.")]
Seconds = Annotated[float, Query(gt=0, le=LONGEST, allow_inf_nan=False, description="Length.")]
Lead = Annotated[str | None, Query(max_length=24, description="Only this lead.")]
Model = Annotated[int, Query(ge=0, lt=1000, description="Place among the session's `models`.")]
Explained = Annotated[
    str | None, Query(max_length=200, description="Label; the most probable one by default.")
]
Label = Annotated[str | None, Query(max_length=100, description="Only patients with this label.")]
Age = Annotated[float | None, Query(ge=0, le=150, allow_inf_nan=False, description="Years.")]
Sex = Annotated[Literal["female", "male"] | None, Query(description="Only this sex.")]
Kind = Annotated[Literal["pca", "umap"] | None, Query(description="Projection.")]
Part = Annotated[Literal["train", "validation", "test"] | None, Query(description="Only it.")]


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
    status: {"model": Problem} for status in (400, 404, 405, 408, 409, 413, 422, 503)
}
_UPLOAD = {"requestBody": {"required": True, "content": {"multipart/form-data": FORM}}}


def make_api(session: Session) -> FastAPI:
    """The endpoints; `shield.Shield` protects them."""
    app = FastAPI(
        title="clocs explorer",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=_PROBLEMS,
    )
    add_problems(app, not_found=(NotFoundError, UnknownCohortError), conflict=NameTakenError)
    _add_pages(app, session)
    _add_session(app, session)
    _add_patients(app, session)
    _add_uploads(app, session, Uploads(session))
    add_cohorts(app, session)
    add_rooms(app, session, _BINARY)
    return app


def _add_session(app: FastAPI, session: Session) -> None:
    @app.get("/api/session")
    def facts() -> responses.SessionFacts:
        """About the session."""
        return responses.SessionFacts.model_validate(session.facts())

    @app.get("/api/map", responses=_BINARY, response_class=Response)
    def everyone() -> Response:
        """Positions, pseudonyms and columns of all patients (see `clocs.web.packing`)."""
        return _binary(session.map())

    @app.get("/api/positions", responses=_BINARY, response_class=Response)
    def positions(kind: Kind = None) -> Response:
        """Positions only, packed; on request of the other projection than the map's."""
        return _binary(session.positions(kind))

    @app.get("/api/projection")
    def projection() -> ProjectionState:
        """Which projection the map shows, and the progress of UMAP."""
        return session.projection.now()[1]

    @app.get("/api/heart-rates")
    def heart_rates() -> RatesState:
        """How far the measuring of heart rates is."""
        return session.heart_rates.now()[1]

    @app.get("/api/heart-rates/values", responses=_BINARY, response_class=Response)
    def rates() -> Response:
        """Heart rates of all patients, in the order of the map, packed."""
        return _binary(session.rates())

    @app.get("/api/distances")
    def distances() -> responses.Histogram:
        """Distances within and between patients."""
        return responses.Histogram.model_validate(session.distances.histogram())

    @app.get("/api/names")
    def names() -> list[str]:
        """Patients' own IDs, in the order of the map; empty unless `show_ids` is set."""
        if not session.show_ids:
            return []
        return [str(name) for name in session.embeddings.rows["patient"].to_list()]


def _add_patients(app: FastAPI, session: Session) -> None:
    @app.get("/api/patients/{code}")
    def patient(code: Code) -> responses.Patient:
        """A patient's facts, recordings and predicted classes."""
        return responses.Patient.model_validate(session.patient(code))

    @app.get("/api/patients/{code}/recordings/{number}", responses=_BINARY, response_class=Response)
    def signal(
        code: Code, number: Number, start: Start = 0, seconds: Seconds = 60, lead: Lead = None
    ) -> Response:
        """Samples of a recording, packed: int16 with gain and baseline."""
        return _binary(packed_signal(session.recording(code, number), start, seconds, lead))

    @app.get(
        "/api/patients/{code}/recordings/{number}/beats",
        responses=_BINARY,
        response_class=Response,
    )
    def beats(code: Code, number: Number) -> Response:
        """Heart rate, R peaks and the average beat of a recording, packed."""
        return _binary(packed_beats(session.recording(code, number)))

    @app.get("/api/patients/{code}/recordings/{number}/predictions")
    def predictions(code: Code, number: Number) -> list[responses.ModelPrediction]:
        """What the saved classifiers predict for a recording."""
        return _predicted(session, session.source(code, number))

    @app.get(
        "/api/patients/{code}/recordings/{number}/explanation",
        responses=_BINARY,
        response_class=Response,
    )
    def explanation(
        code: Code, number: Number, model: Model = 0, label: Explained = None
    ) -> Response:
        """How much each moment of each lead speaks for a label, packed."""
        recording = session.recording(code, number)
        return _binary(session.predictor().explain(model, recording, label))

    @app.get("/api/patients/{code}/distances/{other}")
    def apart(code: Code, other: Code) -> responses.Distance:
        """How far apart any two patients are."""
        return responses.Distance.model_validate(session.apart(code, other))

    @app.get("/api/patients/{code}/neighbours")
    def neighbours(code: Code, where: Conditions, k: K = NEIGHBORS) -> responses.Neighbors:
        """The most similar patients."""
        return responses.Neighbors.model_validate(session.neighbours(code, k, where))

    @app.get("/api/patients/{code}/neighbours.csv", response_class=Response)
    def neighbors_csv(code: Code, where: Conditions, k: K = NEIGHBORS) -> Response:
        """The same as CSV."""
        near = session.neighbours(code, k, where)["neighbours"]
        headers = {"content-disposition": f'attachment; filename="neighbours-{code}.csv"'}
        return Response(_table(near), media_type="text/csv", headers=headers)


def _add_uploads(app: FastAPI, session: Session, uploads: Uploads) -> None:
    reader = BodyReader(read_one)
    users = CapacityLimiter(2)  # so that uploads do not keep other requests waiting

    @app.post("/api/uploads", status_code=201, openapi_extra=_UPLOAD)
    async def upload(request: Request) -> responses.Uploaded:
        """Read one recording and compare it with the patients."""
        kind = request.headers.get("content-type", "")
        if not kind.lower().startswith("multipart/form-data"):
            raise HTTPException(422, "send the files as multipart/form-data, each as `files`")
        (recording,) = (await reader.receive(request, {"type": kind})).recordings
        assert isinstance(recording, Recording)  # a single one is read or refused
        made = await to_thread.run_sync(uploads.add, recording, limiter=users)
        return responses.Uploaded.model_validate(made)

    @app.get("/api/uploads/{code}")
    def uploaded(code: UploadCode) -> responses.Uploaded:
        """A recent upload to this session."""
        return responses.Uploaded.model_validate(uploads.facts(code))

    @app.get("/api/uploads/{code}/signal", responses=_BINARY, response_class=Response)
    def upload_signal(
        code: UploadCode, start: Start = 0, seconds: Seconds = 60, lead: Lead = None
    ) -> Response:
        """Samples of an upload, packed."""
        return _binary(packed_signal(uploads.recording(code), start, seconds, lead))

    @app.get("/api/uploads/{code}/beats", responses=_BINARY, response_class=Response)
    def upload_beats(code: UploadCode) -> Response:
        """Heart rate, R peaks and the average beat of an upload, packed."""
        return _binary(packed_beats(uploads.recording(code)))

    @app.get("/api/uploads/{code}/predictions")
    def upload_predictions(code: UploadCode) -> list[responses.ModelPrediction]:
        """What the saved classifiers predict for an upload."""
        return _predicted(session, Source(uploads.recording(code)))

    @app.get("/api/uploads/{code}/explanation", responses=_BINARY, response_class=Response)
    def upload_explanation(code: UploadCode, model: Model = 0, label: Explained = None) -> Response:
        """How much each moment of each lead of an upload speaks for a label, packed."""
        return _binary(session.predictor().explain(model, uploads.recording(code), label))


def _add_pages(app: FastAPI, session: Session) -> None:
    static = {
        file.name: file.read_bytes() for file in (files("clocs.explorer") / "static").iterdir()
    }

    def response(name: str) -> Response:
        kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
        headers = {"cache-control": "no-cache"}
        return Response(static[name], media_type=kind or "text/plain", headers=headers)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return response("index.html")

    @app.get("/static/{name:path}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in static:
            raise HTTPException(404, "no such file")
        return response(name)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return response("icon.svg")

    @app.get("/report", include_in_schema=False)
    def report() -> Response:
        if session.report is None:
            raise HTTPException(404, "there is no report; start the explorer with `runs`")
        headers = {"content-security-policy": shield.REPORT_CSP}
        return Response(session.report.read_bytes(), media_type="text/html", headers=headers)


def _predicted(session: Session, source: Source) -> list[responses.ModelPrediction]:
    made = session.predictor().predict(source, show_ids=session.show_ids)
    return [responses.ModelPrediction.model_validate(one) for one in made]


def _binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


def _table(rows: list[dict[str, Any]]) -> str:
    columns = ("code", "name", "dataset", "labels", "split", "age", "sex", "distance", "euclidean")
    named = (one | {"distance": one["cosine"], "euclidean": one["distance"]} for one in rows)
    ranked = ([rank, *(one[name] for name in columns)] for rank, one in enumerate(named, 1))
    return csv_text(("rank", *columns), ranked)

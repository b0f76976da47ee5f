"""The server: a thin layer of endpoints over a session and its uploads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from pydantic import BaseModel, Field

from clocs._version import __version__
from clocs.explorer import groups
from clocs.explorer.columns import Columns
from clocs.explorer.measured import shown_measurements
from clocs.explorer.patient_map import ProjectionState
from clocs.explorer.predictions import ShownRecording
from clocs.explorer.quality import Quality
from clocs.explorer.session import (
    NEIGHBORS,
    NotFoundError,
    Session,
    packed_beats,
)
from clocs.explorer.training_runs import log_lines, run_facts, run_folders
from clocs.explorer.uploads import Uploads
from clocs.files import csv_text
from clocs.recording import Recording
from clocs.web import shield
from clocs.web.body_reader import BodyReader
from clocs.web.packing import LONGEST, pack, packed_signal
from clocs.web.pages import add_pages
from clocs.web.uploads import FORM, read_posted

_CODE = "^[0-9a-f]{10}$"
Code = Annotated[str, Path(pattern=_CODE, description="A pseudonym.")]
UploadCode = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="An upload's code.")]
Number = Annotated[int, Path(ge=0, lt=100_000, description="Number of a recording, from 0.")]
K = Annotated[int, Query(ge=1, le=100, description="Number of neighbors.")]
Start = Annotated[float, Query(ge=0, le=1e6, allow_inf_nan=False, description="Seconds.")]
Seconds = Annotated[float, Query(gt=0, le=LONGEST, allow_inf_nan=False, description="Length.")]
Lead = Annotated[str | None, Query(max_length=24, description="Only this lead.")]
Model = Annotated[int, Query(ge=0, lt=1000, description="Place among the session's `models`.")]
Explained = Annotated[
    str | None, Query(max_length=200, description="Label; the most probable one by default.")
]
Kind = Annotated[Literal["pca", "umap"] | None, Query(description="Projection.")]
Encoder = Annotated[int, Query(ge=0, lt=1000, description="Place among `encoders`.")]
CohortName = Annotated[str, Path(max_length=200, description="A cohort's name.")]
RunName = Annotated[str, Query(max_length=400, description="A run, as listed.")]
Codes = Annotated[
    list[Annotated[str, Field(pattern=_CODE)]], Field(min_length=1, max_length=2_000_000)
]


class Group(BaseModel):
    codes: Codes  # pseudonyms


class TwoGroups(BaseModel):
    first: Codes
    second: Codes


class Name(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=200)]


class NewCohort(Group, Name):
    replace: bool = False  # a cohort of this name


_OCTETS = {"schema": {"type": "string", "format": "binary"}}
_BINARY: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: {"content": {"application/octet-stream": _OCTETS}}},
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": shield.Problem} for status in (400, 404, 405, 408, 409, 413, 422, 503)
}
_UPLOAD = {"requestBody": {"required": True, "content": {"multipart/form-data": FORM}}}
_NEIGHBOR_COLUMNS = ("code", "name", "dataset", "labels", "split", "age", "sex")


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
    shield.add_problems(app, not_found=NotFoundError, conflict=groups.NameTakenError)
    uploads = Uploads(session)

    def of_patient(code: Code, number: Number) -> ShownRecording:
        return session.source(code, number)

    def of_upload(code: UploadCode) -> ShownRecording:
        return ShownRecording(uploads.get(code).recording)

    _add_pages(app, session)
    _add_session(app, session)
    _add_patients(app, session)
    _add_recordings(app, session, "/api/patients/{code}/recordings/{number}", of_patient)
    _add_uploads(app, uploads)
    _add_recordings(app, session, "/api/uploads/{code}", of_upload)
    _add_groups(app, session)
    _add_tabs(app, session)
    return app


def _add_session(app: FastAPI, session: Session) -> None:
    further = Columns(session)

    @app.get("/api/session")
    def facts() -> dict[str, Any]:
        """About the session."""
        return session.to_dict()

    @app.get("/api/map", **_BINARY)
    def everyone() -> Response:
        """Positions, pseudonyms and columns of all patients (see `clocs.web.packing`)."""
        return _binary(session.map())

    @app.get("/api/positions", **_BINARY)
    def positions(kind: Kind = None, encoder: Encoder = 0) -> Response:
        """Positions only, packed; on request of the other projection than the map's."""
        return _binary(session.positions(kind, encoder))

    @app.get("/api/projection")
    def projection(encoder: Encoder = 0) -> ProjectionState:
        """Which projection the map shows, and the progress of UMAP."""
        return session.projection_of(encoder).now[1]

    @app.get("/api/columns", **_BINARY)
    def columns() -> Response:
        """Further columns of all patients, packed: measured, of stores, and predicted once made."""
        return _binary(pack(*further.packed()))

    @app.get("/api/distances")
    def distances() -> dict[str, Any]:
        """Distances within and between patients."""
        return session.distances.histogram()

    @app.get("/api/names")
    def names() -> list[str]:
        """Patients' own IDs, in the order of the map; empty unless `show_ids` is set."""
        if not session.show_ids:
            return []
        return [str(name) for name in session.embeddings.rows["patient"].to_list()]


def _add_patients(app: FastAPI, session: Session) -> None:
    @app.get("/api/patients/{code}")
    def patient(code: Code) -> dict[str, Any]:
        """A patient's facts, recordings and predicted classes."""
        return session.patient(code)

    @app.get("/api/patients/{code}/distances/{other}")
    def apart(code: Code, other: Code) -> dict[str, Any]:
        """How far apart any two patients are."""
        return session.apart(code, other)

    @app.get("/api/patients/{code}/neighbors")
    def neighbors(code: Code, k: K = NEIGHBORS) -> dict[str, Any]:
        """The most similar patients."""
        return session.neighbors(code, k)

    @app.get("/api/patients/{code}/neighbors.csv", response_class=Response)
    def neighbors_csv(code: Code, k: K = NEIGHBORS) -> Response:
        """The same as CSV."""
        rows = [
            [rank, *(one[name] for name in _NEIGHBOR_COLUMNS), one["cosine"], one["distance"]]
            for rank, one in enumerate(session.neighbors(code, k)["neighbors"], 1)
        ]
        heads = ("rank", *_NEIGHBOR_COLUMNS, "distance", "euclidean")
        return _csv(f"neighbors-{code}", heads, rows)


def _add_recordings(
    app: FastAPI, session: Session, prefix: str, find: Callable[..., ShownRecording]
) -> None:
    """What is shown of one recording: of a patient's, or of an upload."""
    found: Any = Depends(find)

    @app.get(f"{prefix}/signal", **_BINARY)
    def signal(
        source: ShownRecording = found, start: Start = 0, seconds: Seconds = 60, lead: Lead = None
    ) -> Response:
        """Samples of a recording, packed: int16 with gain and baseline.

        Limb leads that were not recorded are derived from I and II.
        """
        whole = source.recording
        shown = whole.with_limb_leads() if lead is None else whole.select([lead])
        return _binary(packed_signal(shown, start, seconds))

    @app.get(f"{prefix}/beats", **_BINARY)
    def beats(source: ShownRecording = found) -> Response:
        """R peaks and the average beat of a recording, packed."""
        return _binary(packed_beats(source.recording))

    @app.get(f"{prefix}/measurements")
    def measurements(source: ShownRecording = found) -> dict[str, Any]:
        """Waves, intervals, axes and quality of the first minute of a recording."""
        return shown_measurements(source.recording)

    @app.get(f"{prefix}/predictions")
    def predictions(source: ShownRecording = found) -> list[dict[str, Any]]:
        """What the saved classifiers predict for a recording."""
        return session.predictor().predict(source)

    @app.get(f"{prefix}/explanation", **_BINARY)
    def explanation(
        source: ShownRecording = found, model: Model = 0, label: Explained = None
    ) -> Response:
        """How much each moment of each lead speaks for a label, packed."""
        return _binary(session.predictor().explain(model, source.recording, label))


def _add_uploads(app: FastAPI, uploads: Uploads) -> None:
    reader = BodyReader(read_posted)
    users = CapacityLimiter(2)  # so that uploads do not keep other requests waiting

    @app.post("/api/uploads", status_code=201, openapi_extra=_UPLOAD)
    async def upload(request: Request) -> dict[str, Any]:
        """Read one recording and compare it with the patients."""
        kind = request.headers.get("content-type", "")
        if not kind.lower().startswith("multipart/form-data"):
            raise HTTPException(422, "send the files as multipart/form-data, each as `files`")
        (recording,) = (await reader.receive(request, {"type": kind})).recordings
        assert isinstance(recording, Recording)  # a single one is read or refused
        return await to_thread.run_sync(uploads.add, recording, limiter=users)

    @app.get("/api/uploads/{code}")
    def uploaded(code: UploadCode) -> dict[str, Any]:
        """A recent upload to this session."""
        return uploads.facts(code)


def _add_groups(app: FastAPI, session: Session) -> None:
    @app.get("/api/cohorts")
    def saved() -> list[dict[str, Any]]:
        """The saved cohorts."""
        return groups.list_cohorts(session)

    @app.post("/api/cohorts", status_code=201)
    def save(new: NewCohort) -> dict[str, Any]:
        """Save patients under a name; 409 where it is taken, unless to replace that cohort."""
        patients = map(session.ids, new.codes)
        name = groups.save_cohort(session.cohorts, new.name, patients, replace=new.replace)
        return groups.saved_cohort(session, name)

    @app.get("/api/cohorts/{name}")
    def cohort(name: CohortName) -> dict[str, Any]:
        """The patients of a saved cohort."""
        return groups.saved_cohort(session, name)

    @app.patch("/api/cohorts/{name}")
    def rename(name: CohortName, new: Name) -> dict[str, Any]:
        """Give a saved cohort another name; 409 where it is taken."""
        return groups.saved_cohort(session, groups.rename_cohort(session.cohorts, name, new.name))

    @app.delete("/api/cohorts/{name}", status_code=204)
    def remove(name: CohortName) -> None:
        """Delete a saved cohort."""
        groups.remove_cohort(session.cohorts, name)

    @app.post("/api/groups/comparison")
    def comparison(two: TwoGroups) -> dict[str, Any]:
        """Two groups in shares and means, with 95 % intervals."""
        return groups.compare(session, [two.first, two.second])

    @app.post("/api/groups/beats")
    def beats(group: Group) -> dict[str, Any]:
        """The average beat of a group, lead by lead."""
        return groups.average_beats(session, group.codes)

    @app.post("/api/groups/table", response_class=Response)
    def table(group: Group) -> Response:
        """A group as CSV, one row per patient; column `patient` has IDs, where they are shown."""
        who = ("patient", "labels", "split") if session.show_ids else ("code", "labels")
        columns = ("dataset", *who, "age", "sex")
        rows = [session.summary(row) for row in sorted({session.row(one) for one in group.codes})]
        listed = [one | {"patient": one["name"]} for one in rows]
        measured = [session.measured_of(one["row"]).values() for one in rows]
        cells = [[one[name] for name in columns] for one in listed]
        table = [[*own, *more] for own, more in zip(cells, measured, strict=True)]
        return _csv("group", (*columns, *session.measured), table)


def _add_tabs(app: FastAPI, session: Session) -> None:
    """The tabs beside that of the patients: quality and training."""
    quality = Quality(session)

    @app.get("/api/runs")
    def runs() -> list[dict[str, Any]]:
        """Trainings in the folder of runs."""
        found = {} if session.runs is None else run_folders(session.runs)
        return [run_facts(name, folder) for name, folder in found.items()]

    @app.get("/api/runs/log")
    def log(name: RunName) -> list[dict[str, Any]]:
        """Metrics of every epoch of a training."""
        folder = None if session.runs is None else run_folders(session.runs).get(name)
        if folder is None:
            raise NotFoundError("there is no such run; start the explorer with `runs`")
        return log_lines(folder)

    @app.get("/api/quality")
    def left_out() -> list[dict[str, Any]]:
        """What was quarantined or left out, by dataset and reason."""
        return quality.datasets

    @app.get("/api/quality/{code}", **_BINARY)
    def signal(code: Code) -> Response:
        """Samples of a listed recording with its gaps, flat and clipped parts, packed."""
        return _binary(quality.signal(code))


def _add_pages(app: FastAPI, session: Session) -> None:
    add_pages(app, {"/": "index.html"}, "clocs.web", "clocs.explorer")

    @app.get("/report", include_in_schema=False)
    def report() -> Response:
        if session.report is None:
            raise HTTPException(404, "there is no report; start the explorer with `runs`")
        headers = {"content-security-policy": shield.REPORT_CSP}
        return Response(session.report.read_bytes(), media_type="text/html", headers=headers)


def _csv(name: str, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return Response(csv_text(columns, rows), media_type="text/csv", headers=headers)


def _binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")

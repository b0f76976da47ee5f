"""The endpoints of the service: a thin layer that receives, asks the service and responds."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from pydantic import BaseModel

from clocs._version import __version__
from clocs.errors import ClocsError
from clocs.service.bodies import KINDS, SentRecording, example_body, plain_kind
from clocs.service.service import Computation, Level, Service, UnknownModelError
from clocs.web.packing import LONGEST, packed_signal
from clocs.web.pages import add_pages
from clocs.web.shield import Problem, add_problems
from clocs.web.uploads import FORM, Posted

_TEXT = {"text/plain": {"schema": {"type": "string"}, "example": "clocs_ready 1.0\n"}}
_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "description": "`clocs serve` prints it at the start; with `--token none` there is none.",
}
_OPEN: dict[str, Any] = {"security": []}  # needs no token
_T = TypeVar("_T")

ModelName = Annotated[str, Path(description="As in `/models`.", examples=["cmsc-chapman"])]
K = Annotated[int, Query(ge=1, le=100, description="Number of neighbors.")]
SearchLevel = Annotated[Level, Query(description="What to search.")]
Rate = Annotated[float | None, Query(ge=50, le=10_000, description="Of an array: in Hz.")]
Leads = Annotated[str | None, Query(description="Of an array: names, separated by commas.")]
Unit = Annotated[str | None, Query(description="Of an array; mV by default.")]


# Not async, it would be called in a thread.
async def _array(rate: Rate = None, leads: Leads = None, unit: Unit = None) -> dict[str, Any]:
    return {"rate": rate, "leads": leads, "unit": unit}


Array = Annotated[dict[str, Any], Depends(_array)]


Status = dict[str, str]


class Model(BaseModel):
    name: str
    kind: str  # 'encoder' or 'classifier'
    leads: list[str]  # of which a recording needs one
    seconds: float  # of a frame, the shortest recording
    rate: float  # in Hz, to which recordings are resampled
    dimensions: int  # of an embedding
    labels: list[str]  # of a classifier, in the order of its card
    card: dict[str, Any]


class Models(BaseModel):
    models: list[Model]


class ReadAs(BaseModel):
    """How the recording was read."""

    rate: float  # in Hz
    unit: str
    leads_used: list[str]  # that have a signal
    leads_missing: list[str]  # of the model's: not there, or flat throughout
    leads_derived: list[str]  # of those used: computed from I and II
    notes: list[str]  # what was assumed or left out, and what may be wrong with it


class Embedding(ReadAs):
    embedding: list[float]  # a unit vector


class Prediction(ReadAs):
    probabilities: dict[str, float]  # calibrated, by label
    predicted: str | list[str] | None  # a list where there can be several; None if it abstains
    abstained: str | None  # why nothing is predicted
    ecg_share: float  # how much of the signal's power looks like an ECG, 0 to 1
    distance: float | None  # from the training recordings


class Neighbor(BaseModel):
    dataset: str | None
    labels: list[str]
    patient: str | None = None  # this and the next only if the service shows IDs
    recording: str | None = None
    age: float | None = None
    sex: str | None = None
    split: str | None = None
    distance: float  # cosine distance, 0 to 2
    euclidean: float  # distance of unit vectors


class Neighbors(ReadAs):
    neighbors: list[Neighbor]  # nearest first


class MeasuredValue(BaseModel):
    """The median of beats with its 95 % interval, or the reason why there is none."""

    value: float | None
    low: float | None
    high: float | None
    reason: str | None
    unit: str


class MeasuredRecording(BaseModel):
    """What was measured; all times in seconds."""

    beats: list[float]
    values: dict[str, MeasuredValue]  # heart_rate, pr, qrs, qt, …
    waves: dict[str, dict[str, list[list[float]]]]  # by lead and 'p', 'qrs' or 't': onset to offset
    notes: list[str]  # what was assumed, and what may be wrong with it


class ResultList(BaseModel, Generic[_T]):
    """Of a batch."""

    results: list[_T | Problem]  # one per recording, in order


def make_api(service: Service) -> FastAPI:
    """The endpoints; `clocs.web.shield` protects them."""
    app = FastAPI(
        title="clocs service",
        description="Embeddings, predictions, measurements and neighbors of ECGs.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    add_problems(app, not_found=UnknownModelError)
    add_pages(app, {"/": "service.html", "/docs": "docs.html"}, "clocs.web", "clocs.service")
    _name_the_token(app)
    _add_state(app, service)
    _add_computations(app, service)
    return app


def _name_the_token(app: FastAPI) -> None:
    """Say in OpenAPI how the token is sent."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        made = described()
        made["components"]["securitySchemes"] = {"token": _TOKEN}
        made["security"] = [{"token": []}]
        return made

    app.openapi = openapi  # type: ignore[method-assign]


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health", openapi_extra=_OPEN)
    async def health() -> Status:
        """Whether the service is alive; for a supervisor that restarts it."""
        return {"status": "alive"}

    @app.get("/ready", openapi_extra=_OPEN, responses={503: {"model": Status}})
    async def ready(response: Response) -> Status:
        """Whether requests are accepted: 503 while loading and while shutting down."""
        if service.state != "ready":
            response.status_code = 503
        return {"status": service.state}

    @app.get("/metrics", response_class=Response, responses={200: {"content": _TEXT}})
    async def metrics() -> Response:
        """Requests, recordings, batches and the queue, for Prometheus."""
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(service.metrics.text(), media_type=kind)

    @app.get("/models", responses={503: {"model": Problem}})
    async def models() -> Models:
        """The models with their cards."""
        service.expect_ready()
        return Models(models=[Model(**model.to_dict()) for model in service.models.values()])


def _add_computations(app: FastAPI, service: Service) -> None:
    async def received(request: Request, query: dict[str, Any]) -> Posted:
        kind = request.headers.get("content-type", "")
        if plain_kind(kind) not in KINDS:
            raise HTTPException(
                415,
                "send the ECG as application/json, application/x-npy or application/x-npz, or "
                "files as multipart/form-data",
            )
        facts = {"type": kind, "query": query, "limits": service.limits}
        return await service.reader.receive(request, facts)

    async def answer(request: Request, task: Computation, query: dict[str, Any]) -> Response:
        service.expect_ready()
        service.served(task)  # an unknown model is refused before the body is received
        service.batcher.expect_room()
        posted = await received(request, query)
        results = await service.run(task, posted.recordings)
        unusable = sum(isinstance(one, ClocsError) for one in results)
        counted = service.metrics.recordings
        counted.labels(task.endpoint, "unusable").inc(unusable)
        counted.labels(task.endpoint, "answered").inc(len(results) - unusable)
        listed = [{"message": str(one)} if isinstance(one, ClocsError) else one for one in results]
        if posted.names:
            listed = [{"name": name} | one for name, one in zip(posted.names, listed, strict=True)]
        made = {"results": listed} if posted.several else listed[0]
        status = 422 if unusable and not posted.several else 200
        return Response(msgspec.json.encode(made), status, media_type="application/json")

    @app.post("/signal", include_in_schema=False)
    async def signal(request: Request, array: Array) -> Response:
        """The first recording as it was read, packed, for the page that draws it."""
        service.expect_ready()
        recording = (await received(request, array)).recordings[0]
        if isinstance(recording, ClocsError):
            raise recording
        drawn = packed_signal(recording.with_limb_leads(), 0, LONGEST)
        return Response(drawn, media_type="application/octet-stream")

    described: dict[str, Any] = {
        "response_class": Response,
        "openapi_extra": {"requestBody": _request_body(service.limits.recordings)},
    }

    @app.post("/models/{name}/embedding", responses=_responses(Embedding), **described)
    async def embedding(request: Request, name: ModelName, array: Array) -> Response:
        """The embedding of an ECG, or of each of a batch."""
        return await answer(request, Computation("embedding", name), array)

    @app.post("/models/{name}/prediction", responses=_responses(Prediction), **described)
    async def prediction(request: Request, name: ModelName, array: Array) -> Response:
        """The classes that a classifier predicts for an ECG, or for each of a batch."""
        return await answer(request, Computation("prediction", name), array)

    @app.post("/measurements", responses=_responses(MeasuredRecording), **described)
    async def measurements(request: Request, array: Array) -> Response:
        """Waves, intervals, axes and amplitudes of an ECG, or of each of a batch."""
        return await answer(request, Computation("measurements"), array)

    @app.post("/neighbors", responses=_responses(Neighbors), **described)
    async def neighbors(
        request: Request, array: Array, k: K = 10, level: SearchLevel = "patient"
    ) -> Response:
        """The patients or recordings of the index that are nearest to an ECG."""
        return await answer(request, Computation("neighbors", k=k, level=level), array)


def _responses(one: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Those of an endpoint that computes: of one recording or a batch, and its problems."""
    problems = (401, 404, 408, 413, 415, 422, 429, 503)
    made: dict[int | str, dict[str, Any]] = {200: {"model": one | ResultList[one]}}  # type: ignore[valid-type]
    return made | {status: {"model": Problem} for status in problems}


def _request_body(most: int) -> dict[str, Any]:
    """What the endpoints that compute accept; at most so many recordings."""
    recording = msgspec.json.schema(SentRecording)["$defs"]["SentRecording"]
    listed = {"type": "array", "minItems": 1, "maxItems": most, "items": recording}
    batch = {
        "type": "object",
        "required": ["recordings"],
        "additionalProperties": False,
        "properties": {"recordings": listed},
    }
    one = example_body()
    examples = {
        "one": {"summary": "One recording of lead II", "value": one},
        "batch": {"summary": "Two recordings", "value": {"recordings": [one, one]}},
    }
    about = {
        "application/x-npy": "A file of numpy.save: (leads, samples), or (recordings, leads, "
        "samples); rate, leads and unit are in the address",
        "application/x-npz": "A file of numpy.savez with `signal`; `rate`, `leads` and `unit` "
        "there or in the address",
        "multipart/form-data": "The files of recordings; of several, each result has a `name`",
    }
    binary = {"schema": {"type": "string", "format": "binary"}}
    content: dict[str, Any] = {
        kind: (FORM if kind == "multipart/form-data" else binary)
        | {"examples": {"file": {"summary": summary}}}
        for kind, summary in about.items()
    }
    content["application/json"] = {"schema": {"oneOf": [recording, batch]}, "examples": examples}
    return {"required": True, "content": content}

"""The endpoints of the service: a thin layer that receives, asks the service and responds."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel

from clocs._version import __version__
from clocs.errors import ClocsError
from clocs.service import descriptions
from clocs.service.models import Result, ServedIndex, ServedModel
from clocs.service.service import Embed, Predict, Search, Service, Task, UnknownModelError
from clocs.web.shield import add_problems
from clocs.web.uploads import Posted

_TEXT = {"text/plain": {"schema": {"type": "string"}, "example": "clocs_ready 1.0\n"}}


def make_api(service: Service) -> FastAPI:
    """The endpoints; `clocs.web.shield` protects them."""
    app = FastAPI(
        title="clocs service",
        description="Embeddings, predictions and neighbours of ECGs.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    add_problems(app, not_found=UnknownModelError)
    _add_state(app, service)
    _add_computations(app, service)
    return app


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> descriptions.Status:
        """Whether the service is alive; for a supervisor that restarts it."""
        return descriptions.Status(status="alive")

    @app.get("/ready", responses={503: {"model": descriptions.Status}})
    async def ready(response: Response) -> descriptions.Status:
        """Whether requests are accepted: 503 while loading and while shutting down."""
        if service.state != "ready":
            response.status_code = 503
        return descriptions.Status(status=service.state)

    @app.get("/metrics", response_class=Response, responses={200: {"content": _TEXT}})
    async def metrics() -> Response:
        """Requests, recordings, batches and the queue, for Prometheus."""
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(service.metrics.text(), media_type=kind)

    @app.get("/models", responses={503: {"model": descriptions.Message}})
    async def models() -> descriptions.Models:
        """The models with their cards."""
        service.expect_ready()
        facts = [model.facts() for model in service.models.values()]
        return descriptions.Models.model_validate({"models": facts})


def _add_computations(app: FastAPI, service: Service) -> None:
    """The endpoints that compute; they take nothing but the request, which is fastest."""

    async def answer(
        request: Request, task: Task, served: ServedModel | ServedIndex, endpoint: str
    ) -> Response:
        service.batcher.expect_room()
        posted = await service.bodies.receive(request)
        results = await service.run(task, posted.recordings, served)
        unusable = sum(isinstance(one, ClocsError) for one in results)
        counted = service.metrics.recordings
        counted.labels(endpoint, "unusable").inc(unusable)
        counted.labels(endpoint, "answered").inc(len(results) - unusable)
        return _response(posted, results)

    @app.post("/models/{name}/embedding", **_described(service, "embedding"))
    async def embedding(request: Request) -> Response:
        """The embedding of an ECG, or of each of a batch."""
        service.expect_ready()
        name = request.path_params["name"]
        return await answer(request, Embed(name), service.model(name), "embedding")

    @app.post("/models/{name}/prediction", **_described(service, "prediction"))
    async def prediction(request: Request) -> Response:
        """The classes that a classifier predicts for an ECG, or for each of a batch."""
        service.expect_ready()
        name = request.path_params["name"]
        return await answer(request, Predict(name), service.classifier(name), "prediction")

    @app.post("/neighbours", **_described(service, "neighbours"))
    async def neighbours(request: Request) -> Response:
        """The patients or recordings of the index that are nearest to an ECG."""
        service.expect_ready()
        return await answer(request, _search(request), service.searched(), "neighbours")


def _described(service: Service, endpoint: str) -> dict[str, Any]:
    """How an endpoint that computes is declared."""
    kinds: dict[str, tuple[type[BaseModel], type[BaseModel]]] = {
        "embedding": (descriptions.Embedding, descriptions.EmbeddingResults),
        "prediction": (descriptions.Prediction, descriptions.PredictionResults),
        "neighbours": (descriptions.Neighbors, descriptions.NeighborResults),
    }
    return {
        "responses": descriptions.responses_of(*kinds[endpoint]),
        "response_class": Response,
        "openapi_extra": {
            "requestBody": descriptions.request_body(service.limits.recordings),
            "parameters": descriptions.parameters(endpoint),
        },
    }


def _search(request: Request) -> Search:
    k, level = request.query_params.get("k", "10"), request.query_params.get("level", "patient")
    number = int(k) if k.isascii() and k.isdecimal() and len(k) < 10 else 0
    if not 1 <= number <= descriptions.MAX_NEIGHBORS:
        raise HTTPException(422, f"`k` must be 1 to {descriptions.MAX_NEIGHBORS}")
    if level not in ("patient", "recording"):
        raise HTTPException(422, "`level` must be patient or recording")
    return Search(number, "patient" if level == "patient" else "recording")


def _response(posted: Posted, results: list[Result]) -> Response:
    """One result, or 422 with the reason; of a batch, a list of results and reasons."""
    listed = [{"message": str(one)} if isinstance(one, ClocsError) else one for one in results]
    if posted.names:
        listed = [{"name": name} | one for name, one in zip(posted.names, listed, strict=True)]
    if posted.several:
        return _json({"results": listed})
    return _json(listed[0], 422 if isinstance(results[0], ClocsError) else 200)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")

"""The endpoints of the other rooms: quality and training."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Response
from pydantic import BaseModel

from clocs.explorer.quality import Quality
from clocs.explorer.session import NotFoundError, Session
from clocs.explorer.training_runs import log_lines, run_facts, run_folders

Name = Annotated[str, Query(max_length=400, description="A run, as listed.")]
Start = Annotated[int, Query(ge=0, le=1 << 40, description="Byte of the log to go on from.")]
Version = Annotated[str, Query(max_length=40, description="Of the log that was read before.")]
Code = Annotated[str, Path(pattern="^[0-9a-f]{10}$", description="A recording's pseudonym.")]


class Run(BaseModel):
    name: str
    method: str
    seeds: int | None
    epochs: int | None  # at most
    state: str  # training, finished or stopped


class Log(BaseModel):
    version: str
    start: int  # from which byte on; 0 where what was read before no longer counts
    next: int
    lines: list[dict[str, str | float | int | None]]  # one per seed and epoch


class Reason(BaseModel):
    reason: str
    why: str
    count: int
    in_store: bool  # whether these are in the store, so that they can be drawn


class LeftOut(BaseModel):
    code: str
    reason: str
    name: str
    detail: str
    drawn: bool
    patient: str | None  # who can be opened on the map


class DatasetQuality(BaseModel):
    dataset: str
    recordings: int
    looked_at: int  # recordings in which flat and clipped parts were looked for
    without_recording: int  # rows of label tables
    reasons: list[Reason]
    recordings_listed: list[LeftOut]


def add_rooms(app: FastAPI, session: Session, binary: dict[int | str, dict[str, Any]]) -> None:
    """Add them to the server."""
    quality = Quality(session)

    @app.get("/api/runs")
    def runs() -> list[Run]:
        """Trainings in the folder of runs."""
        place = session.runs
        found = {} if place is None else run_folders(place)
        return [Run.model_validate(run_facts(name, folder)) for name, folder in found.items()]

    @app.get("/api/runs/log")
    def log(name: Name, start: Start = 0, version: Version = "") -> Log:
        """Metrics of every epoch of a training, or those since the last answer."""
        folder = None if session.runs is None else run_folders(session.runs).get(name)
        if folder is None:
            raise NotFoundError("there is no such run; start the explorer with `runs`")
        return Log.model_validate(log_lines(folder, start, version))

    @app.get("/api/quality")
    def left_out() -> list[DatasetQuality]:
        """What was quarantined or left out, by dataset and reason."""
        return [DatasetQuality.model_validate(one) for one in quality.datasets]

    @app.get("/api/quality/{code}", responses=binary, response_class=Response)
    def signal(code: Code) -> Response:
        """Samples of a listed recording with its gaps, flat and clipped parts, packed."""
        return Response(quality.signal(code), media_type="application/octet-stream")

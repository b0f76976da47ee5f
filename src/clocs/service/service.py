"""The service itself: models and an index behind a queue, from loading to shutting down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from clocs.errors import ClocsError, SettingError
from clocs.files import digest
from clocs.models.classifier import Classifier, first_encoder, load
from clocs.models.delineator import TRUNK
from clocs.models.measure import measure
from clocs.models.predict import decide_each
from clocs.patients.build_index import index_encoder, open_index
from clocs.patients.embed import embed_each
from clocs.patients.encode import CutRecording, InputSpec, cut_each, frame_of, placed
from clocs.patients.index import PatientIndex
from clocs.recording import Recording
from clocs.service.batching import Batcher
from clocs.service.bodies import Limits, example_recording, read_body
from clocs.training.card import weights_path
from clocs.training.checkpoint import Checkpoint, load_checkpoint
from clocs.web.body_reader import BodyReader
from clocs.web.shield import RefusedError

_AT_ONCE = 4  # batches
_SMALL = 2  # recordings of a batch
_BODIES = 256  # being received, waiting or being read
_TOGETHER = 1920.0  # seconds of ECG, summed over leads: 16 of ten seconds and twelve leads
_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_RECORDINGS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SEED = re.compile(r"seed-\d+")

Model: TypeAlias = Path | str | Checkpoint | Classifier
Result: TypeAlias = dict[str, Any] | ClocsError  # of one recording
Level = Literal["patient", "recording"]


class UnknownModelError(ClocsError):
    """No model of this name is served."""


@dataclass(frozen=True)
class Computation:
    """What is computed; requests with equal tasks are computed together."""

    endpoint: Literal["embedding", "prediction", "neighbors", "measurements"]
    model: str = ""
    k: int = 10
    level: Level = "patient"


@dataclass(frozen=True)
class ServedModel:
    """An encoder or a classifier with its name in addresses."""

    name: str
    model: Checkpoint | Classifier

    @cached_property
    def takes(self) -> InputSpec:
        """What it, or the first member of a classifier, takes of recordings."""
        return InputSpec.from_checkpoint(first_encoder(self.model))

    def to_dict(self) -> dict[str, Any]:
        """What a client must know, and the card."""
        made: dict[str, Any] = {
            "name": self.name,
            "kind": "encoder",
            "leads": self.takes.leads,
            "seconds": self.takes.frame.seconds,
            "rate": self.takes.frame.rate,
            "dimensions": self.takes.checkpoint.encoder.embedding_dim,
            "labels": [],
        }
        if not isinstance(self.model, Classifier):
            return made | {"card": json.loads(self.model.card.json())}
        card = self.model.card
        return made | {"kind": "classifier", "labels": card.labels, "card": card.to_dict()}

    def compute(self, task: Computation, recordings: Sequence[Recording]) -> list[Result]:
        """The embedding (of a classifier, by its first member) or the prediction of each."""
        cut = cut_each(recordings, self.takes)
        if task.endpoint == "embedding":
            vectors = embed_each(cut, self.takes)
            made = [z if isinstance(z, ClocsError) else {"embedding": z.tolist()} for z in vectors]
            return _answers(cut, made)
        assert isinstance(self.model, Classifier)  # `Service.served` refuses others
        labels = self.model.card.labels
        found = decide_each(self.model, [one for one in cut if isinstance(one, CutRecording)])
        predictions: Iterator[Result] = (
            {
                "probabilities": dict(zip(labels, found.probabilities[n].tolist(), strict=True)),
                "predicted": found.predicted[n],
                "abstained": found.abstained[n],
                "ecg_share": float(found.ecg_share[n]),
                "distance": None if np.isnan(found.distance[n]) else float(found.distance[n]),
            }
            for n in range(len(found.predicted))
        )
        made = [one if isinstance(one, ClocsError) else next(predictions) for one in cut]
        return _answers(cut, made)


def _answers(cut: Sequence[CutRecording | ClocsError], made: Sequence[Result]) -> list[Result]:
    """What was made of each recording, with how it was read; or why there is none."""
    return [
        one | own.reading if isinstance(one, dict) and isinstance(own, CutRecording) else one
        for own, one in zip(cut, made, strict=True)
    ]


def open_models(given: Sequence[Model]) -> dict[str, ServedModel]:
    """Models by name: of a path the file's or folder's, or that before '=' in 'NAME=PATH'."""
    made: dict[str, ServedModel] = {}
    for one in given:
        name, model = _opened(one)
        if _NAME.fullmatch(name) is None:
            raise SettingError(
                f"{name!r} is no name for an address; give the model as NAME=PATH, with a name of "
                "letters, digits, '.', '_' and '-'"
            )
        if name in made:
            raise SettingError(f"two models are called {name}; give one of them as NAME=PATH")
        made[name] = ServedModel(name, model)
    return made


def _opened(given: Model) -> tuple[str, Checkpoint | Classifier]:
    if isinstance(given, Classifier):
        return given.card.name, given
    if isinstance(given, Checkpoint):
        return given.card.method, given
    name, equals, rest = str(given).partition("=")
    if not equals or Path(given).exists():
        name, rest = "", str(given)
    path = weights_path(rest)
    own = path.name if path.is_dir() else path.stem
    own = path.parent.name if _SEED.fullmatch(own) else own
    return name or own, load(path)


class ServedIndex:
    """The patients and recordings of an index, searched with its own encoder."""

    def __init__(self, folder: Path, *, show_ids: bool) -> None:
        self._levels: dict[Level, PatientIndex] = {
            "patient": open_index(folder, "patient"),
            "recording": open_index(folder, "recording"),
        }
        self._show_ids = show_ids
        encoder, made = index_encoder(folder), self._levels["patient"]
        self.takes = InputSpec.from_checkpoint(encoder, frame_of(encoder, made.frame), made.leads)
        known = self._levels["recording"].rows.select("digest", "dataset", "patient")
        self._owners: dict[int, list[tuple[str, str]]] = {}
        for key, dataset, patient in known.iter_rows():
            self._owners.setdefault(key, []).append((dataset, patient))

    def compute(self, task: Computation, recordings: Sequence[Recording]) -> list[Result]:
        """The k nearest of each recording; never the patient whose recording it is."""
        cut = cut_each(recordings, self.takes)
        vectors = zip(embed_each(cut, self.takes), recordings, strict=True)
        near = [
            z if isinstance(z, ClocsError) else {"neighbors": self._near(z, one, task)}
            for z, one in vectors
        ]
        return _answers(cut, near)

    def _near(
        self, vector: NDArray[np.float32], recording: Recording, task: Computation
    ) -> list[dict[str, Any]]:
        index = self._levels[task.level]
        where = None
        if owners := self._owners.get(digest(recording.digital)):
            schema = {"dataset": pl.String, "patient": pl.String}
            where = ~index.rows_of(pl.DataFrame(owners, schema=schema, orient="row"))
        hits = index.search(vector[None], task.k, where=where)
        columns = ["dataset", "labels", "distance", "euclidean"]
        if self._show_ids:
            own = ["patient", "recording"] if task.level == "recording" else ["patient"]
            columns[1:1] = [*own, "age", "sex", "split"]
        return index.table(hits).select(columns).to_dicts()


class ServedDelineator:
    """What marks waves and measures them: of the package, and loaded when first asked for."""

    @cached_property
    def takes(self) -> InputSpec:
        """The leads that its trunk takes."""
        return InputSpec.from_checkpoint(load_checkpoint(TRUNK))

    def compute(self, task: Computation, recordings: Sequence[Recording]) -> list[Result]:
        """The measurements of each."""
        made: list[Result] = []
        for one in recordings:
            try:
                made.append(measure(one).to_dict())
            except ClocsError as error:
                made.append(error)
        return made


class Metrics:
    """What is counted; `text` is what Prometheus reads."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        by: dict[str, Any] = {"registry": registry, "labelnames": ("endpoint", "status")}
        self.requests = Counter("clocs_requests", "Requests by endpoint and status.", **by)
        by["labelnames"] = ("endpoint", "outcome")
        about = "Recordings by endpoint and outcome: answered or unusable."
        self.recordings = Counter("clocs_recordings", about, **by)
        by["labelnames"] = ("endpoint",)
        about = "From the headers of a request to the end of its response."
        self.seconds = Histogram("clocs_request_seconds", about, buckets=_SECONDS, **by)
        by["labelnames"] = ()
        about = "Recordings computed together."
        self.batches = Histogram("clocs_batch_recordings", about, buckets=_RECORDINGS, **by)
        about = "Seconds of ECG, summed over leads, that wait or are being computed."
        self.queue = Gauge("clocs_queue_seconds", about, **by)
        self.ready = Gauge("clocs_ready", "1 while requests are accepted, else 0.", **by)

    def text(self) -> bytes:
        """In Prometheus' format."""
        return generate_latest(self._registry)


class Service:
    """Models and an index, and the threads that compute with them.

    Attributes:
        state: Whether requests are accepted.
        models: By name; none before they are loaded.
        index: To search, if there is one.
        limits: Of requests.
        reader: Reads their bodies.
        metrics: What is counted.
    """

    def __init__(self, limits: Limits | None = None, *, show_ids: bool = False) -> None:
        self.state: Literal["loading", "ready", "stopping"] = "loading"
        self.models: dict[str, ServedModel] = {}
        self.index: ServedIndex | None = None
        self._delineator = ServedDelineator()
        self.limits, self.show_ids = limits or Limits(), show_ids
        self.reader = BodyReader(read_body, at_once=_BODIES)
        self.metrics = Metrics()
        self._cores = torch.get_num_threads()
        self._at_once = min(self._cores, _AT_ONCE)
        self.batcher = Batcher[Computation, Recording, Result](
            self.compute,
            queue=self.limits.queue,
            together=_TOGETHER,
            threads=self._at_once,
            on_batch=self._on_batch,
        )
        self.metrics.queue.set_function(lambda: self.batcher.size)
        self.metrics.ready.set_function(lambda: float(self.state == "ready"))

    def _on_batch(self, items: int, alone: bool) -> None:
        """A large batch alone has all cores, unless a body is read.

        Several are faster side by side; for a small one, waking the threads takes longer than it.
        """
        self.metrics.batches.observe(items)
        alone = alone and items > _SMALL and not self.reader.admitted
        threads = self._cores if alone else self._cores // self._at_once
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)  # of the calling thread

    def load(self, models: Sequence[Model], index: Path | str | None = None) -> None:
        """Open everything and compute once with each, so that the first request is as fast."""
        self.reader.start()
        self.models = open_models(models)
        tasks = [Computation("embedding", name) for name in self.models]
        classifiers = [n for n, one in self.models.items() if isinstance(one.model, Classifier)]
        tasks += [Computation("prediction", name) for name in classifiers]
        if index is not None:
            self.index = ServedIndex(Path(index), show_ids=self.show_ids)
            tasks.append(Computation("neighbors"))
        for task in tasks:
            takes = self.served(task).takes
            self.compute(task, [example_recording(takes.leads, takes.frame.seconds)])
        if self.state == "loading":  # not told to end meanwhile
            self.state = "ready"

    def close(self) -> None:
        """Compute what waits, then end the threads and the processes."""
        self.state = "stopping"
        self.batcher.close()
        self.reader.close()

    def expect_ready(self) -> None:
        """Refuse requests while there is nothing to answer them, or no more."""
        if self.state != "ready":
            why = "is loading its models" if self.state == "loading" else "is shutting down"
            headers = {"retry-after": "2", "connection": "close"}
            raise RefusedError(503, f"the service {why}; try again in a moment", headers)

    def served(self, task: Computation) -> ServedModel | ServedIndex | ServedDelineator:
        """What computes a task.

        Raises:
            UnknownModelError: There is none.
        """
        if task.endpoint == "measurements":
            return self._delineator
        if not task.model:
            if self.index is None:
                raise UnknownModelError("no index is served; start the service with `index`")
            return self.index
        found = self.models.get(task.model)
        if found is None:
            known = ", ".join(self.models) or "none"
            raise UnknownModelError(f"there is no model {task.model[:64]!r}; those served: {known}")
        if task.endpoint == "prediction" and not isinstance(found.model, Classifier):
            raise UnknownModelError(
                f"{task.model} is an encoder and predicts no classes; ask for its embedding, or "
                "serve a classifier made by `clocs finetune`"
            )
        return found

    async def run(
        self, task: Computation, recordings: Sequence[Recording | ClocsError]
    ) -> list[Result]:
        """The result of each recording, or why there is none."""
        takes = self.served(task).takes
        leads = takes.leads
        checked: list[Recording | ClocsError] = []
        for one in recordings:
            own = placed(one, takes.known, leads) if isinstance(one, Recording) else one
            if isinstance(own, Recording) and not {*own.leads} & {*leads}:
                own = SettingError(
                    f"{own.id} has none of the leads that the model takes ({', '.join(leads)}), "
                    f"only {', '.join(own.leads)}; name its leads in `leads`"
                )
            checked.append(own)
        sound = [one for one in checked if isinstance(one, Recording)]
        size = sum(one.seconds * len({*one.leads} & {*leads}) for one in sound)
        seconds = self.limits.timeout
        results = iter(await self.batcher.run(task, sound, size, seconds) if sound else ())
        return [one if isinstance(one, ClocsError) else next(results) for one in checked]

    def compute(self, task: Computation, recordings: list[Recording]) -> list[Result]:
        """One result per recording; called by the threads that compute."""
        return self.served(task).compute(task, recordings)

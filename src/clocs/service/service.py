"""The service itself: models behind a queue, from loading to shutting down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from clocs.errors import ClocsError, SettingError
from clocs.models.classifier import Classifier
from clocs.patients.encode import placed
from clocs.recording import Recording
from clocs.service.batching import Batcher
from clocs.service.bodies import Bodies, Limits
from clocs.service.example import example_recording
from clocs.service.metrics import Metrics
from clocs.service.models import Level, Result, ServedIndex, ServedModel, open_models
from clocs.training.checkpoint import Checkpoint
from clocs.web.shield import RefusedError

_AT_ONCE = 4  # batches
_TOGETHER = 1920.0  # seconds of ECG, summed over leads: 16 of ten seconds and twelve leads

State: TypeAlias = Literal["loading", "ready", "stopping"]
Model: TypeAlias = Path | str | Checkpoint | Classifier


class UnknownModelError(ClocsError):
    """No model of this name is served."""


@dataclass(frozen=True)
class Embed:
    """The embeddings of a model."""

    model: str


@dataclass(frozen=True)
class Predict:
    """The predictions of a classifier."""

    model: str


@dataclass(frozen=True)
class Search:
    """The neighbours in the index."""

    k: int
    level: Level


Task: TypeAlias = Embed | Predict | Search


class Service:
    """Models and an index, and the threads that compute with them.

    Attributes:
        state: Whether requests are accepted.
        models: By name; none before they are loaded.
        index: To search, if there is one.
        limits: Of requests.
        bodies: Reads them.
        metrics: What is counted.
    """

    def __init__(self, limits: Limits | None = None, *, show_ids: bool = False) -> None:
        self.state: State = "loading"
        self.models: dict[str, ServedModel] = {}
        self.index: ServedIndex | None = None
        self.limits, self.show_ids = limits or Limits(), show_ids
        self.bodies = Bodies(self.limits)
        self.metrics = Metrics()
        self._cores = torch.get_num_threads()
        self._at_once = min(self._cores, _AT_ONCE)
        self.batcher = Batcher[Task, Recording, Result](
            self.compute,
            queue=self.limits.queue,
            together=_TOGETHER,
            threads=self._at_once,
            on_batch=self._on_batch,
        )
        self.metrics.queue.set_function(lambda: self.batcher.size)
        self.metrics.ready.set_function(lambda: float(self.state == "ready"))

    def _on_batch(self, items: int, alone: bool) -> None:
        """A batch alone has all cores; several are faster side by side than one after another."""
        self.metrics.batches.observe(items)
        threads = self._cores if alone else self._cores // self._at_once
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)  # of the calling thread

    def load(self, models: Sequence[Model], index: Path | str | None = None) -> None:
        """Open everything and compute once with each, so that the first request is as fast."""
        self.bodies.reader.start()
        self.models = open_models(models)
        self.index = ServedIndex(Path(index)) if index is not None else None
        for name, model in self.models.items():
            example = [example_recording(model.leads, model.encoder.card.frame.seconds)]
            self.compute(Embed(name), example)
            if isinstance(model.model, Classifier):
                self.compute(Predict(name), example)
        if self.index is not None:
            example = [example_recording(self.index.leads, self.index.spec.seconds)]
            self.compute(Search(1, "patient"), example)
        self.batcher.start()
        if self.state == "loading":  # not told to end meanwhile
            self.state = "ready"

    def close(self) -> None:
        """Compute what waits, then end the threads and the processes."""
        self.state = "stopping"
        self.batcher.close()
        self.bodies.reader.close()

    def expect_ready(self) -> None:
        """Refuse requests while there is nothing to answer them, or no more."""
        if self.state != "ready":
            why = "is loading its models" if self.state == "loading" else "is shutting down"
            headers = {"retry-after": "2", "connection": "close"}
            raise RefusedError(503, f"the service {why}; try again in a moment", headers)

    def model(self, name: str) -> ServedModel:
        """A model by its name."""
        if name not in self.models:
            known = ", ".join(self.models) or "none"
            raise UnknownModelError(f"there is no model {name[:64]!r}; those served: {known}")
        return self.models[name]

    def classifier(self, name: str) -> ServedModel:
        """A classifier by its name."""
        found = self.model(name)
        if not isinstance(found.model, Classifier):
            raise UnknownModelError(
                f"{name} is an encoder and predicts no classes; ask for its embedding, or serve a "
                "classifier made by `clocs finetune`"
            )
        return found

    def searched(self) -> ServedIndex:
        """The index."""
        if self.index is None:
            raise UnknownModelError("no index is served; start the service with `index`")
        return self.index

    async def run(
        self,
        task: Task,
        recordings: Sequence[Recording | ClocsError],
        served: ServedModel | ServedIndex,
    ) -> list[Result]:
        """The result of each recording, or why there is none.

        Args:
            task: What to compute.
            recordings: Or why one cannot be used.
            served: What computes it.
        """
        leads, known = served.leads, served.known_leads
        checked = [
            one if isinstance(one, ClocsError) else _with_a_lead(placed(one, known, leads), leads)
            for one in recordings
        ]
        sound = [one for one in checked if isinstance(one, Recording)]
        size = sum(one.seconds * sum(lead in leads for lead in one.leads) for one in sound)
        made: list[Result] = []
        if sound:
            made = await self.batcher.run(task, sound, size, self.limits.timeout)
        results = iter(made)
        return [one if isinstance(one, ClocsError) else next(results) for one in checked]

    def compute(self, task: Task, recordings: list[Recording]) -> list[Result]:
        """One result per recording; called by the threads that compute."""
        if isinstance(task, Embed):
            return self.models[task.model].embed(recordings)
        if isinstance(task, Predict):
            return self.models[task.model].predict(recordings)
        return self.searched().search(recordings, task.k, task.level, show_ids=self.show_ids)


def _with_a_lead(recording: Recording, leads: Sequence[str]) -> Recording | ClocsError:
    if any(lead in leads for lead in recording.leads):
        return recording
    return SettingError(
        f"{recording.id} has none of the leads that the model takes ({', '.join(leads)}), only "
        f"{', '.join(recording.leads)}; name its leads in `leads`"
    )

"""What is served: encoders, classifiers and an index, each with its name and what it computes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError
from clocs.files import digest
from clocs.models.classifier import Classifier, first_encoder, load
from clocs.models.prediction_table import decide
from clocs.models.row_means import Item, mean_vectors
from clocs.patients.embed_each import cut_each, embed_cut
from clocs.patients.embed_files import FileWindows
from clocs.patients.encode import Windows, frame_of, known_leads, leads_of
from clocs.patients.index import PatientIndex
from clocs.patients.index_folder import index_encoder, open_index
from clocs.recording import FrameSpec, Recording
from clocs.training.checkpoint import Checkpoint
from clocs.training.shipped import weights_path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SEED = re.compile(r"seed-\d+")

Result: TypeAlias = dict[str, Any] | ClocsError  # of one recording
Level = Literal["patient", "recording"]


@dataclass(frozen=True)
class ServedModel:
    """An encoder or a classifier with its name in addresses."""

    name: str
    model: Checkpoint | Classifier

    @property
    def encoder(self) -> Checkpoint:
        """It, or the first member of the classifier."""
        return first_encoder(self.model)

    @cached_property
    def leads(self) -> tuple[str, ...]:
        """Those it takes, of which a recording needs one."""
        return leads_of(self.encoder, None)

    @cached_property
    def known_leads(self) -> tuple[str, ...]:
        """Those it sees at once, if it does."""
        return known_leads(self.encoder)

    def facts(self) -> dict[str, Any]:
        """What a client must know, and the card."""
        encoder, frame = self.encoder, self.encoder.card.frame
        made: dict[str, Any] = {
            "name": self.name,
            "kind": "encoder",
            "leads": self.leads,
            "seconds": frame.seconds,
            "rate": frame.rate,
            "dimensions": encoder.encoder.embedding_dim,
            "labels": [],
        }
        if not isinstance(self.model, Classifier):
            return made | {"card": json.loads(encoder.card.json())}
        card = self.model.card
        return made | {"kind": "classifier", "labels": card.labels, "card": card.facts()}

    def embed(self, recordings: Sequence[Recording]) -> list[Result]:
        """The embedding of each recording; of a classifier, by its first member."""
        cut = cut_each(self.encoder, recordings)
        made = embed_cut(self.encoder, cut)
        return _results(cut, self.leads, made, lambda z: {"embedding": z.tolist()})

    def predict(self, recordings: Sequence[Recording]) -> list[Result]:
        """What is predicted for each recording."""
        assert isinstance(self.model, Classifier)  # `Service.classifier` refuses others
        return predict_each(self.model, recordings)


def predict_each(classifier: Classifier, recordings: Sequence[Recording]) -> list[Result]:
    """The prediction for each recording as `clocs.predict` makes it, or why there is none."""
    made = cut_each(classifier.encoders[0], recordings)
    usable = [one.windows for one in made if not isinstance(one, ClocsError)]
    means = mean_vectors(classifier.encoders, map(_as_one, usable), None)
    found = decide(classifier, torch.from_numpy(means.vectors), means.quality, means.flat)
    labels = classifier.card.labels
    predictions = iter(
        {
            "probabilities": dict(zip(labels, found.probabilities[n].tolist(), strict=True)),
            "predicted": found.predicted[n],
            "abstained": found.abstained[n],
            "quality": float(means.quality[n]),
            "distance": None if np.isnan(found.distance[n]) else float(found.distance[n]),
        }
        for n in range(len(usable))
    )
    wanted = leads_of(classifier.encoders[0], None)
    results = [one if isinstance(one, ClocsError) else next(predictions) for one in made]
    return _results(made, wanted, results, lambda prediction: prediction)


_T = TypeVar("_T")


def _results(
    cut: Sequence[FileWindows | ClocsError],
    leads: Sequence[str],
    made: Sequence[_T | ClocsError],
    answer: Callable[[_T], dict[str, Any]],
) -> list[Result]:
    """The answer for each recording, with how it was read; or why there is none."""
    found: list[Result] = []
    for one, own in zip(cut, made, strict=True):
        if isinstance(one, ClocsError) or isinstance(own, ClocsError):
            found.append(one if isinstance(one, ClocsError) else own)  # type: ignore[arg-type]
        else:
            found.append(answer(own) | one.reading(leads).facts())
    return found


def _as_one(windows: Windows) -> Item:
    """All windows of a recording as one stretch."""
    count = len(windows[0] if isinstance(windows, tuple) else windows)
    whole = np.zeros(count, np.int64)
    return Item(None, None, None, None, None, frames=1, windows=windows, frame_of=whole)


def open_models(given: Sequence[Path | str | Checkpoint | Classifier]) -> dict[str, ServedModel]:
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


def _opened(given: Path | str | Checkpoint | Classifier) -> tuple[str, Checkpoint | Classifier]:
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

    def __init__(self, folder: Path) -> None:
        self._levels: dict[Level, PatientIndex] = {
            "patient": open_index(folder, "patient"),
            "recording": open_index(folder, "recording"),
        }
        self.encoder = index_encoder(folder)
        known = self._levels["recording"].rows.select("digest", "dataset", "patient")
        self._owners: dict[int, list[tuple[str, str]]] = {}
        for key, dataset, patient in known.iter_rows():
            self._owners.setdefault(key, []).append((dataset, patient))

    @property
    def spec(self) -> FrameSpec:
        return frame_of(self.encoder, self._levels["patient"].frame)

    @cached_property
    def known_leads(self) -> tuple[str, ...]:
        """Those that its encoder sees at once, if it does."""
        return known_leads(self.encoder)

    @cached_property
    def leads(self) -> tuple[str, ...]:
        """Those it was made from, of which a recording needs one."""
        return leads_of(self.encoder, self._levels["patient"].leads)

    def search(
        self, recordings: Sequence[Recording], k: int, level: Level, *, show_ids: bool
    ) -> list[Result]:
        """The k nearest of each recording; never the patient whose recording it is."""
        cut = cut_each(self.encoder, recordings, spec=self.spec, leads=self.leads)
        vectors = embed_cut(self.encoder, cut, spec=self.spec)
        near = [
            z if isinstance(z, ClocsError) else self._near(z, one, k, level, show_ids=show_ids)
            for z, one in zip(vectors, recordings, strict=True)
        ]
        return _results(cut, self.leads, near, lambda found: {"neighbours": found})

    def _near(
        self,
        vector: NDArray[np.float32],
        recording: Recording,
        k: int,
        level: Level,
        *,
        show_ids: bool,
    ) -> list[dict[str, Any]]:
        index = self._levels[level]
        owners = self._owners.get(digest(recording.digital))
        where = None
        if owners:
            schema = {"dataset": pl.String, "patient": pl.String}
            where = ~index.rows_of(pl.DataFrame(owners, schema=schema, orient="row"))
        hits = index.search(vector[None], k, where=where)
        columns = ["dataset", "labels", "distance", "euclidean"]
        if show_ids:
            own = ["patient", "recording"] if level == "recording" else ["patient"]
            columns[1:1] = [*own, "age", "sex", "split"]
        return index.table(hits).select(columns).to_dicts()

"""Session: what one explorer shows, and the questions a page can ask. Knows nothing about HTTP.

Patients go by their pseudonyms here; nothing that leaves this file says who they are, unless the
owner of the session asked for the IDs.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError
from clocs.frames import SEXES
from clocs.patients.embeddings import Embeddings
from clocs.patients.filters import Where
from clocs.patients.index import PatientIndex
from clocs.recording import Recording
from clocs.splits import PARTS
from clocs.store import Store
from clocs.web.classifier import Classifier, fit
from clocs.web.columns import UNKNOWN_AGE, columns_of, label_names
from clocs.web.material import Distances
from clocs.web.packing import pack
from clocs.web.projection import Projection, between
from clocs.web.pseudonyms import pseudonyms
from clocs.web.upload import Upload, Uploads

if TYPE_CHECKING:
    from clocs.checkpoint import Checkpoint

NEIGHBOURS = 10
LONGEST = 600.0  # seconds of signal in one answer


class UnknownPatientError(ClocsError):
    """No patient, recording or upload of that name is here."""


@dataclass
class Session:
    """Everything behind one page.

    Attributes:
        embeddings: Patients' vectors and facts.
        projection: The map.
        distances: Within and between patients.
        stores: By dataset, for signals; may lack some or all.
        checkpoint: The encoder's file, for uploads; None where there is none.
        report: A page with results, or None.
        key: Of the pseudonyms.
        show_ids: Whether patients go by their own IDs.
        title: Above the page.
    """

    embeddings: Embeddings
    projection: Projection
    distances: Distances
    stores: Mapping[str, Store]
    key: bytes
    checkpoint: Path | None = None
    report: Path | None = None
    show_ids: bool = False
    title: str = "clocs"
    uploads: Uploads = field(default_factory=Uploads)

    def __post_init__(self) -> None:
        if self.embeddings.level != "patient":
            raise SettingError(
                f"the embeddings are of the level {self.embeddings.level!r}; "
                "make them with `clocs embed --level patient`"
            )
        rows = self.embeddings.rows
        self.codes = pseudonyms(rows.select("dataset", "patient").iter_rows(), self.key)
        self._rows = {code: row for row, code in enumerate(self.codes)}
        self._warm = threading.Lock()

    # What all patients are

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names for the bits of the column of labels."""
        first = [label for store in self.stores.values() for label in store.manifest.labels]
        return label_names(self.embeddings.rows, first)

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """A value a patient: what a map colours and filters by."""
        return columns_of(self.embeddings.rows, self.labels, self.datasets)

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        return tuple(self.embeddings.rows["dataset"].unique(maintain_order=True).to_list())

    def facts(self) -> dict[str, Any]:
        """About the whole session."""
        _, state = self.projection.now()
        return {
            "title": self.title,
            "patients": len(self.embeddings),
            "datasets": self.datasets,
            "labels": self.labels,
            "splits": [*PARTS, "unknown"],
            "sexes": SEXES,
            "unknown_age": UNKNOWN_AGE,
            "show_ids": self.show_ids,
            "signals": bool(self.stores),
            "uploads": self.checkpoint is not None,
            "report": self.report is not None,
            "projection": vars(state),
            "without_direction": len(self.embeddings.dead),
        }

    def map(self) -> bytes:
        """Places, pseudonyms and columns of all patients, packed."""
        positions, state = self.projection.now()
        codes = np.frombuffer(bytes.fromhex("".join(self.codes)), np.uint8)
        own: dict[str, NDArray[Any]] = {
            "positions": positions,
            "codes": codes.reshape(len(self.codes), -1),
        }
        return pack({"projection": vars(state)}, {**own, **self.columns})

    def positions(self) -> bytes:
        """Places alone, packed: when a better map is ready."""
        positions, state = self.projection.now()
        return pack({"projection": vars(state)}, {"positions": positions})

    # One patient

    def row(self, code: str) -> int:
        """The row of a pseudonym."""
        if code not in self._rows:
            raise UnknownPatientError(f"there is no patient {code[:40]} here")
        return self._rows[code]

    def name(self, row: int) -> str:
        """What the page calls a patient."""
        if self.show_ids:
            return str(self.embeddings.rows["patient"][row])
        return f"patient {self.codes[row]}"

    def summary(self, row: int) -> dict[str, Any]:
        """Who: one line of a list."""
        facts = self.embeddings.rows.row(row, named=True)
        age = facts["age"]
        return {
            "code": self.codes[row],
            "row": row,
            "name": self.name(row),
            "dataset": facts["dataset"],
            "labels": facts["labels"],
            "split": facts["split"],
            "age": None if age is None or not np.isfinite(age) else age,
            "sex": facts["sex"],
        }

    def patient(self, code: str) -> dict[str, Any]:
        """Who, which recordings, and what the classifier says."""
        row = self.row(code)
        table = self._recordings(row)
        listed = []
        if table is not None:
            for number, one in enumerate(table.iter_rows(named=True)):
                listed.append(
                    _described(one["leads"], one["samples"], one["rate"], one["unit"])
                    | {
                        "number": number,
                        "name": one["id"] if self.show_ids else f"recording {number + 1}",
                        "labels": one["labels"],
                        "episodes": sorted({episode["label"] for episode in one["episodes"]}),
                    }
                )
        vectors = self.embeddings.vectors[row][None]
        own = [self.summary(row)["dataset"]]
        return self.summary(row) | {
            "recordings": listed,
            "predictions": self._predictions(vectors, own),
        }

    def signal(
        self, code: str, number: int, *, start: float, seconds: float, lead: str | None
    ) -> bytes:
        """A recording's samples, packed."""
        row = self.row(code)
        table = self._recordings(row)
        if table is None or number >= table.height:
            raise UnknownPatientError(f"{self.name(row)} has no recording {number + 1} here")
        store = self.stores[self.embeddings.rows["dataset"][row]]
        return _signal(store.recording(int(table["row"][number])), start, seconds, lead)

    def _recordings(self, row: int) -> pl.DataFrame | None:
        dataset, patient = self.embeddings.rows.select("dataset", "patient").row(row)
        store = self.stores.get(dataset)
        if store is None:
            return None
        return store.table.with_row_index("row").filter(pl.col("patient") == patient)

    # Neighbours

    @cached_property
    def index(self) -> PatientIndex:
        return PatientIndex.build(self.embeddings)

    def warm(self) -> None:
        """Make what the first click would wait for."""
        with self._warm:
            self.index  # noqa: B018
            self._fitted  # noqa: B018

    def neighbours(
        self, code: str, k: int = NEIGHBOURS, where: Where | None = None
    ) -> dict[str, Any]:
        """The most similar patients, nearest first."""
        row = self.row(code)
        dataset, patient = self.embeddings.rows.select("dataset", "patient").row(row)
        vector = self.embeddings.vectors[row]
        found = self._near(vector, k, where, exclude=[(dataset, patient)])
        return {"code": code, "name": self.name(row), "neighbours": found}

    def _near(
        self,
        vector: NDArray[np.float32],
        k: int,
        where: Where | None = None,
        exclude: Sequence[tuple[str, str] | None] | None = None,
    ) -> list[dict[str, Any]]:
        hits = self.index.search(vector[None], k, where=where, exclude=exclude)
        inter = self.sorted_inter
        listed = []
        for row, cosine, apart in zip(hits.rows[0], hits.cosine[0], hits.euclidean[0], strict=True):
            if row < 0:
                break
            share = float(np.searchsorted(inter, apart) / len(inter)) if len(inter) else None
            listed.append(
                self.summary(int(row))
                | {"cosine": float(cosine), "distance": float(apart), "closer_than": share}
            )
        return listed

    @cached_property
    def sorted_inter(self) -> NDArray[np.float32]:
        return np.sort(self.distances.inter)

    # Predictions

    @cached_property
    def _fitted(self) -> dict[str, Classifier]:
        made = {}
        for dataset, store in self.stores.items():
            manifest = store.manifest
            one = fit(self.embeddings, dataset, manifest.labels, multilabel=manifest.multilabel)
            if one is not None:
                made[dataset] = one
        return made

    @property
    def classifiers(self) -> dict[str, Classifier]:
        """One a dataset with labels, fitted when first asked for."""
        with self._warm:
            return self._fitted

    def _predictions(
        self, vectors: NDArray[np.float32], datasets: Sequence[str]
    ) -> list[dict[str, Any]]:
        listed = []
        for dataset in datasets:
            if (one := self.classifiers.get(dataset)) is not None:
                p = one.predict(vectors)[0]
                order = np.argsort(-p)
                listed.append(
                    {
                        "dataset": dataset,
                        "multilabel": one.multilabel,
                        "trained_on": one.trained_on,
                        "tested_on": one.tested_on,
                        "auc": one.auc,
                        "classes": [
                            {"label": one.labels[i], "probability": float(p[i])} for i in order
                        ],
                    }
                )
        return listed

    # A visitor's own recording

    @cached_property
    def _loaded(self) -> Checkpoint:
        from clocs.checkpoint import load_checkpoint

        if self.checkpoint is None:
            raise SettingError("no encoder is loaded, so nothing can be placed; give --checkpoint")
        return load_checkpoint(self.checkpoint)

    def place(self, recording: Recording, k: int = NEIGHBOURS) -> dict[str, Any]:
        """Keep an uploaded recording, place it on the map and find its neighbours."""
        vector, notes = self._embedded(recording)
        code = secrets.token_hex(8)
        self.uploads.add(code, Upload(recording, vector, notes))
        return self.upload(code, k)

    def upload(self, code: str, k: int = NEIGHBOURS) -> dict[str, Any]:
        """What is known about an upload."""
        kept = self._kept(code)
        recording = kept.recording
        facts: dict[str, Any] = {
            "code": code,
            "name": recording.id,
            "notes": kept.notes,
            "recording": _described(
                recording.leads, recording.samples, recording.rate, recording.unit
            ),
            "position": None,
            "neighbours": [],
            "predictions": [],
        }
        if kept.vector is not None:
            near = self._near(kept.vector, k)
            positions, _ = self.projection.now()
            rows = np.array([one["row"] for one in near], np.int64)
            cosine = np.array([one["cosine"] for one in near], np.float32)
            facts |= {
                "position": between(positions, rows, cosine).tolist() if len(near) else None,
                "neighbours": near,
                "predictions": self._predictions(kept.vector[None], list(self.classifiers)),
            }
        return facts

    def upload_signal(self, code: str, *, start: float, seconds: float, lead: str | None) -> bytes:
        return _signal(self._kept(code).recording, start, seconds, lead)

    def _kept(self, code: str) -> Upload:
        kept = self.uploads.get(code)
        if kept is None:
            raise UnknownPatientError("this upload is no longer kept; drop the file again")
        return kept

    def _embedded(self, recording: Recording) -> tuple[NDArray[np.float32] | None, tuple[str, ...]]:
        """Its vector, or None with the reason why it has none: the ECG can be looked at anyway."""
        from clocs.web.placing import embed_upload

        try:
            with self._warm:
                loaded = self._loaded
            return embed_upload(loaded, recording, self.embeddings.frame)
        except ClocsError as error:
            return None, (f"It is not placed on the map: {error}.",)


def _described(leads: Sequence[str], samples: int, rate: float, unit: str) -> dict[str, Any]:
    return {"leads": list(leads), "seconds": samples / rate, "rate": rate, "unit": unit}


def _signal(recording: Recording, start: float, seconds: float, lead: str | None) -> bytes:
    """Digital samples with gain and baseline; the page makes mV of them, or not, by their unit."""
    if lead is not None:
        recording = recording.select([lead])
    first = min(recording.samples, round(start * recording.rate))
    last = min(recording.samples, first + round(min(seconds, LONGEST) * recording.rate))
    facts = {
        "leads": recording.leads,
        "rate": recording.rate,
        "unit": recording.unit,
        "gain": recording.gain.tolist(),
        "baseline": recording.baseline.tolist(),
        "start": first / recording.rate,
        "seconds": recording.seconds,
    }
    return pack(facts, {"digital": recording.digital[:, first:last]})

"""A session: everything behind one explorer's page, and the queries that the page can make.

Patients are known by their pseudonyms; no result contains an ID unless `show_ids` is set.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError
from clocs.explorer.packing import pack
from clocs.explorer.patient_map import UNKNOWN_AGE, Projection, label_names, map_columns
from clocs.explorer.predictors import Predictors
from clocs.explorer.reference_distances import ReferenceDistances
from clocs.frames.frames import SEXES
from clocs.frames.splits import PARTS
from clocs.patients.embeddings import Embeddings
from clocs.patients.filters import Where
from clocs.patients.index import PatientIndex
from clocs.recording import Recording
from clocs.store.store import Store

NEIGHBOURS = 10
LONGEST = 600.0  # seconds of signal in one response
DIGITS = 10  # of pseudonyms; 100,000 patients collide with probability 1/220, which is resolved


class UnknownPatientError(ClocsError):
    """This session has no such patient, recording or upload."""


@dataclass
class Session:
    """Everything behind one page; `open_session` makes it."""

    embeddings: Embeddings
    projection: Projection
    distances: ReferenceDistances
    stores: Mapping[str, Store]  # by dataset, for the signals; possibly not of every dataset
    key: bytes  # of the pseudonyms
    checkpoint: Path | None = None  # for uploads
    report: Path | None = None  # a page with results
    show_ids: bool = False
    title: str = "clocs"

    def __post_init__(self) -> None:
        if self.embeddings.level != "patient":
            raise SettingError(
                f"the embeddings have level {self.embeddings.level!r}; "
                "make them with `level` 'patient'"
            )
        rows = self.embeddings.rows
        self.codes = pseudonyms(rows.select("dataset", "patient").iter_rows(), self.key)
        self._rows = {code: row for row, code in enumerate(self.codes)}
        self.predictors = Predictors(self.embeddings, self.stores)

    # All patients

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the bits of the label column."""
        first = [label for store in self.stores.values() for label in store.manifest.labels]
        return label_names(self.embeddings.rows, first)

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """One value per patient: what the map is coloured and filtered by."""
        return map_columns(self.embeddings.rows, self.labels, self.datasets)

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
            "projection": state,
            "not_embedded": len(self.embeddings.only_zeros),
            "notes": [f"{name}: {sentence}" for name, sentence in self.embeddings.problems],
        }

    def map(self) -> bytes:
        """Positions, pseudonyms and columns of all patients, packed."""
        positions, state = self.projection.now()
        codes = np.frombuffer(bytes.fromhex("".join(self.codes)), np.uint8)
        arrays: dict[str, NDArray[Any]] = {"positions": positions}
        arrays["codes"] = codes.reshape(len(self.codes), -1)
        return pack({"projection": vars(state)}, arrays | self.columns)

    def positions(self) -> bytes:
        """Positions only, packed, for when UMAP has finished."""
        positions, state = self.projection.now()
        return pack({"projection": vars(state)}, {"positions": positions})

    # One patient

    def row(self, code: str) -> int:
        """The row of a pseudonym."""
        if code not in self._rows:
            raise UnknownPatientError(f"there is no patient {code[:40]}")
        return self._rows[code]

    def name(self, row: int) -> str:
        """The patient's name on the page."""
        if self.show_ids:
            return str(self.embeddings.rows["patient"][row])
        return f"Patient {self.codes[row]}"

    def summary(self, row: int) -> dict[str, Any]:
        """One line of a list."""
        shown = self.embeddings.rows.select("dataset", "labels", "split", "age", "sex")
        facts = shown.row(row, named=True)
        if facts["age"] is not None and not np.isfinite(facts["age"]):
            facts["age"] = None
        return {"code": self.codes[row], "row": row, "name": self.name(row)} | facts

    def patient(self, code: str) -> dict[str, Any]:
        """A patient's facts, recordings and predicted classes."""
        row = self.row(code)
        table = self._recordings(row)
        listed = [
            recording_facts(one["leads"], one["samples"], one["rate"], one["unit"])
            | {
                "number": number,
                "name": one["id"] if self.show_ids else f"Recording {number + 1}",
                "labels": one["labels"],
                "episodes": sorted({episode["label"] for episode in one["episodes"]}),
            }
            for number, one in enumerate([] if table is None else table.iter_rows(named=True))
        ]
        facts = self.summary(row)
        predicted = self.predictors.predict(self.embeddings.vectors[row], [facts["dataset"]])
        return facts | {"recordings": listed, "predictions": predicted}

    def signal(
        self, code: str, number: int, *, start: float, seconds: float, lead: str | None
    ) -> bytes:
        """A recording's samples, packed."""
        row = self.row(code)
        table = self._recordings(row)
        if table is None or number >= table.height:
            raise UnknownPatientError(f"{self.name(row)} has no recording {number + 1}")
        store = self.stores[self.embeddings.rows["dataset"][row]]
        return packed_signal(store.recording(int(table["row"][number])), start, seconds, lead)

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
        """Prepare what the first click would otherwise wait for."""
        self.index  # noqa: B018
        self.predictors.fit()

    def neighbours(
        self, code: str, k: int = NEIGHBOURS, where: Where | None = None
    ) -> dict[str, Any]:
        """The most similar patients, nearest first."""
        row = self.row(code)
        itself = self.embeddings.rows.select("dataset", "patient").row(row)
        found = self.near(self.embeddings.vectors[row], k, where, exclude=[itself])
        return {"code": code, "name": self.name(row), "neighbours": found}

    def near(
        self,
        vector: NDArray[np.float32],
        k: int,
        where: Where | None = None,
        exclude: Sequence[tuple[str, str] | None] | None = None,
    ) -> list[dict[str, Any]]:
        """The patients nearest to a vector, with their distances."""
        hits = self.index.search(vector[None], k, where=where, exclude=exclude)
        inter = self.sorted_inter
        listed = []
        for row, cosine, distance in zip(
            hits.rows[0], hits.cosine[0], hits.euclidean[0], strict=True
        ):
            if row < 0:
                break
            share = float(np.searchsorted(inter, distance) / len(inter)) if len(inter) else None
            listed.append(
                self.summary(int(row))
                | {"cosine": float(cosine), "distance": float(distance), "closer_pairs": share}
            )
        return listed

    @cached_property
    def sorted_inter(self) -> NDArray[np.float32]:
        return np.sort(self.distances.inter)


def recording_facts(leads: Sequence[str], samples: int, rate: float, unit: str) -> dict[str, Any]:
    return {"leads": list(leads), "seconds": samples / rate, "rate": rate, "unit": unit}


def packed_signal(recording: Recording, start: float, seconds: float, lead: str | None) -> bytes:
    """Digital samples with gain and baseline, from which the page computes amplitudes."""
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


def key_of(folder: Path) -> bytes:
    """The folder's secret key of pseudonyms, made if there is none and readable only by its owner.

    A patient keeps the same pseudonym (a shared link still works tomorrow), and nobody without the
    key can compute pseudonyms from IDs.
    """
    path = folder / "pseudonyms.key"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) == 32:
            return key
        handle = os.open(path, os.O_WRONLY | os.O_TRUNC, 0o600)  # truncated: make another
    key = secrets.token_bytes(32)
    with os.fdopen(handle, "wb") as file:
        file.write(key)
    return key


def pseudonyms(patients: Iterable[tuple[str, str]], key: bytes) -> list[str]:
    """A keyed hash of each (dataset, patient), all distinct."""
    keyed = hashlib.blake2b(key=key, digest_size=DIGITS // 2)
    taken: dict[str, None] = {}
    for dataset, patient in patients:
        word = keyed.copy()
        word.update(f"{dataset}\0{patient}".encode())
        while (code := word.hexdigest()) in taken:
            word.update(b"\0again")
        taken[code] = None
    return list(taken)

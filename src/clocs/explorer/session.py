"""A session: everything behind one explorer's page, and the queries that the page can make.

Patients are known by their pseudonyms; unless `show_ids` is set, no result contains an ID, or
anything that can be computed from one without the key. The split can (`frames.splits`), so it is
shown together with IDs only.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.datasets.chapman import RHYTHMS
from clocs.datasets.label_names import LabelName, label_name
from clocs.datasets.pseudonyms import keyed_hash
from clocs.errors import ClocsError, SettingError
from clocs.explorer.embed_stores import ReferenceDistances
from clocs.explorer.patient_map import UNKNOWN_AGE, Projection, label_names, map_columns, pca
from clocs.explorer.predictions import SavedClassifiers, ShownRecording
from clocs.frames.frames import SEXES
from clocs.frames.splits import PARTS
from clocs.measurements.beats import average_beat
from clocs.patients.embeddings import Embeddings
from clocs.patients.index import PatientIndex
from clocs.recording import Recording
from clocs.store.store import Store
from clocs.web.packing import pack

DIGITS = 10  # of pseudonyms; 100,000 patients collide with probability 1/220, which is resolved
NEIGHBORS = 10
_KEPT, _BRIEF = 64, 100_000  # recordings in memory, and the most samples per lead of one
SLOTS = 35  # looks of labels: seven hues, twice, in five shapes
_LOOKS = (  # of usual labels; those of one dataset, and of PTB-XL, are far apart
    "NSR|AF AFIB|SB|GSVT|IAVB|RBBB|LBBB|PAC|PVC|SVT|STE|O|VTach|STD|NORM|HYP|STTC|STach|AVB|EAR|"
    "~ NOISE|AVJR|VBig|MI|VTrig|AFL|CD|WENCKEBACH||||IR"
)
_USUAL = {  # by SNOMED CT code or label
    label_name(label).code or label: slot
    for slot, labels in enumerate(_LOOKS.split("|"))
    for label in labels.split()
}


class NotFoundError(ClocsError):
    """This session has no such patient, recording or upload."""


def pseudonyms(named: Iterable[tuple[str, str]], key: bytes) -> list[str]:
    """A keyed hash of each (dataset, ID), all distinct."""
    keyed = keyed_hash(key, DIGITS // 2)
    taken: dict[str, None] = {}
    for dataset, name in named:
        word = keyed.copy()
        word.update(f"{dataset}\0{name}".encode())
        while (code := word.hexdigest()) in taken:
            word.update(b"\0again")
        taken[code] = None
    return list(taken)


def in_order_of_pseudonyms(embeddings: Embeddings, key: bytes) -> tuple[Embeddings, list[str]]:
    """The same patients sorted by their pseudonyms, and these.

    A store is sorted by patient ID, and lists of IDs are often public. In this order, whatever
    depends on it (the map, ties between neighbors, row numbers) says nothing about IDs to those
    without the key.
    """
    codes = pseudonyms(embeddings.rows.select("dataset", "patient").iter_rows(), key)
    order = np.argsort(np.array(codes, "S"))
    patients = replace(embeddings, vectors=embeddings.vectors[order], rows=embeddings.rows[order])
    return patients, [codes[i] for i in order]


@dataclass(frozen=True)
class OtherMap:
    """Patients as another encoder sees them."""

    name: str  # of the encoder
    projection: Projection
    rows: NDArray[np.int64]  # of the session's patients, those that have a vector


@dataclass
class Session:
    """Everything behind one page; `open_session` makes it."""

    embeddings: Embeddings  # in the order of the pseudonyms
    codes: Sequence[str]  # the pseudonyms
    projection: Projection
    distances: ReferenceDistances
    stores: Mapping[str, Store]  # by dataset, for the signals; possibly not of every dataset
    key: bytes  # of the pseudonyms
    checkpoint: Path | None = None  # for uploads
    models: SavedClassifiers | None = None  # which predict
    measured: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # (patients,) each
    remarks: Sequence[str] = ()  # on what is missing, for the page
    others: Sequence[OtherMap] = ()  # of the same patients, by further encoders
    encoder: str = ""  # name of the first encoder
    cohorts: Path = Path("cohorts")  # where groups of patients are saved
    report: Path | None = None  # a page with results
    runs: Path | None = None  # a folder of trainings
    show_ids: bool = False
    title: str = "clocs"

    def __post_init__(self) -> None:
        if self.embeddings.level != "patient":
            raise SettingError(
                f"the embeddings have level {self.embeddings.level!r}; "
                "make them with `level` 'patient'"
            )
        if list(self.codes) != sorted(self.codes):
            raise ValueError("patients must be in the order of their pseudonyms")
        self._rows = {code: row for row, code in enumerate(self.codes)}

    # All patients

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the bits of the label column."""
        first = [label for store in self.stores.values() for label in store.manifest.labels]
        return label_names(self.embeddings.rows, first)

    @cached_property
    def label_names(self) -> list[dict[str, Any]]:
        """What each label means, and in which datasets it is used."""
        rows = self.embeddings.rows.select("dataset", "labels")
        pairs = set(rows.explode("labels").drop_nulls().unique().iter_rows())
        used = {label: sorted(d for d, own in pairs if own == label) for label in self.labels}
        named = [
            label_name(label, datasets[0] if datasets else "") for label, datasets in used.items()
        ]
        return [
            vars(one) | {"datasets": datasets, "slot": slot}
            for one, datasets, slot in zip(named, used.values(), color_slots(named), strict=True)
        ]

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """One value per patient: what the map is colored and filtered by."""
        return map_columns(self.embeddings.rows, self.labels, self.datasets)

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        return tuple(sorted(self.embeddings.rows["dataset"].unique().to_list()))

    def to_dict(self) -> dict[str, Any]:
        """About the whole session."""
        _, state = self.projection.now
        tabs = {"quality": self.stores, "training": self.runs, "results": self.report}
        return {
            "title": self.title,
            "patients": len(self.embeddings),
            "datasets": self.datasets,
            "labels": self.labels,
            "label_names": self.label_names,
            "splits": [*PARTS, "unknown"] if self.show_ids else [],
            "sexes": SEXES,
            "unknown_age": UNKNOWN_AGE,
            "show_ids": self.show_ids,
            "signals": bool(self.stores),
            "uploads": self.checkpoint is not None,
            "models": [] if self.models is None else self.models.names,
            "tabs": [name for name, shown in tabs.items() if shown],
            "projection": state,
            "encoders": [self.encoder, *(one.name for one in self.others)],
            "not_embedded": len(self.embeddings.only_zeros),
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """About datasets; files that could not be embedded are counted, for their names are IDs."""
        problems = self.embeddings.problems
        named = [one for one in problems if self.show_ids or one[0] in self.datasets]
        notes = [f"{name}: {sentence}" for name, sentence in named]
        if left := len(problems) - len(named):
            notes.append(f"{left:,} recordings could not be embedded; `clocs embed` lists them")
        return [*notes, *self.remarks]

    def map(self) -> bytes:
        """Positions, pseudonyms and columns of all patients, packed."""
        positions, state = self.projection.now
        codes = np.frombuffer(bytes.fromhex("".join(self.codes)), np.uint8)
        arrays: dict[str, NDArray[Any]] = {"positions": positions}
        arrays["codes"] = codes.reshape(len(self.codes), -1)
        shown = {k: v for k, v in self.columns.items() if k != "split" or self.show_ids}
        return pack({"projection": vars(state)}, arrays | shown)

    def positions(self, kind: str | None = None, encoder: int = 0) -> bytes:
        """Positions only, packed: of this projection, or of the map's, once UMAP has finished.

        By another encoder, they are nan where a patient has no vector.
        """
        positions, state = self.projection_of(encoder).now
        if encoder:
            every = np.full((len(self.codes), 2), np.nan, np.float32)
            every[self.others[encoder - 1].rows] = positions
            return pack({"projection": vars(state)}, {"positions": every})
        if kind == "pca" and state.kind != "pca":
            positions = pca(self.embeddings.vectors)
        elif kind is not None and kind != state.kind:
            raise SettingError("UMAP has not finished; the map shows PCA until then")
        return pack({"projection": vars(state)}, {"positions": positions})

    def projection_of(self, encoder: int) -> Projection:
        """That of the first encoder, 0, or of another."""
        if encoder > len(self.others):
            raise NotFoundError(f"there is no encoder {encoder}; there are {1 + len(self.others)}")
        return self.others[encoder - 1].projection if encoder else self.projection

    # One patient

    def row(self, code: str) -> int:
        """The row of a pseudonym."""
        if code not in self._rows:
            raise NotFoundError(f"there is no patient {code[:40]}")
        return self._rows[code]

    def name(self, row: int) -> str:
        """The patient's name on the page."""
        if self.show_ids:
            return str(self.embeddings.rows["patient"][row])
        return f"Patient {self.codes[row]}"

    @cached_property
    def _shown(self) -> pl.DataFrame:
        return self.embeddings.rows.select("dataset", "patient", "labels", "split", "age", "sex")

    def ids(self, code: str) -> tuple[str, str]:
        """The dataset and the patient's own ID, which are for no visitor."""
        dataset, patient, *_ = self._shown.row(self.row(code))
        return dataset, patient

    def summary(self, row: int) -> dict[str, Any]:
        """One line of a list."""
        facts = self._shown.row(row, named=True)
        del facts["patient"]
        if facts["age"] is not None and not np.isfinite(facts["age"]):
            facts["age"] = None
        facts["labels"] = sorted(facts["labels"])  # else in the order of the recordings' IDs
        if not self.show_ids:
            facts["split"] = None
        return {"code": self.codes[row], "row": row, "name": self.name(row)} | facts

    def measured_of(self, row: int) -> dict[str, float | None]:
        """What was measured of a patient, by name."""
        found = {name: float(own[row]) for name, own in self.measured.items()}
        return {name: None if np.isnan(one) else round(one, 2) for name, one in found.items()}

    def patient(self, code: str) -> dict[str, Any]:
        """A patient's facts and recordings."""
        row = self.row(code)
        dataset, places = self._recordings(row)
        table = [self.stores[dataset].table.row(place, named=True) for place in places]
        listed = [
            recording_facts(one["leads"], one["samples"], one["rate"], one["unit"])
            | {
                "number": number,
                "name": one["id"] if self.show_ids else f"Recording {number + 1}",
                "labels": one["labels"],
                "episodes": sorted({episode["label"] for episode in one["episodes"]}),
                "rhythm": RHYTHMS.get(str(json.loads(one["extra"]).get("rhythm")).upper()),
            }
            for number, one in enumerate(table)
        ]
        return self.summary(row) | {"recordings": listed}

    def predictor(self) -> SavedClassifiers:
        """The saved classifiers."""
        if self.models is None:
            raise SettingError("no classifier is loaded; start the explorer with `model`")
        return self.models

    def recording(self, code: str, number: int) -> Recording:
        """One of a patient's, under a name that gives no ID away."""
        row = self.row(code)
        dataset, places = self._recordings(row)
        if number >= len(places):
            raise NotFoundError(f"{self.name(row)} has no recording {number + 1}")
        try:
            store, place = self.stores[dataset], places[number]
            brief = store.table["samples"][place] <= _BRIEF
            recording = self._kept(dataset, place) if brief else store.recording(place)
        except ClocsError:  # it names the recording
            logging.getLogger("clocs.explorer").exception("a recording cannot be read")
            raise SettingError(
                f"recording {number + 1} of {self.name(row)} cannot be read; `clocs info --verify` "
                "of its store says why"
            ) from None
        return replace(recording, id=f"{number + 1} of {self.name(row)}")

    def source(self, code: str, number: int) -> ShownRecording:
        """The same with whose it is, which is for no visitor."""
        return ShownRecording(self.recording(code, number), *self.ids(code))

    @cached_property
    def _kept(self) -> Callable[[str, int], Recording]:
        """A brief recording, by its place: a page asks for the same one several times."""
        return lru_cache(_KEPT)(lambda dataset, place: self.stores[dataset].recording(place))

    @cached_property
    def _places(self) -> dict[str, dict[str, list[int]]]:
        """By dataset and patient: the places of the patient's recordings in the store."""
        made = {}
        for dataset, store in self.stores.items():
            rows = store.table.select("patient").with_row_index("row")
            made[dataset] = dict(rows.group_by("patient", maintain_order=True).all().iter_rows())
        return made

    def _recordings(self, row: int) -> tuple[str, list[int]]:
        """In the store's order if IDs are shown, else in the order of their pseudonyms."""
        dataset, patient = self.ids(self.codes[row])
        places = self._places.get(dataset, {}).get(patient, [])
        if self.show_ids or len(places) < 2:
            return dataset, places
        names = [(dataset, self.stores[dataset].table["id"][place]) for place in places]
        return dataset, [places[i] for i in np.argsort(pseudonyms(names, self.key))]

    # Neighbors

    @cached_property
    def index(self) -> PatientIndex:
        return PatientIndex.build(self.embeddings)

    def neighbors(self, code: str, k: int = NEIGHBORS) -> dict[str, Any]:
        """The most similar patients, nearest first."""
        row = self.row(code)
        found = self.near(self.embeddings.vectors[row], k + 1, without=row)[:k]
        return {"code": code, "name": self.name(row), "neighbors": found}

    def near(self, vector: NDArray[np.float32], k: int, without: int = -1) -> list[dict[str, Any]]:
        """The patients nearest to a vector, with their distances, `without` the one of a row."""
        hits = self.index.search(vector[None], k)
        listed = []
        for row, cosine, distance in zip(
            hits.rows[0], hits.cosine[0], hits.euclidean[0], strict=True
        ):
            if row < 0:
                break
            if row == without:
                continue
            listed.append(self.summary(int(row)) | self._distance(float(cosine), float(distance)))
        return listed

    def apart(self, code: str, other: str) -> dict[str, Any]:
        """How far apart two patients are."""
        vectors = self.embeddings.vectors[[self.row(code), self.row(other)]].astype(np.float64)
        one, two = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return self._distance(1 - float(one @ two), float(np.linalg.norm(one - two)))

    def _distance(self, cosine: float, distance: float) -> dict[str, Any]:
        inter = self.sorted_inter
        # as float32: else all of them would be converted first
        share = (
            float(np.searchsorted(inter, np.float32(distance)) / len(inter)) if len(inter) else None
        )
        return {"cosine": cosine, "distance": distance, "closer_pairs": share}

    @cached_property
    def sorted_inter(self) -> NDArray[np.float32]:
        return np.sort(self.distances.inter)


def color_slots(labels: Sequence[LabelName]) -> list[int]:
    """The place of each label among the page's colors; usual labels have theirs in every session.

    It depends on the SNOMED CT code, so that sinus rhythm has one color whatever it is called.
    Others have the first free place after one that depends on them alone.
    """
    keys = [one.code or one.label for one in labels]
    places = {key: _USUAL[key] for key in keys if key in _USUAL}
    for key in keys:
        own, taken = zlib.crc32(key.encode()), {*places.values()}
        free = (slot for step in range(SLOTS) if (slot := (own + step) % SLOTS) not in taken)
        places.setdefault(key, next(free, SLOTS + len(taken)))
    return [places[key] for key in keys]


def recording_facts(leads: Sequence[str], samples: int, rate: float, unit: str) -> dict[str, Any]:
    return {"leads": list(leads), "seconds": samples / rate, "rate": rate, "unit": unit}


def packed_beats(recording: Recording) -> bytes:
    """`peaks` in seconds; `mean` and `spread` have no samples where there is no average beat."""
    recording = recording.with_limb_leads()
    facts = recording_facts(recording.leads, recording.samples, recording.rate, recording.unit)
    facts["before"] = 0.0
    arrays = {"peaks": np.zeros(0), "mean": np.zeros((len(recording.leads), 0))}
    arrays["spread"] = arrays["mean"]
    if (beat := average_beat(recording)) is not None:
        facts["before"] = beat.before / beat.rate
        arrays = {"peaks": beat.peaks / beat.rate, "mean": beat.mean, "spread": beat.spread}
    return pack(facts, {name: values.astype(np.float32) for name, values in arrays.items()})

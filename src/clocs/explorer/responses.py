"""What the endpoints answer, as types: they are the OpenAPI description. Knows nothing else."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class Problem(BaseModel):
    """Every error: one sentence."""

    message: str


class ProjectionState(BaseModel):
    """How far the map is."""

    kind: Literal["pca", "umap"]
    state: Literal["ready", "working", "failed"]
    progress: float
    words: str


class SessionFacts(BaseModel):
    """About the whole session."""

    title: str
    patients: int
    datasets: list[str]
    labels: list[str]
    splits: list[str]
    sexes: list[str]
    unknown_age: int
    show_ids: bool
    signals: bool
    uploads: bool
    report: bool
    projection: ProjectionState
    without_direction: int


class Histogram(BaseModel):
    """Distances within and between patients, as densities over common bins."""

    edges: list[float]
    intra: list[float]
    inter: list[float]
    intra_mean: float | None
    inter_mean: float | None
    separability: float | None
    words: str


class Prediction(BaseModel):
    """A class and how likely it is."""

    label: str
    probability: float


class Predictions(BaseModel):
    """What one dataset's linear classifier says."""

    dataset: str
    multilabel: bool
    trained_on: int
    tested_on: int
    auc: float | None
    classes: list[Prediction]


class RecordingFacts(BaseModel):
    """One recording."""

    leads: list[str]
    seconds: float
    rate: float
    unit: str


class ListedRecording(RecordingFacts):
    """One of a patient's recordings."""

    number: int
    name: str
    labels: list[str]
    episodes: list[str]


class Summary(BaseModel):
    """Who."""

    code: str
    row: int
    name: str
    dataset: str
    labels: list[str]
    split: str | None
    age: float | None
    sex: str | None


class Patient(Summary):
    """Who, with recordings and predictions."""

    recordings: list[ListedRecording]
    predictions: list[Predictions]


class Neighbour(Summary):
    """A similar patient.

    Attributes:
        cosine: Cosine distance.
        distance: Euclidean distance of the unit vectors.
        closer_than: The share of pairs of different patients that lie closer together.
    """

    cosine: float
    distance: float
    closer_than: float | None


class Neighbours(BaseModel):
    """The most similar patients, nearest first."""

    code: str
    name: str
    neighbours: list[Neighbour]


class Uploaded(BaseModel):
    """A visitor's own recording, placed among the patients."""

    code: str
    name: str
    notes: list[str]
    recording: RecordingFacts
    position: list[float] | None
    neighbours: list[Neighbour]
    predictions: list[Predictions]

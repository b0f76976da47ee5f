"""The types of the endpoints' responses, which make up the OpenAPI description."""

from __future__ import annotations

from pydantic import BaseModel

from clocs.explorer.patient_map import ProjectionState


class Problem(BaseModel):
    """The response to every error: one sentence."""

    message: str


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
    not_embedded: int
    notes: list[str]


class Histogram(BaseModel):
    """Distances within and between patients, as densities over common bins."""

    edges: list[float]
    intra: list[float]
    inter: list[float]
    intra_mean: float | None
    inter_mean: float | None
    separability: float | None
    description: str


class Prediction(BaseModel):
    """A class and its predicted probability."""

    label: str
    probability: float


class Predictions(BaseModel):
    """The predictions of one dataset's linear classifier."""

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
    """A patient in a list."""

    code: str
    row: int
    name: str
    dataset: str
    labels: list[str]
    split: str | None
    age: float | None
    sex: str | None


class Patient(Summary):
    """A patient with recordings and predictions."""

    recordings: list[ListedRecording]
    predictions: list[Predictions]


class Neighbour(Summary):
    """A similar patient.

    Attributes:
        cosine: Cosine distance.
        distance: Euclidean distance between unit vectors.
        closer_pairs: The share of pairs of different patients that are closer to each other.
    """

    cosine: float
    distance: float
    closer_pairs: float | None


class Neighbours(BaseModel):
    """The most similar patients, nearest first."""

    code: str
    name: str
    neighbours: list[Neighbour]


class Uploaded(BaseModel):
    """A visitor's own recording, compared with the patients."""

    code: str
    name: str
    notes: list[str]
    recording: RecordingFacts
    position: list[float] | None
    neighbours: list[Neighbour]
    predictions: list[Predictions]

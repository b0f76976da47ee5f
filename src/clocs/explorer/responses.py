"""The types of the endpoints' responses, which make up the OpenAPI description."""

from __future__ import annotations

from pydantic import BaseModel

from clocs.explorer.patient_map import ProjectionState


class LabelName(BaseModel):
    label: str
    name: str  # in words
    synonyms: list[str]
    code: str  # SNOMED CT; '' where there is none
    datasets: list[str]  # that use it


class SessionFacts(BaseModel):
    title: str
    patients: int
    datasets: list[str]
    labels: list[str]
    label_names: list[LabelName]  # of the labels, in their order
    splits: list[str]
    sexes: list[str]
    unknown_age: int
    show_ids: bool
    signals: bool
    uploads: bool
    models: list[str]  # names of saved classifiers
    rooms: list[str]  # beside that of the patients: quality, training, results
    projection: ProjectionState
    not_embedded: int
    notes: list[str]


class Histogram(BaseModel):
    edges: list[float]  # of the bins that both densities share
    intra: list[float]
    inter: list[float]
    intra_mean: float | None
    inter_mean: float | None
    separability: float | None
    description: str


class Prediction(BaseModel):
    label: str
    probability: float


class DatasetPrediction(BaseModel):
    dataset: str  # whose linear classifier predicts
    multilabel: bool
    trained_on: int
    tested_on: int
    auc: float | None
    notice: str | None  # that it has seen this patient in training
    classes: list[Prediction]


class LabelPrediction(BaseModel):
    label: str
    name: str  # in words
    probability: float
    threshold: float | None  # from which probability on it is predicted
    predicted: bool


class ModelPrediction(BaseModel):
    model: int  # a saved classifier, by its place in the session's `models`
    name: str
    dataset: str  # whose labels it learned
    multilabel: bool
    problem: str | None  # why there is no prediction
    abstained: str | None  # why no label is predicted, though there are probabilities
    notice: str | None  # that it has seen this patient, or these samples, in training
    classes: list[LabelPrediction]  # by descending probability


class RecordingFacts(BaseModel):
    leads: list[str]
    seconds: float
    rate: float
    unit: str


class ListedRecording(RecordingFacts):
    number: int
    name: str
    labels: list[str]
    episodes: list[str]


class Summary(BaseModel):
    code: str
    row: int
    name: str
    dataset: str
    labels: list[str]
    split: str | None
    age: float | None
    sex: str | None
    heart_rate: float | None  # beats per minute


class Patient(Summary):
    recordings: list[ListedRecording]
    predictions: list[DatasetPrediction]


class Distance(BaseModel):
    cosine: float  # distance
    distance: float  # Euclidean, between unit vectors
    closer_pairs: float | None  # share of pairs of different patients that are closer to each other


class Neighbor(Summary, Distance):
    pass


class Neighbors(BaseModel):
    code: str
    name: str
    neighbours: list[Neighbor]  # nearest first


class Uploaded(BaseModel):
    code: str
    name: str
    notes: list[str]
    recording: RecordingFacts
    position: list[float] | None
    neighbours: list[Neighbor]
    predictions: list[DatasetPrediction]

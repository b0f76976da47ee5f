"""The OpenAPI description: types of responses, and an example for everything that is sent."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from clocs.service.example import example_body
from clocs.web.shield import Problem
from clocs.web.uploads import FORM

MAX_NEIGHBORS = 100
_SENTENCE = "too short: the recording has 400 samples (0.80 s), a frame needs 2500"


class Message(Problem):
    model_config = ConfigDict(json_schema_extra={"example": {"message": _SENTENCE}})


class Model(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "cmsc-chapman",
                "kind": "encoder",
                "leads": ["II", "V2", "aVL", "aVR"],
                "seconds": 5.0,
                "rate": 500.0,
                "dimensions": 128,
                "labels": [],
                "card": {"method": "cmsc", "dataset": "chapman"},
            }
        }
    )
    name: str
    kind: str  # 'encoder' or 'classifier'
    leads: list[str]  # of which a recording needs one
    seconds: float  # of a frame, the shortest recording
    rate: float  # in Hz, to which recordings are resampled
    dimensions: int  # of an embedding
    labels: list[str]  # of a classifier, in the order of its card
    card: dict[str, Any]


class Models(BaseModel):
    models: list[Model]


_READ: dict[str, Any] = {
    "rate": 250.0,
    "unit": "mV",
    "leads_used": ["II"],
    "leads_missing": ["V2"],
    "leads_derived": [],
    "notes": ["values are assumed to be in µV, judging by their size"],
}


class ReadAs(BaseModel):
    """How the recording was read."""

    model_config = ConfigDict(json_schema_extra={"example": _READ})
    rate: float  # in Hz
    unit: str
    leads_used: list[str]  # that have a signal
    leads_missing: list[str]  # of the model's: not there, or flat throughout
    leads_derived: list[str]  # of those used: computed from I and II
    notes: list[str]  # what was assumed or left out


class Embedding(ReadAs):
    model_config = ConfigDict(
        json_schema_extra={"example": {"embedding": [0.0, 0.6, -0.8], **_READ}}
    )
    embedding: list[float]  # a unit vector


class Prediction(ReadAs):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "probabilities": {"AFIB": 0.93, "SB": 0.01, "SR": 0.06},
                "predicted": "AFIB",
                "abstained": None,
                "quality": 0.82,
                "distance": 3.1,
                **_READ,
            }
        }
    )
    probabilities: dict[str, float]  # calibrated, by label
    predicted: str | list[str] | None  # a list where there can be several; None if it abstains
    abstained: str | None  # why nothing is predicted
    quality: float  # of the signal, 0 to 1
    distance: float | None  # from the training recordings


class Neighbor(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "dataset": "chapman",
                "labels": ["AFIB"],
                "distance": 0.08,
                "euclidean": 0.4,
            }
        }
    )
    dataset: str | None
    labels: list[str]
    patient: str | None = None  # this and the next only if the service shows IDs
    recording: str | None = None
    age: float | None = None
    sex: str | None = None
    split: str | None = None
    distance: float  # cosine distance, 0 to 2
    euclidean: float  # distance of unit vectors


class Neighbors(ReadAs):
    neighbours: list[Neighbor]  # nearest first


class EmbeddingResults(BaseModel):
    results: list[Embedding | Problem]  # one per recording, in order


class PredictionResults(BaseModel):
    results: list[Prediction | Problem]


class NeighborResults(BaseModel):
    results: list[Neighbors | Problem]


class Status(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": {"status": "ready"}})
    status: str


_RECORDING: dict[str, Any] = {
    "type": "object",
    "required": ["signal", "rate"],
    "additionalProperties": False,
    "properties": {
        "signal": {
            "description": "One list of samples per lead; null where there is no value.",
            "type": "array",
            "minItems": 1,
            "maxItems": 64,
            "items": {
                "type": "array",
                "minItems": 1,
                "items": {"type": ["number", "null"]},
            },
        },
        "rate": {"type": "number", "minimum": 50, "maximum": 10_000, "description": "In Hz."},
        "leads": {
            "description": "The names of the leads, in order.",
            "type": "array",
            "minItems": 1,
            "maxItems": 64,
            "items": {"type": "string", "minLength": 1, "maxLength": 64},
        },
        "unit": {"type": "string", "enum": ["mV", "µV", "uV", "nV", "V"], "default": "mV"},
    },
}


def request_body(most: int) -> dict[str, Any]:
    """What the endpoints that compute accept; at most so many recordings."""
    batch = {
        "type": "object",
        "required": ["recordings"],
        "additionalProperties": False,
        "properties": {
            "recordings": {
                "type": "array",
                "minItems": 1,
                "maxItems": most,
                "items": _RECORDING,
            }
        },
    }
    one = example_body()
    array = {"type": "string", "format": "binary"}
    return {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"oneOf": [_RECORDING, batch]},
                "examples": {
                    "one": {"summary": "One recording of lead II", "value": one},
                    "batch": {"summary": "Two recordings", "value": {"recordings": [one, one]}},
                },
            },
            "application/x-npy": {
                "schema": array,
                "examples": {
                    "array": {
                        "summary": "A file of numpy.save: (leads, samples), or (recordings, "
                        "leads, samples); rate, leads and unit are in the address",
                    }
                },
            },
            "application/x-npz": {
                "schema": array,
                "examples": {
                    "arrays": {
                        "summary": "A file of numpy.savez with `signal`, and `rate`, `leads` and "
                        "`unit` or these in the address",
                    }
                },
            },
            "multipart/form-data": {
                **FORM,
                "examples": {
                    "files": {
                        "summary": "The files of recordings, such as a .hea and a .dat of each; of "
                        "several recordings, each result has a `name`"
                    }
                },
            },
        },
    }


def parameters(endpoint: str) -> list[dict[str, Any]]:
    """What stands in the address of an endpoint that computes."""

    def query(name: str, schema: dict[str, Any], about: str, example: object) -> dict[str, Any]:
        made = {"name": name, "in": "query", "schema": schema, "description": about}
        return made | {"required": False, "example": example}

    rate = {"type": "number", "minimum": 50, "maximum": 10_000}
    shared = [
        query("rate", rate, "Of an array: in Hz.", 500),
        query("leads", {"type": "string"}, "Of an array: names, separated by commas.", "II"),
        query("unit", {"type": "string", "default": "mV"}, "Of an array.", "mV"),
    ]
    if endpoint != "neighbours":
        name = {"name": "name", "in": "path", "schema": {"type": "string"}, "required": True}
        return [name | {"description": "As in `/models`.", "example": "cmsc-chapman"}, *shared]
    k = {"type": "integer", "minimum": 1, "maximum": MAX_NEIGHBORS, "default": 10}
    level = {"type": "string", "enum": ["patient", "recording"], "default": "patient"}
    return [
        query("k", k, "Number of neighbours.", 10),
        query("level", level, "What to search.", "patient"),
        *shared,
    ]


def responses_of(one: type[BaseModel], several: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The successful responses of an endpoint that computes, and its problems."""
    statuses = (401, 404, 408, 413, 415, 422, 429, 503)
    made: dict[int | str, dict[str, Any]] = {200: {"model": one | several}}
    return made | {status: {"model": Message} for status in statuses}

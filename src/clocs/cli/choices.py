"""Words that options of the commands about patients take: `--help` lists them."""

from __future__ import annotations

from enum import StrEnum


class LevelName(StrEnum):
    """What a vector stands for."""

    frame = "frame"
    recording = "recording"
    patient = "patient"


class IndexedName(StrEnum):
    """Levels that an index has."""

    patient = "patient"
    recording = "recording"


class PartName(StrEnum):
    """Parts of a store, by patient."""

    train = "train"
    validation = "validation"
    test = "test"
    all = "all"


class MetricName(StrEnum):
    """Distances of two vectors."""

    euclidean = "euclidean"
    cosine = "cosine"


class KindName(StrEnum):
    """Ways to search."""

    auto = "auto"
    exact = "exact"
    hnsw = "hnsw"
    ivf = "ivf"


class SexName(StrEnum):
    """As stores have it."""

    female = "female"
    male = "male"

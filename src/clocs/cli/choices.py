"""Choices of the options of the commands about patients, as `--help` lists them."""

from __future__ import annotations

from enum import StrEnum


class LevelName(StrEnum):
    """What a vector represents."""

    frame = "frame"
    recording = "recording"
    patient = "patient"


class IndexedName(StrEnum):
    """Levels of an index."""

    patient = "patient"
    recording = "recording"


class PartName(StrEnum):
    """Parts of a store, by patient."""

    train = "train"
    validation = "validation"
    test = "test"
    all = "all"


class MetricName(StrEnum):
    """Distances between two vectors."""

    euclidean = "euclidean"
    cosine = "cosine"


class KindName(StrEnum):
    """Kinds of index."""

    auto = "auto"
    exact = "exact"
    hnsw = "hnsw"
    ivf = "ivf"


class SexName(StrEnum):
    """Sexes, as stores name them."""

    female = "female"
    male = "male"

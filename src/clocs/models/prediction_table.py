"""The table of predictions: probabilities, what is predicted, and why it is not."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.files import csv_cell, private_folder, replacing, writing
from clocs.models.abstention import distance
from clocs.models.classifier import Classifier
from clocs.models.row_means import Means
from clocs.patients.reading import READ_SCHEMA
from clocs.patients.rows import write_rows
from clocs.sealed import own_hash

MODEL, HASH = "clocs.model", "clocs.model_sha256"  # in a parquet file's metadata
MEANINGS = "clocs.meanings"
SUFFIXES = (".parquet", ".csv")
_ABOUT: dict[str, type[pl.DataType]] = {
    "dataset": pl.String,
    "file": pl.String,
    "patient": pl.String,
    "recording": pl.String,
    "seconds": pl.Float64,
}
_MOSTLY = 0.5  # of the time flat: that, and no noise, is why the quality is low
_TIME: dict[str, type[pl.DataType]] = {"start": pl.Float64, "end": pl.Float64}


def prediction_table(
    classifier: Classifier, means: Sequence[Means], *, over_time: bool
) -> pl.DataFrame:
    """One row per recording or stretch.

    Args:
        classifier: Whose members made the vectors.
        means: Of each source.
        over_time: Whether the rows are stretches, with their start and end.
    """
    stretches = [one for source in means for one in source.stretches]
    first = np.cumsum([0] + [len(source.stretches) for source in means])
    at = np.concatenate([start + source.at for start, source in zip(first, means, strict=False)])
    vectors = torch.from_numpy(np.concatenate([source.vectors for source in means], axis=1))
    quality = np.concatenate([source.quality for source in means])
    flat = np.concatenate([source.flat for source in means])
    made = decide(classifier, vectors, quality[at], flat[at])
    kind = pl.List(pl.String) if classifier.card.multilabel else pl.String()
    about = {k: [getattr(s.item, k) for s in stretches] for k in _ABOUT}
    if over_time:
        about |= {k: [getattr(s, k) for s in stretches] for k in _TIME}
    table = pl.DataFrame(about, schema_overrides=_ABOUT | (_TIME if over_time else {}))
    found = pl.DataFrame(
        {"place": at}
        | {
            probability_column(label): made.probabilities[:, k]
            for k, label in enumerate(classifier.card.labels)
        }
        | {
            "predicted": pl.Series(made.predicted, dtype=kind),
            "abstained": pl.Series(made.abstained, dtype=pl.String),
            "distance": pl.Series(made.distance).fill_nan(None),
        }
    ).with_columns(pl.col("place").cast(pl.UInt32))
    read = [s.item.reading.facts() if s.item.reading else {} for s in stretches]
    more = {
        name: pl.Series([one.get(name) for one in read], dtype=kind)
        for name, kind in READ_SCHEMA.items()
    } | {
        "rows": pl.Series([s.rows for s in stretches], dtype=pl.Int64),
        "quality": pl.Series(quality).fill_nan(None),
        "problem": pl.Series([s.problem for s in stretches], dtype=pl.String),
    }
    joined = (
        table.with_columns(**more)
        .with_row_index("place")
        .join(found, on="place", how="left", maintain_order="left")
    )
    labels = [probability_column(label) for label in classifier.card.labels]
    names = [*table.columns, "rows", *labels, "predicted", "abstained", "quality", "distance"]
    return joined.select(*names, "problem", *READ_SCHEMA)


def probability_column(label: str) -> str:
    """The column of a label's probability; no label can be taken for another column."""
    return f"p({label})"


@dataclass(frozen=True)
class Decisions:
    """What a classifier says about n recordings."""

    probabilities: NDArray[np.float64]  # (n, classes), calibrated
    distance: NDArray[np.float64]  # (n,) from the training data; nan where that is not known
    abstained: list[str | None]  # why no label is predicted
    predicted: list[str | list[str] | None]  # None where it abstains


def decide(
    classifier: Classifier,
    vectors: torch.Tensor,
    quality: NDArray[np.float64],
    flat: NDArray[np.float64],
) -> Decisions:
    """Predict, or abstain.

    Args:
        classifier: Whose members made the vectors.
        vectors: (members, n, dim) the mean embeddings of recordings.
        quality: (n,) of their signals.
        flat: (n,) the share of the time for which these are flat.
    """
    logits = classifier.logits(vectors.double())
    chances = np.asarray(classifier.probabilities(logits).numpy())
    away = np.full(len(chances), np.nan)
    if classifier.reference:
        away = distance(classifier.reference, vectors).numpy()
    why = abstentions(classifier, quality, flat, away)
    likely = predicted_labels(classifier, chances)
    picked = [None if reason else one for one, reason in zip(likely, why, strict=True)]
    return Decisions(chances, away, why, picked)


def abstentions(
    classifier: Classifier,
    quality: NDArray[np.float64],
    flat: NDArray[np.float64],
    away: NDArray[np.float64],
) -> list[str | None]:
    """(n,) why no label is predicted, None where one is."""
    least = classifier.card.limits.get("quality", -np.inf)
    greatest = classifier.card.limits.get("distance", np.inf)
    made = []
    for own, still, far in zip(quality.tolist(), flat.tolist(), away.tolist(), strict=True):
        words = []
        if own < least and still >= _MOSTLY:
            words.append(f"no signal: {still:.0%} of the time is flat")
        elif own < least:
            words.append(f"too noisy: the signal's quality is {own:.2f}, below {least:.2f}")
        if far > greatest:
            words.append(
                f"unlike the training data: the distance is {far:.2f}, above {greatest:.2f}"
            )
        made.append("; ".join(words) or None)
    return made


def predicted_labels(classifier: Classifier, chances: NDArray[np.float64]) -> list[str | list[str]]:
    """(n, classes) -> the most probable label; where there can be several, those that are likely.

    A label is likely from its threshold on; one without a threshold is never predicted.
    """
    card = classifier.card
    if not card.multilabel:
        return [card.labels[k] for k in chances.argmax(axis=1)]
    limits = np.array([np.inf if t is None else t for t in card.thresholds])
    return [[card.labels[k] for k in np.flatnonzero(row)] for row in chances >= limits]


def fingerprint(classifier: Classifier) -> str:
    """A sha256 of the card and all tensors, the same for the file and for what was read of it."""
    made = hashlib.sha256(own_hash(classifier.card.to_dict()).encode())
    groups = [classifier.head, classifier.reference]
    groups += [tensors for one in classifier.encoders for tensors in (one.weights, one.buffers)]
    for tensors in groups:
        for name in sorted(tensors):
            made.update(name.encode())
            made.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return made.hexdigest()


def check_table(path: Path) -> None:
    """SettingError where a table cannot be written there."""
    if path.suffix not in SUFFIXES:
        raise SettingError(f"`out` is {path}; give a file name that ends in .parquet or .csv")
    if path.is_dir():
        raise SettingError(f"`out` is {path}, a folder; give the name of a file in it")
    folder = next(one for one in path.absolute().parents if one.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise SettingError(f"{folder} cannot be written to; give another `out`")


def write_table(table: pl.DataFrame, path: Path, classifier: Classifier) -> None:
    """Write a parquet file, with the classifier's name and hash in its metadata; or a CSV.

    What the labels mean is in that metadata, and in a column of the CSV.
    """
    private_folder(path.parent)
    if path.suffix == ".parquet":
        about = {MODEL: classifier.card.name, HASH: fingerprint(classifier)}
        about[MEANINGS] = json.dumps(classifier.card.meanings, ensure_ascii=False)
        write_rows(table, path, metadata=about)
        return
    words, several = classifier.card.meanings, classifier.card.multilabel
    own = pl.col("predicted")
    meaning = own.list.eval(pl.element().replace(words)) if several else own.replace(words)
    place = table.columns.index("predicted") + 1
    flat = (
        table.clone()
        .insert_column(place, table.select(meaning=meaning)["meaning"])
        .with_columns(pl.col(pl.List(pl.String)).list.join("; "))
        .with_columns(pl.col(pl.String).map_elements(csv_cell, pl.String))
    )
    with writing(path), replacing(path) as temporary:
        flat.write_csv(temporary)

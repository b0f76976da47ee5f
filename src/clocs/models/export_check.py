"""How far an exported model is from this package, on recordings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError
from clocs.models.classifier import Classifier, first_encoder
from clocs.models.exported import load_exported, run_of
from clocs.models.module_input import module_input
from clocs.patients.embed_files import embed_recordings
from clocs.recording import Recording, with_derived
from clocs.store.store import Store, as_store
from clocs.training.checkpoint import Checkpoint

MAX_RECORDINGS = 200  # of a store, evenly spread


@dataclass(frozen=True)
class Difference:
    """Greatest absolute differences, over all numbers of all recordings compared.

    Attributes:
        recordings: How many were compared.
        to_module: Between the exported model, in its own runtime, and `to_module()`.
        to_package: Between the exported model and this package's embedding or prediction.
    """

    recordings: int
    to_module: float
    to_package: float


def difference(
    model: Checkpoint | Classifier,
    path: Path,
    to: str,
    store: Store | Path | str,
    *,
    most: int = MAX_RECORDINGS,
) -> Difference:
    """Run an exported model, its module and this package on recordings of a store.

    Args:
        model: What was exported.
        path: Where to.
        to: In which format.
        store: Recordings; those too short or without the leads are left out.
        most: How many, evenly spread over the store.
    """
    opened = as_store(store)
    leads = _leads(first_encoder(model), opened)
    used, inputs = _usable(model, opened, leads, most)
    if not used:
        raise SettingError("no recording of this store has a frame of the model's leads")
    exported, module = load_exported(path, to), run_of(model.to_module())
    each = [(exported(x[None])[0], module(x[None])[0]) for x in inputs]
    found, expected = (np.stack(some) for some in zip(*each, strict=True))
    package = by_package(model, used, leads)
    return Difference(
        len(used), float(np.abs(found - expected).max()), float(np.abs(found - package).max())
    )


def by_package(
    model: Checkpoint | Classifier,
    recordings: Sequence[Recording],
    leads: Sequence[str] | None = None,
) -> NDArray[np.float32]:
    """(recordings, …): their embeddings, or the probabilities of their classes."""
    if isinstance(model, Checkpoint):
        embedded = embed_recordings(model, recordings, level="recording", leads=leads)
        rows = dict(zip(embedded.rows["recording"], embedded.vectors, strict=True))
        nothing = np.zeros(model.encoder.embedding_dim, np.float32)  # all its vectors are zero
        return np.stack([rows.get(one.id, nothing) for one in recordings])
    each = [embed_recordings(one, recordings, level="frame", leads=leads) for one in model.encoders]
    logits = model.logits(torch.from_numpy(np.stack([one.vectors for one in each])))
    owner = each[0].rows["recording"].to_numpy()
    means = [logits[torch.from_numpy(owner == one.id)].mean(dim=0) for one in recordings]
    made: NDArray[np.float32] = model.probabilities(torch.stack(means)).numpy()
    return made


def _leads(encoder: Checkpoint, store: Store) -> Sequence[str] | None:
    """Those to compare on: of a store with none of an encoder's leads, its own."""
    if encoder.encoder.leads or set(with_derived(store.leads)) & set(encoder.card.leads):
        return None
    return store.leads


def _usable(
    model: Checkpoint | Classifier, store: Store, leads: Sequence[str] | None, most: int
) -> tuple[list[Recording], list[NDArray[np.float32]]]:
    used, inputs = [], []
    for one in _spread(store, most):
        try:
            inputs.append(module_input(first_encoder(model), one, leads))
        except ClocsError:
            continue
        used.append(one)
    return used, inputs


def _spread(store: Store, most: int) -> Iterator[Recording]:
    places = np.unique(np.linspace(0, len(store) - 1, min(most, len(store))).round().astype(int))
    for place in places.tolist():
        yield store.recording(place)

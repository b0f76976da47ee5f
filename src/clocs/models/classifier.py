"""Classifier: encoders with linear layers on top, from recordings to probabilities.

One safetensors file holds everything, its card in the file's metadata; only an encoder inside the
package may be named there rather than copied. No pickle: a classifier from a stranger can be wrong,
never harmful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clocs.encoders.base import Weights, put
from clocs.errors import CheckpointError, SettingError, StoreError
from clocs.files import private_folder
from clocs.models.classifier_card import (
    ClassifierCard,
    is_classifier,
    not_a_classifier,
    shipped_as,
    shipped_encoders,
)
from clocs.training.card import CLASSIFIER, Card, weights_path
from clocs.training.checkpoint import STORED_AS, Checkpoint, RecordingModule, load_checkpoint


@dataclass(frozen=True)
class Classifier:
    """A classifier ready for use.

    A recording is cut into rows as its encoders see them (a frame of one lead, or of many leads at
    once); the logits of its rows are averaged, and `probabilities` makes of them what is predicted.

    Attributes:
        card: What it is.
        encoders: Its members; each has one linear layer on top.
        head: "weight" (members, dim, classes) and "bias" (members, classes).
        reference: Where the embeddings of training recordings lie; empty where that is not known.
    """

    card: ClassifierCard
    encoders: tuple[Checkpoint, ...]
    head: Weights
    reference: Weights

    def logits(self, z: Tensor) -> Tensor:
        """z: (members, n, dim) embeddings -> (n, classes), the mean over the members.

        The layers are linear: what they make of the mean embedding of a recording is the mean of
        what they make of its rows.
        """
        weight, bias = (self.head[name].to(z) for name in ("weight", "bias"))
        return torch.baddbmm(bias[:, None], z, weight).mean(dim=0)

    def probabilities(self, logits: Tensor) -> Tensor:
        """(n, classes) -> the same, calibrated."""
        scaled = logits / torch.tensor(
            self.card.temperature, dtype=logits.dtype, device=logits.device
        )
        return scaled.sigmoid() if self.card.multilabel else scaled.softmax(dim=-1)

    def to_module(self) -> ClassifierModule:
        """The classifier as a plain `torch.nn.Module`, for a loop of one's own and for export.

        It takes raw ECGs in mV at the rate of its encoders' frame, (batch, leads, samples), of at
        least one frame, and gives the probabilities of `clocs.predict`; `logits` gives what a loss
        takes, and `network` inside takes normalized frames. It is made of torch's own layers with
        copies of these weights, in evaluation mode.
        """
        return ClassifierModule(self.card, self.encoders, self.head)

    def save(self, path: Path | str, *, shared: bool = False) -> None:
        """Write one file, whole or not at all.

        Args:
            path: The file, ….safetensors.
            shared: Whether the encoders, which must be in the package, are left out: the file is
                small, and is read where the package has them.

        Raises:
            CheckpointError: An encoder to share is not in the package.
        """
        path = Path(path)
        if path.suffix != ".safetensors":
            raise CheckpointError(f"{path} does not end in .safetensors, as a classifier does")
        tensors = {f"head.{k}": v for k, v in self.head.items()}
        tensors |= {f"reference.{k}": v for k, v in self.reference.items()}
        cards = []
        for number, one in enumerate(self.encoders):
            if shared:
                check_shared(one)
                cards.append(one.card)
                continue
            about = {k: v for k, v in one.card.environment.items() if k != STORED_AS}
            cards.append(replace(one.card, environment=about))
            tensors |= {f"{number}.{k}": v for k, v in one.tensors().items()}
        arrays = {k: v.detach().cpu().numpy() for k, v in tensors.items()}
        arrays["recordings"] = np.unique(np.concatenate([e.recordings for e in self.encoders]))
        private_folder(path.parent)
        CLASSIFIER.write(path, replace(self.card, encoders=tuple(cards)).to_dict(), arrays)


class MemberNetworks(nn.Module):
    """Normalized frames to logits: the mean over members, each an encoder and a linear layer."""

    def __init__(self, encoders: Sequence[Checkpoint], head: Weights) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(
            one.encoder.to_module(one.weights, one.buffers) for one in encoders
        )
        self.heads = nn.ModuleList()
        for weight, bias in zip(head["weight"], head["bias"], strict=True):
            layer = nn.Linear(*weight.shape)
            put(layer, weight=weight.T, bias=bias)
            self.heads.append(layer)

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, leads, samples) -> (n, classes)."""
        logits = [
            layer(encoder(x)) for encoder, layer in zip(self.encoders, self.heads, strict=True)
        ]
        return torch.stack(logits).mean(dim=0)


class ClassifierModule(RecordingModule):
    """(batch, leads, samples) in mV to the probabilities of `clocs.predict`.

    Attributes:
        labels: What the columns of the output are.
        temperature: (classes,) by which logits are divided.
    """

    temperature: Tensor

    def __init__(self, card: ClassifierCard, encoders: Sequence[Checkpoint], head: Weights) -> None:
        first = encoders[0]
        if len({(one.card.normalization, one.encoder.samples) for one in encoders}) > 1:
            raise SettingError(
                "the members of this classifier take different inputs; make one module of each"
            )
        super().__init__(MemberNetworks(encoders, head), first.card, first.encoder)
        self.labels, self._multilabel = card.labels, card.multilabel
        self.register_buffer("temperature", torch.tensor(card.temperature))
        self.eval()

    def logits(self, x: Tensor) -> Tensor:
        """x: (batch, leads, samples) -> (batch, classes): the mean over views that have a signal.

        Not calibrated; for a loss such as cross-entropy. nan where no view has a signal.
        """
        rows, there = self.rows(x)
        total = rows.masked_fill(~there[..., None], 0).sum(dim=1)
        return total / there.sum(dim=1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, leads, samples) -> (batch, classes): calibrated probabilities."""
        scaled = self.logits(x) / self.temperature
        return scaled.sigmoid() if self._multilabel else scaled.softmax(dim=-1)


def load_classifier(path: Path | str) -> Classifier:
    """Read and check a classifier.

    Args:
        path: Its file, or the name of a shipped one.

    Raises:
        CheckpointError: It is none, or is damaged.
    """
    path = weights_path(path)
    try:
        facts, arrays = CLASSIFIER.read(path)
    except StoreError as error:
        raise CheckpointError(str(error)) from error
    try:
        card = ClassifierCard.from_dict(facts)
        recordings = arrays.pop("recordings")
        if recordings.dtype != np.uint64 or recordings.ndim != 1:
            raise ValueError("it does not list the recordings that it has seen")
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        encoders = tuple(
            Checkpoint.of(one, own, recordings, path)
            if (own := _named(tensors, f"{number}."))
            else _shared(one, recordings)
            for number, one in enumerate(card.encoders)
        )
        if len({one.encoder.embedding_dim for one in encoders}) > 1:
            raise ValueError("its encoders have different dimensions")
        head, reference = _named(tensors, "head."), _named(tensors, "reference.")
        shape = (len(encoders), encoders[0].encoder.embedding_dim, len(card.labels))
        found = {k: tuple(v.shape) for k, v in head.items()}
        if found != {"weight": shape, "bias": (shape[0], shape[2])}:
            raise ValueError(f"its linear layers have the shapes {found}, not {shape}")
        _check_reference(reference, *shape[:2])
        for tensor in (head | reference).values():
            if tensor.dtype != torch.float32 or not bool(tensor.isfinite().all()):
                raise ValueError("it holds numbers that are not finite, or not float32")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise not_a_classifier(path, error) from error
    return Classifier(card, encoders, head, reference)


def check_shared(encoder: Checkpoint) -> None:
    """CheckpointError where an encoder to be named, rather than copied, is not in the package."""
    if shipped_as(encoder.card.weights_sha256) is None:
        raise CheckpointError(
            "this encoder is not one of the package, whose weights a file may leave out; "
            f"use one of {', '.join(shipped_encoders())}, or leave out `shared`"
        )


def _shared(card: Card, recordings: NDArray[np.uint64]) -> Checkpoint:
    """An encoder that a classifier names but does not hold."""
    name = shipped_as(card.weights_sha256)
    if name is None:
        raise ValueError(
            f"it holds no encoder and needs one, {card.weights_sha256[:12] or 'of no name'}, that "
            "this version of clocs does not have"
        )
    held = load_checkpoint(name).for_frame(card.frame)
    if card.encoder != held.card.encoder:
        raise ValueError(f"its card describes another encoder than {name}")
    return replace(held, card=card, recordings=recordings)


def _check_reference(reference: Weights, members: int, dim: int) -> None:
    """Refuse what `clocs.models.abstention` could not use."""
    if not reference:
        return
    axes = reference["variance"].shape[-1]
    expected = {
        "mean": (members, dim),
        "axes": (members, axes, dim),
        "variance": (members, axes),
        "rest": (members,),
    }
    if {name: tuple(tensor.shape) for name, tensor in reference.items()} != expected:
        raise ValueError("its reference has other shapes than its encoders")
    if not all(bool((reference[name] > 0).all()) for name in ("variance", "rest")):
        raise ValueError("its reference has a variance that is not positive")


def _named(tensors: Weights, prefix: str) -> Weights:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def first_encoder(model: Checkpoint | Classifier) -> Checkpoint:
    """The one whose frame, leads and normalization are the model's."""
    return model.encoders[0] if isinstance(model, Classifier) else model


def as_classifier(classifier: Classifier | Path | str) -> Classifier:
    """The classifier, loaded where a path or name is given."""
    return classifier if isinstance(classifier, Classifier) else load_classifier(classifier)


def load(model: Path | str) -> Checkpoint | Classifier:
    """Read and check a model: an encoder, or a classifier.

    Args:
        model: Its .safetensors file, a folder of encoders (then the first seed), or the name of a
            shipped model (`clocs models` lists them).
    """
    path = weights_path(model)
    return load_classifier(path) if is_classifier(path) else load_checkpoint(path)

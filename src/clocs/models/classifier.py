"""Classifier: encoders with linear layers on top, from recordings to probabilities.

One safetensors file holds everything, its card in the file's metadata; only an encoder inside the
package may be named there rather than copied. No pickle: a classifier from a stranger can be wrong,
never harmful.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import CheckpointError, StoreError
from clocs.files import private_folder
from clocs.models.classifier_card import ClassifierCard
from clocs.models.classifier_module import ClassifierModule
from clocs.training.card import Card, read_card
from clocs.training.checkpoint import CLASSIFIER as FILE
from clocs.training.checkpoint import HALF, STORED_AS, Checkpoint, load_checkpoint
from clocs.training.shipped import SHIPPED, named_path, weights_path


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

    def halved(self) -> Classifier:
        """The same with weights rounded to float16, as they are saved with `half`."""
        rounded = tuple(
            replace(one, weights={k: v.half().float() for k, v in one.weights.items()})
            for one in self.encoders
        )
        return replace(self, encoders=rounded)

    def save(self, path: Path | str, *, half: bool = False, shared: bool = False) -> None:
        """Write one file, whole or not at all.

        Args:
            path: The file, ….safetensors.
            half: Whether the encoders' weights are rounded to float16, in half the size.
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
            cards.append(replace(one.card, environment=about | ({STORED_AS: HALF} if half else {})))
            tensors |= {f"{number}.{k}": v for k, v in one.tensors(half=half).items()}
        arrays = {k: v.detach().cpu().numpy() for k, v in tensors.items()}
        arrays["recordings"] = np.unique(np.concatenate([e.recordings for e in self.encoders]))
        private_folder(path.parent)
        FILE.write(path, replace(self.card, encoders=tuple(cards)).facts(), arrays)


def is_classifier(path: Path | str) -> bool:
    """Whether the file, or the shipped model of that name, is a classifier."""
    path = named_path(path)
    return path.suffix == ".safetensors" and path.is_file() and FILE.is_kind_of(path)


def load_classifier(path: Path | str) -> Classifier:
    """Read and check a classifier.

    Args:
        path: Its file, or the name of a shipped one.

    Raises:
        CheckpointError: It is none, or is damaged.
    """
    path = weights_path(path)
    try:
        facts, arrays = FILE.read(path)
    except StoreError as error:
        raise CheckpointError(str(error)) from error
    try:
        card = ClassifierCard.of(facts)
        recordings = arrays.pop("recordings")
        if recordings.dtype != np.uint64 or recordings.ndim != 1:
            raise ValueError("it does not list the recordings that it has seen")
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        encoders = tuple(
            Checkpoint.of(one, _of(tensors, f"{number}.") or _shared(one), recordings, path)
            for number, one in enumerate(card.encoders)
        )
        if len({one.encoder.embedding_dim for one in encoders}) > 1:
            raise ValueError("its encoders have different dimensions")
        head, reference = _of(tensors, "head."), _of(tensors, "reference.")
        shape = (len(encoders), encoders[0].encoder.embedding_dim, len(card.labels))
        found = {k: tuple(v.shape) for k, v in head.items()}
        if found != {"weight": shape, "bias": (shape[0], shape[2])}:
            raise ValueError(f"its linear layers have the shapes {found}, not {shape}")
        _check_reference(reference, *shape[:2])
        for tensor in (head | reference).values():
            if tensor.dtype != torch.float32 or not bool(tensor.isfinite().all()):
                raise ValueError("it holds numbers that are not finite, or not float32")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{path} is not {FILE.what} ({error}); {FILE.remedy}") from error
    return Classifier(card, encoders, head, reference)


def check_shared(encoder: Checkpoint) -> None:
    """Refuse to name an encoder, rather than copy it, that is not in the package.

    Raises:
        CheckpointError: It is not there, or its weights were changed.
    """
    if shipped_as(encoder.card.weights_sha256) is None:
        raise CheckpointError(
            "this encoder is not one of the package, whose weights a file may leave out; "
            f"use one of {', '.join(_shipped_encoders())}, or leave out `shared`"
        )


def _shared(card: Card) -> Weights:
    """The tensors of an encoder that a classifier names but does not hold."""
    name = shipped_as(card.weights_sha256)
    if name is None:
        raise ValueError(
            f"it holds no encoder and needs one, {card.weights_sha256[:12] or 'of no name'}, that "
            "this version of clocs does not have"
        )
    return load_checkpoint(name).tensors(half=STORED_AS in card.environment)


@cache
def _shipped_encoders() -> dict[str, str]:
    """The sha256 of the weights of each encoder inside the package, by its name."""
    rows = [row for row in SHIPPED.values() if row.kind == "encoder"]
    return {row.name: read_card(row.file.with_suffix(".json")).weights_sha256 for row in rows}


def shipped_as(weights_sha256: str) -> str | None:
    """The name of the encoder inside the package that has these weights."""
    for name, known in _shipped_encoders().items():
        if known == weights_sha256:
            return name
    return None


def _check_reference(reference: Weights, members: int, dim: int) -> None:
    """Refuse what `clocs.models.reference` could not use."""
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


def _of(tensors: Weights, prefix: str) -> Weights:
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

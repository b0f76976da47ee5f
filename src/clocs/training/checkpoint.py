"""Checkpoint: an encoder's weights (safetensors) and its card (JSON), all that is needed to use it.

No pickle: a checkpoint from a stranger can be wrong, never harmful.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from clocs._version import __version__
from clocs.encoders.base import Encoder, Weights
from clocs.encoders.make import ENCODERS, make_encoder
from clocs.errors import CheckpointError
from clocs.files import seed_files, write_atomic
from clocs.recording import FrameSpec
from clocs.training.fleet import Layout

FORMAT = 1
NORMALISATION = "min-max per frame and lead"
NOTICE = (
    "Embeddings are learned to tell patients apart: treat them as data that can identify a person."
)


@dataclass(frozen=True)
class Card:
    """What a person or a program must know to use the weights elsewhere."""

    method: str  # how the encoder was learned
    seed: int  # its random seed
    dataset: str | None  # that it was trained on; None where no data was seen
    content: str | None  # content hash of the store it was trained on
    split_seed: int  # random seed of the patient split; training and validation patients were seen
    leads: tuple[str, ...]  # names of the leads it was trained on
    frame_trained: FrameSpec  # the frame of its training views
    frame: FrameSpec  # the frame to use it with
    encoder: dict[str, Any]  # arguments of `make_encoder`
    labels: tuple[str, ...]  # class names of the dataset
    training: dict[str, Any] = field(default_factory=dict)  # its settings
    metrics: dict[str, Any] = field(default_factory=dict)  # losses, epochs and how training ended
    environment: dict[str, Any] = field(default_factory=dict)  # versions, device and threads
    salt: str = ""  # salt of the hashed patients and recordings, hexadecimal
    normalisation: str = NORMALISATION  # how the encoder's input is normalised
    notice: str = NOTICE  # for anyone who passes the checkpoint on
    weights_sha256: str = ""  # hash of the weights file
    clocs: str = __version__  # the version that wrote it
    format: int = FORMAT  # version of this card's format


@dataclass(frozen=True)
class Checkpoint:
    """An encoder ready for use.

    Attributes:
        card: What it is.
        weights: (1, …) each.
        buffers: (1, …) each.
        patients: Hashed training and validation patients (`clocs.training.leak_guard`), sorted.
        recordings: Hashed contents of their recordings, sorted.
    """

    card: Card
    weights: Weights
    buffers: Weights
    patients: NDArray[np.uint64]
    recordings: NDArray[np.uint64]

    @property
    def encoder(self) -> Encoder:
        return make_encoder(**self.card.encoder)

    @property
    def fingerprint(self) -> str:
        """The sha256 of the weights file, even before it is written."""
        return self.card.weights_sha256 or hashlib.sha256(self._content()).hexdigest()

    def save(self, path: Path) -> None:
        """Write `path` (….safetensors) and the card beside it (….json), each atomically."""
        content = self._content()
        card = asdict(self.card) | {"weights_sha256": hashlib.sha256(content).hexdigest()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
        write_atomic(
            path.with_suffix(".json"), json.dumps(card, indent=2, ensure_ascii=False).encode()
        )

    def _content(self) -> bytes:
        """The safetensors file."""
        tensors = {f"weights.{k}": v[0].cpu().contiguous() for k, v in self.weights.items()}
        tensors |= {f"buffers.{k}": v[0].cpu().contiguous() for k, v in self.buffers.items()}
        tensors["patients"] = torch.from_numpy(self.patients)
        tensors["recordings"] = torch.from_numpy(self.recordings)
        return save(tensors)


def load_checkpoint(path: Path | str) -> Checkpoint:
    """Read and check one checkpoint.

    Args:
        path: Its .safetensors file, or a folder (then its first seed).
    """
    return load_checkpoints(path)[0]


def load_checkpoints(path: Path | str) -> list[Checkpoint]:
    """Read one checkpoint, or all seeds of a folder in order of their numbers."""
    return [_load(file) for file in seed_files(Path(path))]


def _load(path: Path) -> Checkpoint:
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; give a checkpoint made by `clocs pretrain`")
    if path.suffix != ".safetensors":
        raise CheckpointError(
            f"{path} is not a checkpoint; give a folder made by `clocs pretrain`, or a "
            "seed-N.safetensors in it"
        )
    card = _load_card(path.with_suffix(".json"))
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != card.weights_sha256:
        raise CheckpointError(f"{path} does not match its card {path.stem}.json; copy both again")
    try:
        tensors = load(content)
        patients = tensors.pop("patients").numpy()
        recordings = tensors.pop("recordings").numpy()
    except (SafetensorError, KeyError) as error:
        raise CheckpointError(f"{path} is not a clocs checkpoint ({error})") from error
    checkpoint = Checkpoint(
        card=card,
        weights=_named(tensors, "weights."),
        buffers=_named(tensors, "buffers."),
        patients=patients,
        recordings=recordings,
    )
    _check_shapes(path, checkpoint)
    return checkpoint


def _load_card(path: Path) -> Card:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: a checkpoint needs its card beside it")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        version = facts["format"]
        if version != FORMAT:
            raise CheckpointError(
                f"{path} has format {version}, but this version of clocs reads format {FORMAT}; "
                "use the version that wrote it or train again"
            )
        facts = {name: facts[name] for name in (f.name for f in fields(Card))}
        for name in ("frame", "frame_trained"):
            facts[name] = FrameSpec(**facts[name])
        for name in ("leads", "labels"):
            facts[name] = tuple(facts[name])
        return Card(**facts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not the card of a clocs checkpoint ({error})") from error


def _named(tensors: Weights, prefix: str) -> Weights:
    return {k.removeprefix(prefix): v[None] for k, v in tensors.items() if k.startswith(prefix)}


def _check_shapes(path: Path, checkpoint: Checkpoint) -> None:
    """The tensors must be those of the encoder that the card names."""
    name = checkpoint.card.encoder.get("name")
    if name not in ENCODERS:
        raise CheckpointError(
            f"{path} is of the encoder {name!r}, which is not known here; add it to "
            f"`clocs.encoders.make.ENCODERS` first (known: {', '.join(ENCODERS)})"
        )
    try:
        encoder = checkpoint.encoder
    except TypeError as error:
        raise CheckpointError(f"{path}: its card describes no known encoder ({error})") from error
    no_keys = torch.zeros(0, dtype=torch.int64)
    expected = {"weights": encoder.parameters(no_keys), "buffers": encoder.buffers(0)}
    for kind, tensors in expected.items():
        if Layout.of(getattr(checkpoint, kind)).shapes != Layout.of(tensors).shapes:
            raise CheckpointError(
                f"{path} does not hold the {kind} of the encoder {checkpoint.card.encoder}"
            )


def as_checkpoint(checkpoint: Checkpoint | Path | str) -> Checkpoint:
    """The checkpoint, loaded where a path is given; of a folder, the first seed."""
    return checkpoint if isinstance(checkpoint, Checkpoint) else load_checkpoint(checkpoint)


def as_checkpoints(given: Checkpoint | Sequence[Checkpoint] | Path | str) -> Sequence[Checkpoint]:
    """All seeds of a method: those in a folder, or those given."""
    if isinstance(given, Path | str):
        return load_checkpoints(given)
    return [given] if isinstance(given, Checkpoint) else given

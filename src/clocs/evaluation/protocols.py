"""Protocols: encoders, labelled rows -> what they say of validation and test rows.

Each protocol takes a crew (members with encoders of one kind, whatever their method) and answers
for all members at once. Knows nothing about scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.evaluation.classifier_loss import class_weights
from clocs.evaluation.finetune import Classifiers, Finetune, Windows, fleets
from clocs.evaluation.knn import votes
from clocs.evaluation.linear import Labelled, LinearHead, probabilities
from clocs.evaluation.logistic import fit_logistic
from clocs.frames.frames import Frames
from clocs.frames.views import Instances
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import embed_instances
from clocs.training.loop import Epoch, Settings, Trained, fit
from clocs.training.signals import Signals

_SMALL = 500_000  # numbers in a batch of embeddings that one thread handles as fast as two

Protocol = Literal["linear", "linear-converged", "finetune", "knn"]


@dataclass(frozen=True)
class Crew:
    """Members that are asked together.

    Attributes:
        checkpoints: One a member.
        frames: The labelled data.
        rows: Labelled rows of training (those that any member may use), validation and test.
        labelled: For each member, the training rows that it may learn from.
        settings: Of what is trained.
        weighted: Whether rare classes weigh as much as common ones.
        k: Neighbours of 'knn'.
        curve: Whether to note the validation AUC after every epoch.
        device: Where.
        on_epoch: Called after each epoch.
    """

    checkpoints: Sequence[Checkpoint]
    frames: Frames
    rows: tuple[Instances, Instances, Instances]
    labelled: list[Tensor]
    settings: Settings
    weighted: bool
    k: int
    curve: bool
    device: torch.device
    on_epoch: Callable[[Epoch], None]

    @property
    def seeds(self) -> list[int]:
        return [checkpoint.card.seed for checkpoint in self.checkpoints]

    def embedded(self) -> list[Labelled]:
        """Frozen embeddings of the three parts."""
        return [
            Labelled(
                embed_instances(self.checkpoints, self.frames, part, self.device),
                self._targets(part),
                self.frames.multilabel,
            )
            for part in self.rows
        ]

    def weights(self) -> Tensor | None:
        """(members, classes) of the classes, from what each member may learn from."""
        if not self.weighted:
            return None
        targets, multilabel = self._targets(self.rows[0]), self.frames.multilabel
        return torch.stack([class_weights(targets[own], multilabel) for own in self.labelled])

    def _targets(self, part: Instances) -> Tensor:
        return torch.from_numpy(self.frames.target[part.frame]).to(self.device)


@dataclass(frozen=True)
class Answers:
    """What all members say.

    Attributes:
        validation: (members, rows, classes) probabilities.
        test: (members, rows, classes) probabilities.
        logits: (members, rows, classes) of the test rows, before they became probabilities.
        common: Facts about how they came about.
        own: The same, one value a member.
        curves: One a member: validation AUC after every epoch; empty where not asked for.
        classifiers: One a member, where encoders were trained.
    """

    validation: NDArray[np.float64]
    test: NDArray[np.float64]
    logits: NDArray[np.float64]
    common: dict[str, Any] = field(default_factory=dict)
    own: dict[str, list[Any]] = field(default_factory=dict)
    curves: list[list[float]] = field(default_factory=list)
    classifiers: list[Classifiers] = field(default_factory=list)


def linear(crew: Crew) -> Answers:
    """The paper's: one linear layer on frozen embeddings, by gradient descent."""
    train, validation, test = crew.embedded()
    head = LinearHead(train, validation, crew.labelled, crew.weights(), curve=crew.curve)
    curves = _Curves(range(len(crew.seeds)), crew)
    batch = train.features[:, : crew.settings.batch_size].numel()
    with _few_threads(crew.device, batch):
        trained = fit(head, crew.seeds, crew.settings, device=crew.device, on_epoch=curves)
    with torch.no_grad():
        parts = [_numpy(head.logits(trained.weights, p.features)) for p in (validation, test)]
    own: dict[str, list[Any]] = {"best_epoch": trained.best_epoch, "status": trained.status}
    return _answers(parts, crew, asdict(crew.settings), own, curves=curves.values)


def linear_converged(crew: Crew) -> Answers:
    """Logistic regression on frozen embeddings, solved to the end, L2 chosen on validation."""
    (train, validation, test), weights = crew.embedded(), crew.weights()
    fitted = [
        fit_logistic(
            train.features[member, own],
            train.targets[own],
            validation.features[member],
            validation.targets,
            multilabel=train.multilabel,
            class_weights=None if weights is None else weights[member],
        )
        for member, own in enumerate(crew.labelled)
    ]
    logits = [
        np.stack([_numpy(one.logits(part.features[m])) for m, one in enumerate(fitted)])
        for part in (validation, test)
    ]
    return _answers(logits, crew, {}, {"l2": [one.l2 for one in fitted]})


def knn(crew: Crew) -> Answers:
    """The share of the nearest labelled rows that have a label; nothing is trained."""
    train, *parts = crew.embedded()
    shares = [
        np.stack(
            [
                _numpy(votes(part.features[m], train.features[m, own], train.targets[own], crew.k))
                for m, own in enumerate(crew.labelled)
            ]
        )
        for part in parts
    ]
    return Answers(shares[0], shares[1], shares[1], {"k": crew.k, "similarity": "cosine"})


def finetune(crew: Crew) -> Answers:
    """Encoder and linear layer trained together."""
    frames, device = crew.frames, crew.device
    signals = Signals.of(frames, device, stream=False)  # a captured validation cannot wait
    train, validation, test = (Windows.of(frames, part, device) for part in crew.rows)
    weights, curves = crew.weights(), _Curves(range(len(crew.seeds)), crew)
    logits: dict[int, list[NDArray[np.float64]]] = {}
    trained: dict[int, tuple[Trained, int]] = {}
    for members in fleets([len(own) for own in crew.labelled], crew.settings.batch_size):
        task = Finetune(
            [crew.checkpoints[m] for m in members],
            signals,
            train,
            validation,
            [crew.labelled[m] for m in members],
            multilabel=frames.multilabel,
            weights=None if weights is None else weights[members],
            curve=crew.curve,
        )
        curves.members = members
        seeds = [crew.seeds[m] for m in members]
        best = fit(task, seeds, crew.settings, device=device, on_epoch=curves)
        parts = [
            _numpy(task.logits(best.weights, best.buffers, p.starts)) for p in (validation, test)
        ]
        for place, member in enumerate(members):
            logits[member] = [part[place] for part in parts]
            trained[member] = best, place
    order = range(len(crew.seeds))
    return _answers(
        [np.stack([logits[m][part] for m in order]) for part in (0, 1)],
        crew,
        asdict(crew.settings),
        {
            name: [getattr(trained[m][0], name)[trained[m][1]] for m in order]
            for name in ("best_epoch", "status")
        },
        curves=curves.values,
        classifiers=[_classifier(crew, m, *trained[m]) for m in order],
    )


PROTOCOLS: dict[Protocol, Callable[[Crew], Answers]] = {
    "linear": linear,
    "linear-converged": linear_converged,
    "finetune": finetune,
    "knn": knn,
}


@contextmanager
def _few_threads(device: torch.device, numbers: int) -> Iterator[None]:
    """One thread where a step is so small that sharing it takes longer than doing it."""
    threads = torch.get_num_threads()
    if device.type == "cpu" and numbers < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Curves:
    """Passes epochs on, and notes the validation AUC of those who are in them."""

    def __init__(self, members: Sequence[int], crew: Crew) -> None:
        self.members, self._crew = members, crew
        self.values: list[list[float]] = [[] for _ in crew.seeds] if crew.curve else []

    def __call__(self, epoch: Epoch) -> None:
        if self.values:
            for place, member in enumerate(self.members):
                if epoch.live[place]:
                    self.values[member].append(epoch.validation["auc"][place])
        self._crew.on_epoch(epoch)


def _answers(
    logits: Sequence[NDArray[np.float64]],
    crew: Crew,
    common: dict[str, Any],
    own: dict[str, list[Any]],
    **more: Any,
) -> Answers:
    validation, test = (probabilities(part, crew.frames.multilabel) for part in logits)
    return Answers(validation, test, logits[1], common, own, **more)


def _classifier(crew: Crew, member: int, trained: Trained, place: int) -> Classifiers:
    def row(tensors: Weights) -> Weights:
        return {name: tensor[place : place + 1].cpu().clone() for name, tensor in tensors.items()}

    return Classifiers(
        encoder=dict(crew.checkpoints[member].card.encoder),
        weights=row(trained.weights),
        buffers=row(trained.buffers),
        seeds=(crew.seeds[member],),
        labels=tuple(crew.frames.labels),
        multilabel=crew.frames.multilabel,
    )


def _numpy(values: Tensor) -> NDArray[np.float64]:
    return np.asarray(values.double().cpu().numpy())

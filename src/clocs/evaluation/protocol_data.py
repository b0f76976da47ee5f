"""What an evaluation protocol is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.evaluation.classifier_loss import class_weights
from clocs.evaluation.finetune_task import FinetunedClassifier
from clocs.frames.frames import Frames
from clocs.frames.views import Instances
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import embed_instances
from clocs.training.loop import Epoch, Settings


@dataclass(frozen=True)
class LabelledEmbeddings:
    """Embeddings of the labelled rows of one part.

    Attributes:
        features: (members, rows, dim).
        targets: (rows, classes).
        multilabel: Whether a row can have several classes.
    """

    features: Tensor
    targets: Tensor
    multilabel: bool


@dataclass(frozen=True)
class ProtocolInput:
    """Encoders of one kind, and the rows to evaluate them on. Each checkpoint is a member.

    Attributes:
        checkpoints: One per member.
        frames: The labelled data.
        rows: Labelled rows of training (those that any member may use), validation and test.
        labelled: For each member, the training rows that it may learn from.
        settings: For protocols that train in epochs.
        weighted: Whether rare classes count as much as common ones.
        curve: Whether to record the validation AUC after every epoch.
        device: Where to compute.
        on_epoch: Called after each epoch.
    """

    checkpoints: Sequence[Checkpoint]
    frames: Frames
    rows: tuple[Instances, Instances, Instances]
    labelled: list[Tensor]
    settings: Settings
    weighted: bool
    curve: bool
    device: torch.device
    on_epoch: Callable[[Epoch], None]

    @property
    def seeds(self) -> list[int]:
        return [checkpoint.card.seed for checkpoint in self.checkpoints]

    def embeddings(self) -> list[LabelledEmbeddings]:
        """Training, validation and test rows, embedded by the frozen encoders."""
        return [
            LabelledEmbeddings(
                embed_instances(self.checkpoints, self.frames, part, self.device),
                self._targets(part),
                self.frames.multilabel,
            )
            for part in self.rows
        ]

    def class_weights(self) -> Tensor | None:
        """(members, classes) from the rows that each member may learn from; None if unweighted."""
        if not self.weighted:
            return None
        targets, multilabel = self._targets(self.rows[0]), self.frames.multilabel
        return torch.stack([class_weights(targets[own], multilabel) for own in self.labelled])

    def output(self, validation_logits: Tensor, test_logits: Tensor, **more: Any) -> ProtocolOutput:
        """The output of a classifier.

        Args:
            validation_logits: (members, rows, classes).
            test_logits: (members, rows, classes).
            more: Other fields of `ProtocolOutput`.
        """
        logits = [part.double().cpu() for part in (validation_logits, test_logits)]
        validation, test = (
            np.asarray((z.sigmoid() if self.frames.multilabel else z.softmax(dim=-1)).numpy())
            for z in logits
        )
        return ProtocolOutput(validation, test, np.asarray(logits[1].numpy()), **more)

    def _targets(self, part: Instances) -> Tensor:
        return torch.from_numpy(self.frames.target[part.frame]).to(self.device)


@dataclass(frozen=True)
class ProtocolOutput:
    """Predictions of all members.

    Attributes:
        validation: (members, rows, classes) probabilities.
        test: (members, rows, classes) probabilities.
        test_logits: (members, rows, classes) before they became probabilities.
        per_member: Facts about the fit, one value per member each.
        curves: The validation AUC after every epoch, one list per member; empty unless recorded.
        classifiers: One per member, where encoders were trained.
    """

    validation: NDArray[np.float64]
    test: NDArray[np.float64]
    test_logits: NDArray[np.float64]
    per_member: dict[str, list[Any]] = field(default_factory=dict)
    curves: list[list[float]] = field(default_factory=list)
    classifiers: list[FinetunedClassifier] = field(default_factory=list)


class CurveRecorder:
    """Passes epochs on to `on_epoch`, and records the validation AUC of the members in training."""

    def __init__(self, given: ProtocolInput) -> None:
        self.members: Sequence[int] = range(len(given.seeds))
        self.curves: list[list[float]] = [[] for _ in given.seeds] if given.curve else []
        self._on_epoch = given.on_epoch

    def __call__(self, epoch: Epoch) -> None:
        if self.curves:
            for place, member in enumerate(self.members):
                if epoch.live[place]:
                    self.curves[member].append(epoch.validation["auc"][place])
        self._on_epoch(epoch)

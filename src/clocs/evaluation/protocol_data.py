"""What an evaluation protocol is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.errors import TrainingError
from clocs.evaluation.classifier_loss import class_weights
from clocs.evaluation.finetune_task import FinetunedClassifier
from clocs.frames.frames import Frames
from clocs.frames.views import Instances
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import embed_instances
from clocs.training.loop import Epoch, Settings, Trained


@dataclass(frozen=True)
class LabelledEmbeddings:
    """Embeddings of the labelled rows of one part."""

    features: Tensor  # (members, rows, dim)
    targets: Tensor  # (rows, classes)
    multilabel: bool  # whether a row can have several classes


@dataclass(frozen=True)
class ProtocolInput:
    """Encoders of one kind, and the rows to evaluate them on. Each checkpoint is a member."""

    checkpoints: Sequence[Checkpoint]
    frames: Frames
    rows: tuple[Instances, Instances, Instances]  # training (of any member), validation, test
    labelled: list[Tensor]  # for each member, the training rows that it may learn from
    settings: Settings  # for protocols that train in epochs
    weighted: bool  # whether rare classes count as much as common ones
    curve: bool  # whether to record the validation AUC after every epoch
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

    def check_converged(self, trained: Trained, members: Sequence[int]) -> None:
        """Refuse classifiers of these members whose training diverged: they know nothing."""
        cards = [self.checkpoints[member].card for member in members]
        failed = [
            f"{card.method}, seed {card.seed}"
            for card, lost in zip(cards, trained.diverged, strict=True)
            if lost
        ]
        if failed:
            raise TrainingError(
                f"the training of a classifier on {'; '.join(failed)} diverged: the loss is no "
                "longer a finite number; try a lower `lr`"
            )

    def output(self, validation_logits: Tensor, test_logits: Tensor, **more: Any) -> ProtocolOutput:
        """The output of a classifier from its logits, (members, rows, classes) each."""
        logits = [part.double().cpu() for part in (validation_logits, test_logits)]
        if not all(bool(part.isfinite().all()) for part in logits):
            raise TrainingError(
                "a classifier gives predictions that are not finite: its training diverged; try a "
                "lower `lr`"
            )
        validation, test = (
            np.asarray((z.sigmoid() if self.frames.multilabel else z.softmax(dim=-1)).numpy())
            for z in logits
        )
        return ProtocolOutput(validation, test, np.asarray(logits[1].numpy()), **more)

    def _targets(self, part: Instances) -> Tensor:
        return torch.from_numpy(self.frames.target[part.frame]).to(self.device)


@dataclass(frozen=True)
class ProtocolOutput:
    """Predictions of all members."""

    validation: NDArray[np.float64]  # (members, rows, classes) probabilities
    test: NDArray[np.float64]  # the same for the test rows
    test_logits: NDArray[np.float64]  # before they became probabilities
    per_member: dict[str, list[Any]] = field(default_factory=dict)  # facts about the fit
    curves: list[list[float]] = field(default_factory=list)  # one per member, where recorded
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

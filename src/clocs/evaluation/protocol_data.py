"""What an evaluation protocol is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.errors import TrainingError
from clocs.evaluation.classifier_loss import class_weights
from clocs.evaluation.finetune_task import FinetunedClassifier
from clocs.evaluation.labeled_rows import LabeledPart
from clocs.evaluation.recording_vectors import RecordingVectors
from clocs.frames.frames import Frames
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import StoreVectors, embed_instances
from clocs.training.loop import SAVE_EVERY, Epoch, Trained


@dataclass(frozen=True)
class LabeledEmbeddings:
    """Embeddings of what is scored of one part: rows, or recordings."""

    features: Tensor  # (members, rows, dim)
    targets: Tensor  # (rows, classes)
    multilabel: bool  # whether a row can have several classes


@dataclass(frozen=True)
class ProtocolInput:
    """Encoders of one kind, and the rows to evaluate them on. Each checkpoint is a member."""

    checkpoints: Sequence[Checkpoint]
    # training (of any member), validation, test, and test under further conditions
    parts: Sequence[LabeledPart]
    labeled: list[Tensor]  # for each member, what it may learn from of the training part
    settings: Settings  # for protocols that train in epochs
    weighted: bool  # whether rare classes count as much as common ones
    curve: bool  # whether to record the validation AUC after every epoch
    device: torch.device
    on_epoch: Callable[[Epoch], None]
    state: Path | None = None  # folder for what fine-tuning needs to resume
    save_every: float = SAVE_EVERY  # seconds
    stream: bool | None = None  # signals, batch by batch; None: where they are large for the device
    vectors: RecordingVectors | None = None  # of recordings, to be used after the evaluation, too
    cache: StoreVectors | None = None  # of the frames, as they were before any condition

    @property
    def frames(self) -> Frames:
        """The frames of training; those of tests may be noisy."""
        return self.parts[0].frames

    @property
    def labeled_rows(self) -> list[Tensor]:
        """For each member, the training rows that it may learn from."""
        place = torch.from_numpy(self.parts[0].place).to(self.device)
        return [torch.isin(place, own).nonzero()[:, 0] for own in self.labeled]

    @property
    def seeds(self) -> list[int]:
        return [checkpoint.card.seed for checkpoint in self.checkpoints]

    def embeddings(self) -> list[LabeledEmbeddings]:
        """Training, validation and test, and test under conditions, by the frozen encoders."""
        return [self.embedded(part) for part in self.parts]

    def embedded(self, part: LabeledPart) -> LabeledEmbeddings:
        """What is scored of a part, by the frozen encoders."""
        if part.per == "row":
            features = self.encoded(part, partial(embed_instances, cache=self.cache))
        else:
            vectors = self.vectors or RecordingVectors(self.checkpoints, self.device, self.cache)
            features = vectors.of(part).float().to(self.device)
        return LabeledEmbeddings(features, self.targets(part), self.frames.multilabel)

    def encoded(self, part: LabeledPart, how: Callable[..., Tensor]) -> Tensor:
        """(members, rows, …) what `embed_instances` or `feature_maps` makes of a part's rows.

        Members that share an encoder, and differ in their labeled rows alone, encode once.
        """
        distinct = {id(one.weights): one for one in self.checkpoints}
        place = [list(distinct).index(id(one.weights)) for one in self.checkpoints]
        made = how(list(distinct.values()), part.frames, part.rows, self.device)
        return made if len(distinct) == len(place) else made[place]

    def class_weights(self) -> Tensor | None:
        """(members, classes) from what each member may learn from; None if unweighted."""
        if not self.weighted:
            return None
        targets, multilabel = self.targets(self.parts[0]), self.frames.multilabel
        return torch.stack([class_weights(targets[own], multilabel) for own in self.labeled])

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

    def output(self, *parts: Tensor, **more: Any) -> ProtocolOutput:
        """The output of a classifier from its logits, (members, rows, classes) each.

        `parts` are those of validation, test, and test under each further condition.
        """
        logits = [part.double().cpu() for part in parts]
        if not all(bool(part.isfinite().all()) for part in logits):
            raise TrainingError(
                "a classifier gives predictions that are not finite: its training diverged; try a "
                "lower `lr`"
            )
        validation, test, *further = (
            np.asarray((z.sigmoid() if self.frames.multilabel else z.softmax(dim=-1)).numpy())
            for z in logits
        )
        return ProtocolOutput(validation, test, np.asarray(logits[1].numpy()), further, **more)

    def on_frozen(self, weight: Tensor, bias: Tensor) -> list[FinetunedClassifier]:
        """Linear layers as classifiers; (members, dim, classes) and (members, classes)."""
        each = zip(self.checkpoints, weight, bias, strict=True)
        return [FinetunedClassifier.on_frozen(one, self.frames, w, b) for one, w, b in each]

    def targets(self, part: LabeledPart) -> Tensor:
        """(scored, classes) on the device."""
        return torch.from_numpy(part.targets).to(self.device)


@dataclass(frozen=True)
class ProtocolOutput:
    """Predictions of all members."""

    validation: NDArray[np.float64]  # (members, rows, classes) probabilities
    test: NDArray[np.float64]  # the same for the test rows
    test_logits: NDArray[np.float64]  # before they became probabilities
    further: list[NDArray[np.float64]] = field(default_factory=list)  # of each condition, as `test`
    per_member: dict[str, list[Any]] = field(default_factory=dict)  # facts about the fit
    curves: list[list[float]] = field(default_factory=list)  # one per member, where recorded
    # one per member, where there is a linear layer on its embeddings
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

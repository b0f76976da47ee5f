"""The rows of an evaluation: labeled ones of each part, and the share of training rows to use.

A row is one frame of one lead; for encoders that see many leads at once it is one frame. What is
scored is each row, or each recording, of whose rows the embeddings or logits are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import SettingError, TrainingError
from clocs.evaluation.classifier_loss import class_weights
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.splits import PARTS, ValidationLabels, keys_of, labeled_subset, row_keys
from clocs.frames.views import Instances, Views, instances
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint, expect_finite
from clocs.training.embed import StoreVectors, embed_instances, embedded_pieces
from clocs.training.loop import SAVE_EVERY, Epoch, Trained

By = Literal["frame", "patient", "recording"]
Per = Literal["row", "recording"]


@dataclass(frozen=True)
class LabeledShare:
    """How much of the training and the validation part is labeled."""

    fraction: float = 1.0  # of what `by` counts
    by: By = "frame"  # 'frame' is a row, as in the paper; 'patient' is one with all rows
    labels: int | None = None  # the number of labeled training ones, where it was given instead
    validation: ValidationLabels = "share"  # the same fraction of validation, or all of it

    def __post_init__(self) -> None:
        if self.validation not in get_args(ValidationLabels):
            raise SettingError(
                f"`validation_labels` is 'share' or 'all', not {self.validation!r:.50}"
            )

    @classmethod
    def of_number(
        cls, labels: int, by: By, validation: ValidationLabels, part: LabeledPart
    ) -> LabeledShare:
        """So many patients or recordings of the training rows, as a fraction of them."""
        frames = part.frames
        each = frames.patient if by == "patient" else frames.recording
        available = len(np.unique(each[part.rows.frame]))
        if not 1 <= labels <= available:
            raise SettingError(
                f"`labels` is {labels}, but the training part of {frames.dataset} has {available} "
                f"labeled {by}s; give a number from 1 to {available}"
            )
        return cls(labels / available, by, labels, validation)


@dataclass(frozen=True)
class LabeledPart:
    """The labeled rows of a part, and what of them is scored."""

    frames: Frames
    rows: Instances
    per: Per = "row"

    def __len__(self) -> int:
        """How many are scored: rows, or recordings."""
        return len(self.first)

    @property
    def recordings(self) -> NDArray[np.int32]:
        """(rows,) index into `frames.recording_ids`."""
        return self.frames.recording[self.rows.frame]

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """(scored,) the row that is scored, or the first row of the recording."""
        if self.per == "row":
            return np.arange(len(self.rows))
        return np.unique(self.recordings, return_index=True)[1].astype(np.int64)

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """(rows,) which of the scored each row belongs to."""
        if self.per == "row":
            return np.arange(len(self.rows))
        return np.unique(self.recordings, return_inverse=True)[1].astype(np.int64)

    @property
    def frame(self) -> NDArray[np.int64]:
        """(scored,) a frame of each, which gives its patient and recording."""
        return np.asarray(self.rows.frame[self.first])

    @cached_property
    def targets(self) -> NDArray[np.uint8]:
        """(scored, classes); of a recording, labels of at least half of its rows.

        Where no label covers half of it, or where it can have one only: that of the most rows.
        """
        own: NDArray[np.uint8] = self.frames.target[self.rows.frame]
        if self.per == "row":
            return own
        sums = np.stack(
            [np.bincount(self.place, column, minlength=len(self)) for column in own.T], axis=1
        )
        most: NDArray[np.uint8] = np.eye(own.shape[1], dtype=np.uint8)[sums.argmax(axis=1)]
        if not self.frames.multilabel:
            return most
        half: NDArray[np.uint8] = (2 * sums >= np.bincount(self.place)[:, None]).astype(np.uint8)
        half[~half.any(axis=1)] = most[~half.any(axis=1)]
        return half

    @property
    def lead_counts(self) -> NDArray[np.int64]:
        """(scored,) how many leads have a signal; 1 where a row is of one lead."""
        there = (self.rows.in_view() != ABSENT).reshape(len(self.rows), -1)
        found = np.zeros((len(self), there.shape[1]), np.bool_)
        np.logical_or.at(found, self.place, there)
        return np.asarray(found.sum(axis=1))

    def averaging(self, device: torch.device | str) -> Averaging | None:
        """What averages over the rows of each recording; None where rows are scored."""
        if self.per == "row":
            return None
        return Averaging(torch.from_numpy(self.place).to(device), len(self))

    def where(self, kept: NDArray[np.bool_]) -> LabeledPart:
        """Only those of the scored; kept: (scored,)."""
        return replace(self, rows=self.rows.where(kept[self.place]))

    def through(self, leads: int) -> LabeledPart:
        """Keep this many leads of each recording, other leads from one recording to the next."""
        there = np.flatnonzero((self.rows.windows != ABSENT).any(axis=0))
        turn = (np.arange(len(there)) - leads * self.place[:, None]) % len(there)
        windows = np.full_like(self.rows.windows, ABSENT)
        windows[:, there] = np.where(turn < leads, self.rows.windows[:, there], ABSENT)
        rows = replace(self.rows, windows=windows)
        return replace(self, rows=rows.where((windows != ABSENT).any(axis=1)))


class Averaging:
    """(members, rows, …) -> (members, recordings, …), the mean over the rows of each."""

    def __init__(self, place: Tensor, recordings: int) -> None:
        """place: (rows,) the number of each row's recording."""
        self.place, self.recordings = place, recordings
        self.counts = torch.bincount(place, minlength=recordings).double()

    def __call__(self, x: Tensor) -> Tensor:
        """Sums are in float64, so that their order does not matter."""
        made = []
        for own in x:
            total = x.new_zeros((self.recordings, *own.shape[1:]), dtype=torch.float64)
            total = total.index_add(0, self.place, own.double())
            made.append((total / self.counts.view(-1, *[1] * (own.ndim - 1))).to(x.dtype))
        return torch.stack(made)


def rows_with_label(frames: Frames, split: int | None, *, leads_at_once: bool = False) -> Instances:
    """Instances of a part, or of all, that have a label: of one lead, or of all leads at once."""
    every = instances(frames, of="lead", views=Views(), split=split, leads_at_once=leads_at_once)
    labeled = every.where(frames.has_label[every.frame])
    if not len(labeled):
        part = "" if split is None else f"the {PARTS[split]} part of "
        raise SettingError(f"{part}{frames.dataset} has no labeled frames; labels are needed there")
    return labeled


def choose_labeled(
    part: LabeledPart, seeds: Sequence[int], share: LabeledShare
) -> tuple[LabeledPart, NDArray[np.bool_]]:
    """What the seeds use of a part, and (seeds, scored) which of it has a label for each seed.

    Each seed draws its own, the same for every method, and smaller shares within larger ones.
    """
    found = {seed: choose_rows(part, seed, share)[part.first] for seed in set(seeds)}
    used = np.logical_or.reduce(list(found.values()))
    return part.where(used), np.stack([found[seed][used] for seed in seeds])


def choose_rows(part: LabeledPart, seed: int, share: LabeledShare) -> NDArray[np.bool_]:
    """(rows,) which have a label."""
    frames, rows = part.frames, part.rows
    if share.by == "patient":
        keys = keys_of(frames.patient_ids)[frames.patient[rows.frame]]
    else:
        keys = keys_of(frames.recording_ids)[frames.recording[rows.frame]]
        if share.by != "recording":
            keys = row_keys(keys, frames.segment[rows.frame], keys_of(frames.leads)[rows.lead])
    return labeled_subset(
        keys,
        dataset=frames.dataset,
        split_seed=frames.split_seed,
        seed=seed,
        fraction=share.fraction,
        by=share.by,
    )


def _distinct(checkpoints: Sequence[Checkpoint]) -> tuple[list[Checkpoint], list[int]]:
    """The encoders, each once, and which is each member's: some differ in labeled rows alone."""
    found = {id(one.weights): one for one in checkpoints}
    return list(found.values()), [list(found).index(id(one.weights)) for one in checkpoints]


class RecordingVectors:
    """Vectors of the recordings of one set of frames, embedded when they are first asked for."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],
        device: torch.device | str,
        cache: StoreVectors | None = None,
    ) -> None:
        """checkpoints: The members, with the weights that they keep; cache: Of their frames."""
        self._checkpoints, self._device, self._cache = list(checkpoints), device, cache
        self._distinct, self._members = _distinct(checkpoints)
        self._row: dict[int, int] = {}  # of each recording that is known
        self._vectors = torch.zeros((len(self._distinct), 0, 0), dtype=torch.float64)

    def of(self, part: LabeledPart) -> Tensor:
        """(members, recordings, dim) by all rows of each, in float64 on the CPU."""
        wanted = part.frames.recording[part.frame].tolist()
        new = [recording not in self._row for recording in wanted]
        if any(new):
            found = self._embedded(part.where(np.array(new)))
            self._vectors = torch.cat([self._vectors, found], dim=1) if self._row else found
            names = (recording for recording, is_new in zip(wanted, new, strict=True) if is_new)
            self._row |= {recording: len(self._row) + n for n, recording in enumerate(names)}
        rows = torch.tensor([self._row[recording] for recording in wanted])
        return self._vectors[self._members][:, rows]

    def of_members(self, members: Sequence[int]) -> RecordingVectors:
        """Those of some members, without computing them again."""
        some = [self._checkpoints[m] for m in members]
        made = RecordingVectors(some, self._device, self._cache)
        distinct = list(dict.fromkeys(self._members[m] for m in members))
        made._row, made._vectors = dict(self._row), self._vectors[distinct]
        return made

    @torch.no_grad()
    def _embedded(self, part: LabeledPart) -> Tensor:
        """Rows are encoded some at a time; of recordings only sums and maxima are kept."""
        place, count = torch.from_numpy(part.place).to(self._device), len(part)
        total, greatest, start = torch.zeros(0), torch.zeros(0), 0
        maxima = self._distinct[0].maxima
        pieces = embedded_pieces(self._distinct, part.frames, part.rows, self._device, self._cache)
        for z in pieces:
            if not start:
                total = z.new_zeros((len(z), count, z.shape[-1]), dtype=torch.float64)
                greatest = torch.full_like(total[..., maxima], -torch.inf)
            own = place[start : start + z.shape[1]]
            total.index_add_(1, own, z.double())
            tops = z[..., maxima].double()
            greatest.scatter_reduce_(1, own[:, None].expand(tops.shape), tops, "amax")
            start += z.shape[1]
        rows = torch.bincount(place, minlength=count).double()
        total /= rows[:, None]
        total[..., maxima] = greatest
        return expect_finite(total).cpu()


@dataclass(frozen=True)
class MemberLabels:
    """Which labels members know, and how they count."""

    rows: Sequence[Tensor]  # for each member, what it may learn from of the training part
    multilabel: bool = False  # whether a row can have several classes
    weights: Tensor | None = None  # (members, classes); None where all classes count the same
    # (members, scored) what of the validation part has a label for each member; None: all of it
    validated: Tensor | None = None
    curve: bool = False  # whether to compute the validation AUC after every epoch

    def of(self, members: list[int]) -> MemberLabels:
        """Those of some members."""
        weights = None if self.weights is None else self.weights[members]
        validated = None if self.validated is None else self.validated[members]
        rows = [self.rows[member] for member in members]
        return replace(self, rows=rows, weights=weights, validated=validated)


@dataclass(frozen=True)
class LabeledEmbeddings:
    """Embeddings of what is scored of one part: rows, or recordings."""

    features: Tensor  # (members, rows, dim)
    targets: Tensor  # (rows, classes)

    def of(self, members: list[int]) -> LabeledEmbeddings:
        return replace(self, features=self.features[members])


@dataclass(frozen=True)
class ProtocolInput:
    """Encoders of one kind, and the rows to evaluate them on. Each checkpoint is a member."""

    checkpoints: Sequence[Checkpoint]
    # training (of any member), validation, test, and test under further conditions
    parts: Sequence[LabeledPart]
    labeled: list[Tensor]  # for each member, what it may learn from of the training part
    # (members, scored) what of the validation part has a label for each member; None: all of it
    validated: Tensor | None
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

    @cached_property
    def labels(self) -> MemberLabels:
        """What each member knows of what is scored."""
        multilabel, weights = self.frames.multilabel, None
        if self.weighted:
            targets = self.targets(self.parts[0])
            weights = torch.stack([class_weights(targets[own], multilabel) for own in self.labeled])
        return MemberLabels(self.labeled, multilabel, weights, self.validated, self.curve)

    @property
    def row_labels(self) -> MemberLabels:
        """The same of training rows, also where recordings are scored."""
        place = torch.from_numpy(self.parts[0].place).to(self.device)
        rows = [torch.isin(place, own).nonzero()[:, 0] for own in self.labeled]
        return replace(self.labels, rows=rows)

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
        return LabeledEmbeddings(features, self.targets(part))

    def encoded(self, part: LabeledPart, how: Callable[..., Tensor]) -> Tensor:
        """(members, rows, …) what `embed_instances` or `feature_maps` makes of a part's rows."""
        distinct, place = _distinct(self.checkpoints)
        made = how(distinct, part.frames, part.rows, self.device)
        return made if len(distinct) == len(place) else made[place]

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

    def on_frozen(self, weight: Tensor, bias: Tensor) -> list[Checkpoint]:
        """The encoders with linear layers, (members, dim, classes) and (members, classes)."""
        weight, bias = (tensor.detach()[:, None].float().cpu() for tensor in (weight, bias))
        made = []
        for one, w, b in zip(self.checkpoints, weight, bias, strict=True):
            weights = one.weights | {"head.weight": w, "head.bias": b}
            made.append(with_weights(one, weights, one.buffers))
        return made

    def targets(self, part: LabeledPart) -> Tensor:
        """(scored, classes) on the device."""
        return torch.from_numpy(part.targets).to(self.device)


def with_weights(checkpoint: Checkpoint, weights: Weights, buffers: Weights) -> Checkpoint:
    """The encoder with other weights, among them `head.weight` and `head.bias` of its layer."""
    card = replace(checkpoint.card, weights_sha256="")
    return replace(checkpoint, card=card, weights=weights, buffers=buffers)


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
    classifiers: list[Checkpoint] = field(default_factory=list)


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

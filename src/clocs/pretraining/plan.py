"""Plan: everything that determines the result of a pre-training, besides the data."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch

from clocs.encoders.base import Encoder
from clocs.encoders.cnn import block_implementation
from clocs.encoders.make import is_multilead, make_encoder, takes_mv
from clocs.errors import SettingError, find_row
from clocs.frames.frames import SEVERAL, Frames
from clocs.frames.views import Views
from clocs.pretraining import Method, Objective
from clocs.pretraining.methods import METHODS
from clocs.pretraining.perturbations import parse
from clocs.recording import FrameSpec
from clocs.training import Settings
from clocs.training.card import CENTERED, IN_MV, NORMALIZATION, STANDARDIZED, Card, TrainedOn
from clocs.training.checkpoint import Checkpoint, hashed_recordings, salt_of
from clocs.training.loop import Trained

Precision = Literal["float32", "bfloat16"]
BatchNorm = Literal["batch", "view"]
Normalization = Literal["min-max", "none"]
_CHOICES = {"precision": Precision, "batch_norm": BatchNorm, "normalization": Normalization}
TRAINED_ON = (0, 1)  # training and validation: both have shaped the weights
_NO_KEYS = torch.zeros(0, dtype=torch.int64)


def find_method(name: str) -> Method:
    """A method by its name."""
    return find_row(METHODS, name, "method")


@dataclass(frozen=True)
class Plan:
    """What to train."""

    method: str  # one of `clocs.pretraining.methods.METHODS`
    seeds: tuple[int, ...] = (0,)  # one training each
    encoder: str = "cnn"  # one of `clocs.encoders.make.ENCODERS`
    embedding_dim: int = 128
    dropout: float = 0.1
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own
    perturb: str | None = None  # a chain of perturbations in place of the method's own
    precision: Precision = "float32"  # of activations; weights and statistics are always float32
    batch_norm: BatchNorm = "batch"  # statistics of all views of a batch at once, or of each view
    normalization: Normalization = "min-max"  # of frames; 'none' leaves them in mV
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise SettingError(f"`seeds` must be distinct numbers from 0, not {self.seeds}")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"`dropout` must be at least 0 and below 1, not {self.dropout}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                valid = " or ".join(get_args(choices))
                raise SettingError(f"`{name}` is {valid}, not {getattr(self, name)}")
        if self.multilead and self.normalization != "min-max":
            taken = "in mV" if takes_mv(self.encoder) else "that are standardized"
            raise SettingError(f"{self.encoder} takes leads {taken}; leave out `normalization`")
        if self.perturb is not None:
            parse(self.perturb)
            if not self.row.perturbable:
                able = ", ".join(name for name, row in METHODS.items() if row.perturbable)
                raise SettingError(f"{self.method} does not take `perturb`, which is for {able}")
        if self.objective is None and self.batch_norm == "view":
            raise SettingError(f"{self.method} trains on no views; leave out `batch_norm`")
        if self.objective and self.objective.compares_views and self.settings.batch_size < 2:
            raise SettingError(f"`batch_size` must be at least 2 for {self.method}")

    @property
    def row(self) -> Method:
        """The method's row in the table."""
        return find_method(self.method)

    @cached_property
    def objective(self) -> Objective | None:
        """What is optimized, with this plan's options; None where nothing is learned."""
        made = self.row.configured(self.options)
        return made.for_encoder(multilead=self.multilead) if made else None

    @property
    def in_mv(self) -> bool:
        """Whether frames stay in mV."""
        return self.normalization == "none" or takes_mv(self.encoder)

    @property
    def multilead(self) -> bool:
        """Whether the encoder sees many leads at once."""
        return is_multilead(self.encoder)

    def encoder_for(self, frames: Frames) -> Encoder:
        """The encoder of these frames."""
        return make_encoder(
            self.encoder,
            embedding_dim=self.embedding_dim,
            samples=frames.spec.samples,
            dropout=self.dropout,
            leads=frames.leads if self.multilead else (),
        )

    def views_on(self, dataset: str) -> Views:
        """The method's views with this plan's options and perturbations."""
        views = self.row.views.for_multilead() if self.multilead else self.row.views
        views = self.objective.views(views, dataset) if self.objective else views
        if views.most_leads and not self.multilead and (views.all_leads or views.most_leads > 1):
            raise SettingError(
                f"{self.encoder} sees one lead at a time; leave out `most_leads`, which is 1 for "
                "views of random leads (of cmsc, simclr and byol), or more for encoders of many"
            )
        if self.perturb is not None:
            views = replace(views, copies=(str(parse(self.perturb)),) * len(views.copies))
        if len(views.copies) > 1 and not any(views.copies) and not views.most_leads:
            raise SettingError("two copies of one segment are equal; give `perturb`")
        return views

    def check_leads(self, leads: Sequence[str], dataset: str) -> None:
        """Refuse leads of which an instance has no two views to compare."""
        views = self.views_on(dataset)
        if self.multilead and views.all_leads:  # through subsets, which differ only if there are
            count = views.segments * len(leads)
        else:
            count = views.segments * len(views.copies) * (len(leads) if views.all_leads else 1)
        if self.objective and self.objective.compares_views and count < 2:
            raise SettingError(
                f"{self.method} compares views of an instance, but with {', '.join(leads)} alone "
                "there is only one; choose at least two `leads`"
            )

    def to_dict(self) -> dict[str, Any]:
        """All values by name, the method's own options among them."""
        own = asdict(self.objective) if self.objective else {}
        given = {k: v for k, v in asdict(self).items() if k != "options"}
        return given | {"settings": self.settings.to_dict()} | own

    def for_card(self, dataset: str) -> dict[str, Any]:
        """What a card says of the training; defaults that change nothing are left out."""
        given = asdict(self.objective) if self.objective else {}
        for name, choices in _CHOICES.items():
            if getattr(self, name) != get_args(choices)[0]:
                given[name] = getattr(self, name)
        given = {name: value for name, value in given.items() if value is not None}
        return self.settings.to_dict() | given | {"views": self.views_on(dataset).to_dict()}

    @property
    def input_of_card(self) -> str:
        """How the encoder's input is normalized, in words that cards have."""
        if self.in_mv:
            return IN_MV
        if self.multilead:
            return STANDARDIZED
        return CENTERED if self.row.views.normalized_first else NORMALIZATION


def make_card(
    frames: Frames,
    plan: Plan,
    member: int,
    *,
    frame: FrameSpec,
    device: torch.device,
    trained: Trained | None = None,
    init: Checkpoint | None = None,
    recording_hashes: bool = True,
    processes: int = 1,
    shared: bool = False,
    normalization: str = "",
) -> Card:
    """The card of one member, to be used with `frame`; without `trained`, as far as it is known.

    It was trained by so many `processes`, `shared` where these computed every batch together.

    Patients whom `init` has seen, from which its training started, this one has seen too.
    `recording_hashes` says whether it lists hashes of the recordings that it has seen.
    `normalization`, as cards spell it, takes the place of the plan's.
    """
    encoder, seen = plan.encoder_for(frames), frames if plan.row.sees_data else None
    hashed = recording_hashes and (init is None or init.card.recording_hashes)
    training = plan.for_card(frames.dataset)
    if init is not None:
        about = ("method", "dataset", "seed", "weights_sha256")
        training["init"] = {name: getattr(init.card, name) for name in about}
    precision = getattr(torch, plan.precision)
    loss = trained.validation_loss[member] if trained else math.nan
    return Card(
        method=plan.method,
        seed=plan.seeds[member],
        dataset=datasets_of(seen.dataset if seen else None, init),
        content=seen.content if seen else None,
        split_seed=frames.split_seed,
        trained_on=trained_on(seen, init),
        leads=frames.leads,
        frame_trained=frames.spec,
        frame=frame,
        encoder={
            "name": encoder.name,
            "embedding_dim": encoder.embedding_dim,
            "samples": encoder.samples,
            "dropout": plan.dropout,
            **({"leads": list(encoder.leads)} if encoder.leads else {}),
        },
        labels=frames.labels,
        training=training,
        metrics={
            "status": trained.status[member] if trained else "untrained",
            "epochs": trained.epochs if trained else 0,
            "best_epoch": trained.best_epoch[member] if trained else 0,
            "validation_loss": finite(loss),
        },
        environment={
            "torch": torch.__version__,
            "device": device.type,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "kernel": "torch" if shared else block_implementation(device, precision),
            **({"processes": processes} if processes > 1 else {}),
        },
        normalization=normalization or plan.input_of_card,
        maxima=encoder.maxima,
        recording_hashes=hashed,
        # one list of hashes needs one salt: the older one
        salt=(init.card.salt if init else salt_of(frames)) if hashed else "",
    )


def make_checkpoint(
    frames: Frames,
    plan: Plan,
    trained: Trained,
    member: int,
    *,
    init: Checkpoint | None = None,
    **options: Any,
) -> Checkpoint:
    """The checkpoint of one member; options as for `make_card`."""
    card = make_card(frames, plan, member, trained=trained, init=init, **options)
    hashed = card.recording_hashes
    splits = TRAINED_ON if plan.row.sees_data and hashed else ()
    recordings = hashed_recordings(frames, card.salt, splits)
    encoder, row = plan.encoder_for(frames), slice(member, member + 1)
    return Checkpoint(
        card=card,
        # the encoder's own: heads and a target network are dropped
        weights={name: trained.weights[name][row].cpu() for name in encoder.parameters(_NO_KEYS)},
        buffers={name: trained.buffers[name][row].cpu() for name in encoder.buffers(0)},
        recordings=np.union1d(recordings, init.recordings) if init and hashed else recordings,
    )


def finite(value: float) -> float | None:
    """The value, or None where it is NaN or infinite, which JSON cannot express."""
    return value if math.isfinite(value) else None


def datasets_of(dataset: str | None, init: Checkpoint | None) -> str | None:
    """The names of all datasets that have shaped the weights, in order."""
    names = SEVERAL.join(filter(None, (init.card.dataset if init else None, dataset)))
    return SEVERAL.join(dict.fromkeys(names.split(SEVERAL))) or None


def trained_on(frames: Frames | None, init: Checkpoint | None) -> tuple[TrainedOn, ...]:
    """All datasets and splits that have shaped the weights, in order."""
    before = init.card.trained_on if init else ()
    if frames is None:
        return before
    new = (
        TrainedOn(name, frames.split_seed, frames.content, frames.folds.get(name))
        for name in frames.dataset.split(SEVERAL)
    )
    return tuple(dict.fromkeys((*before, *new)))

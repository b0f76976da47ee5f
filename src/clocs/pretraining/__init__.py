"""A method: what an instance is, its views, and an objective that carries the method's own options.

Importing a method must not import torch, which takes seconds: the command line lists the options of
all methods. So modules of methods import torch inside their functions, as this one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clocs.frames.frames import Frames
from clocs.frames.views import Instances, Views
from clocs.registry import Option, chosen_options

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor

    from clocs.encoders.base import Encoder, Weights
    from clocs.pretraining.batches import Batch


HIDDEN = 512  # units of a projection head
EPSILON = 1e-5  # of variances
PROJECTION = 128  # dimensions, for encoders of many leads


def option(default: Any, about: str, **more: Any) -> Any:
    """A field of an objective that users may choose; more as for `clocs.registry.Option`."""
    return field(default=default, metadata={"option": {"help": about} | more})


@dataclass(frozen=True)
class Objective:
    """What a method optimizes; its fields, declared with `option`, are the method's own options.

    Most objectives define `loss` alone; those that define both `train_loss` and `validation_loss`
    can do without it.
    """

    compares_views: ClassVar[bool] = True  # needs two views of an instance, and two instances
    compares_patients: ClassVar[bool] = False  # needs instances of two patients
    # whether processes can share a batch, where it has its own `train_loss` or `validation_loss`
    shares_batches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for each in self.options():
            object.__setattr__(self, each.name, each.checked(getattr(self, each.name)))

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """The options in order of declaration."""
        return tuple(
            Option(each.name, each.default, **each.metadata["option"]) for each in fields(cls)
        )

    def for_encoder(self, *, multilead: bool) -> Self:
        """These options with the defaults that depend on whether the encoder sees many leads."""
        return self

    def views(self, own: Views, dataset: str) -> Views:
        """The views that these options ask for, given those of the method's row."""
        return own

    def usable(self, frames: Frames, part: Instances) -> Instances:
        """The instances of a part that can be learned from."""
        return part

    def heads(self, *, dim: int, classes: int, copies: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights beside the encoder's, which are not kept; they read embeddings."""
        return {}

    def extra_buffers(self, weights: Weights, buffers: Weights) -> Weights:
        """Tensors, (members, …) each, to keep beside the encoder's batch-norm statistics.

        `weights` are the initial ones, those of the heads among them.
        """
        return {}

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        """z: (members, views, batch, dim) -> (members,)."""
        raise NotImplementedError

    def _loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        if batch.share is None:
            return self.loss(z, batch, weights)
        # each process computes the loss of all instances and takes an equal part of it
        every = batch.share.all_gather(z)
        return self.loss(every, batch, weights) / batch.share.ranks.size

    def train_loss(
        self, encoder: Encoder, weights: Weights, buffers: Weights, batch: Batch, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        """(members,) losses in training mode, and the buffers after this batch."""
        z, buffers = encoder.encode_training(weights, buffers, batch.x, keys)
        return self._loss(batch.by_view(z), batch, weights), buffers

    def validation_loss(
        self, encoder: Encoder, weights: Weights, buffers: Weights, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """(members,) losses in evaluation mode, and the embeddings by view."""
        z = batch.by_view(encoder.encode(weights, buffers, batch.x))
        return self._loss(z, batch, weights), z

    def after_step(self, weights: Weights, buffers: Weights, moved: Tensor) -> None:
        """Change buffers, in place, after a step of the members that moved, (members, 1) bool."""
        return

    def metrics(self, z: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Further validation values to log, (members,) each."""
        return {}


@dataclass(frozen=True)
class Projecting(Objective):
    """An objective that may project embeddings before it compares them.

    The head is Linear, standardized over the batch, ReLU, Linear, and dropped after training. It
    has no running statistics: nobody encodes a single ECG with it.
    """

    projection: int | None = option(
        None,
        "Dimension to which a head of two layers, dropped after training, projects embeddings for "
        "the loss; 0: none. Where not given, 128 for encoders of many leads and 0 for others.",
        kind=int,
        minimum=0,
    )

    def for_encoder(self, *, multilead: bool) -> Self:
        if multilead and self.projection is None:
            return replace(self, projection=PROJECTION)
        return self

    def heads(self, *, dim: int, classes: int, copies: int) -> dict[str, tuple[int, ...]]:
        return two_layers("projection", dim, self.projection) if self.projection else {}

    def projected(self, z: Tensor, weights: Weights) -> Tensor:
        """z: (members, …, dim) -> what is compared, of the projection's dimension."""
        return through_two_layers(z, weights, "projection") if self.projection else z


@dataclass(frozen=True)
class Comparing(Projecting):
    """An objective on views of one instance, which may differ in their leads."""

    own_positives: ClassVar[str] = "instance"  # where the option is not given

    positives: str | None = option(
        None,
        "Positive pairs: views of one patient, or of one instance alone (no off-diagonal terms). "
        "Where not given, patient for cmsc, cmlc and cmsmlc, and instance for simclr and byol.",
        kind=str,
        choices=("patient", "instance"),
    )
    most_leads: int | None = option(
        None,
        "Most leads of a view, drawn anew each time. An encoder of many leads sees 1 to so many of "
        "them. For an encoder of one lead, 1 takes each view from a random lead.",
        kind=int,
        minimum=1,
    )

    def for_encoder(self, *, multilead: bool) -> Self:
        made = super().for_encoder(multilead=multilead)
        return replace(made, positives=made.positives or self.own_positives)

    def views(self, own: Views, dataset: str) -> Views:
        return own if self.most_leads is None else replace(own, most_leads=self.most_leads)


@dataclass(frozen=True)
class Segments(Comparing):
    """The same for views that may be segments of a recording."""

    segments: int | None = option(
        None,
        "Number of segments to compare; 2 where not given, and 1, two copies of it, for simclr and "
        "byol.",
        kind=int,
        minimum=1,
    )
    crops: str = option(
        "consecutive",
        "Which segments: consecutive ones, or random crops of a run of consecutive frames.",
        choices=("consecutive", "random"),
    )

    def views(self, own: Views, dataset: str) -> Views:
        own = replace(super().views(own, dataset), random_crops=self.crops == "random")
        if self.segments is None or self.segments == own.segments:
            return own
        # one view of each segment; of a single one, two, unless it has one in each lead
        several = self.segments > 1 or (own.all_leads and not own.most_leads)
        return replace(own, segments=self.segments, copies=own.copies[:1] * (1 if several else 2))


@dataclass(frozen=True)
class Method:
    """A row of `clocs.pretraining.methods.METHODS`: a way to learn an encoder."""

    name: str  # what users call it
    of: Literal["lead", "frame"]  # an instance is one lead, or a frame in all its leads
    views: Views
    objective: type[Objective] | None = None  # None where nothing is learned
    perturbable: bool = True  # whether `perturb` may replace the perturbations of its views
    fits_batch_norm: bool = False  # untrained, but with batch-norm statistics of the data

    @property
    def options(self) -> tuple[Option, ...]:
        """The method's own options."""
        return self.objective.options() if self.objective else ()

    @property
    def sees_data(self) -> bool:
        """Whether its encoders depend on the recordings."""
        return self.objective is not None or self.fits_batch_norm

    def configured(self, options: Mapping[str, Any]) -> Objective | None:
        """The objective with these options; refuses those that the method does not take."""
        options = chosen_options(self, options)
        return self.objective(**options) if self.objective else None


def two_layers(name: str, dim: int, out: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of a head."""
    return {
        f"{name}.1.weight": (dim, HIDDEN),
        f"{name}.1.bias": (HIDDEN,),
        f"{name}.2.weight": (HIDDEN, out),
        f"{name}.2.bias": (out,),
    }


def head_inputs(name: str, dim: int) -> int:
    """How many numbers a head's weight of that name reads: an embedding, or a hidden layer."""
    return HIDDEN if ".2." in name else dim


def through_two_layers(z: Tensor, weights: Weights, name: str) -> Tensor:
    """z: (members, …, dim) -> (members, …, out), by the head of that name."""
    import torch

    from clocs.kernels import ranks

    hidden = torch.bmm(z.flatten(1, -2), weights[f"{name}.1.weight"])
    if ranks.is_shared():
        mean, variance = (x[:, None] for x in ranks.moments(hidden, [1])[:2])
    else:
        variance, mean = torch.var_mean(hidden, dim=1, correction=0, keepdim=True)
    hidden = (hidden - mean) * (variance + EPSILON).rsqrt() + weights[f"{name}.1.bias"][:, None]
    hidden = torch.relu(hidden)
    made = torch.baddbmm(weights[f"{name}.2.bias"][:, None], hidden, weights[f"{name}.2.weight"])
    return made.view(*z.shape[:-1], made.shape[-1])

"""A method: what an instance is, its views, and an objective that carries the method's own options.

Importing a method must not import torch, which takes seconds: the command line lists the options of
all methods. So modules of methods import torch inside their functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clocs.frames.frames import Frames
from clocs.frames.views import Instances, Views
from clocs.registry import Option, chosen_options

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor

    from clocs.encoders.base import Encoder, Weights
    from clocs.pretraining.batches import Batch


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

    def for_encoder(self, *, many_leads: bool) -> Self:
        """These options with the defaults that depend on whether the encoder sees many leads."""
        return self

    def views(self, own: Views, dataset: str) -> Views:
        """The views that these options ask for, given those of the method's row."""
        return own

    def check(self, frames: Frames) -> None:
        """Refuse frames that nothing can be learned from."""

    def usable(self, frames: Frames, part: Instances) -> Instances:
        """The instances of a part that can be learned from."""
        return part

    def heads(self, *, dim: int, classes: int, copies: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights beside the encoder's, which are not kept; they read embeddings."""
        return {}

    def extra_buffers(self, weights: Weights, buffers: Weights, *, dim: int) -> Weights:
        """Tensors, (members, …) each, to keep beside the encoder's batch-norm statistics.

        `weights` are the initial ones, those of the heads among them; `dim` is the embeddings'.
        """
        return {}

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        """z: (members, views, batch, dim) -> (members,)."""
        raise NotImplementedError

    def shared_loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        """This process's part of `loss`, where processes share a batch: all parts add up to it.

        z: (members, views, own, dim) of its own instances. Where a method does not say how to
        divide the work, each process computes the loss of all and takes an equal part of it.
        """
        assert batch.share is not None
        every = batch.share.all_gather(z)
        return self.loss(every, batch.whole, weights) / batch.share.world

    def _loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        return (self.loss if batch.share is None else self.shared_loss)(z, batch, weights)

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

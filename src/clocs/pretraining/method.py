"""A method: what an instance is, its views, and an objective that carries the method's own options.

Importing a method must not import torch, which takes seconds: the command line lists the options of
all methods. So modules of methods import torch inside their functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Instances, Views

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.encoders.base import Encoder, Weights
    from clocs.pretraining.batches import Batch


def option(
    default: Any,
    meaning: str,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
) -> Any:
    """A field of an objective that users choose, on the command line as in Python.

    Args:
        default: Its value where none is given.
        meaning: What it is, as a full phrase; the help of the command line.
        above: Valid numbers are greater than this.
        least: Valid numbers are not less than this.
        most: Valid numbers are not greater than this.
    """
    return field(default=default, metadata={"option": (meaning, above, least, most)})


@dataclass(frozen=True)
class Option:
    """An option of a method, as its objective declares it with `option`.

    Attributes:
        name: Its keyword in Python.
        kind: int, float, bool, str, or tuple for several strings.
        optional: Whether None is a value.
        default: Its value where none is given.
        meaning: What it is, for the help of the command line.
        limits: The greatest number that is too small, the least and the greatest valid number.
    """

    name: str
    kind: type
    optional: bool
    default: Any
    meaning: str
    limits: Sequence[float]

    def checked(self, value: Any) -> Any:
        """The value as its kind, or a sentence that says what is valid."""
        if value is None and self.optional:
            return None
        if self.kind is tuple and not isinstance(value, str):
            return tuple(value)
        if self.kind is float and type(value) is int:
            value = float(value)
        above, least, most = self.limits
        valid = type(value) is self.kind
        if valid and self.kind in (int, float):
            valid = above < value and least <= value <= most and math.isfinite(value)
        if not valid:
            bounds = {"above": above, "at least": least, "at most": most}
            words = [f"{word} {x:g}" for word, x in bounds.items() if math.isfinite(x)]
            kind = {int: "a whole number", float: "a number", tuple: "a list"}.get(
                self.kind, "text"
            )
            expected = f"{kind} {' and '.join(words)}".strip()
            raise SettingError(f"`{self.name}` must be {expected}, not {value!r}")
        return value


@dataclass(frozen=True)
class Objective:
    """What a method optimises; its fields, declared with `option`, are the method's own options.

    Most objectives define `loss` alone.
    """

    compares_views: ClassVar[bool] = True  # needs two views of an instance, and two instances
    compares_patients: ClassVar[bool] = False  # needs instances of two patients

    def __post_init__(self) -> None:
        for name, each in self.options().items():
            object.__setattr__(self, name, each.checked(getattr(self, name)))

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The options by name, in order of declaration."""
        kinds, found = get_type_hints(cls), {}
        for each in fields(cls):
            if "option" in each.metadata:
                meaning, *limits = each.metadata["option"]
                kind, optional = kinds[each.name], False
                if NoneType in get_args(kind):  # float | None
                    kind, optional = get_args(kind)[0], True
                kind = get_origin(kind) or kind  # tuple[str, ...] -> tuple
                found[each.name] = Option(each.name, kind, optional, each.default, meaning, limits)
        return found

    def views(self, own: Views, dataset: str) -> Views:
        """The views that these options ask for, given those of the method's row."""
        return own

    def check(self, frames: Frames) -> None:
        """Refuse frames that nothing can be learned from."""

    def usable(self, frames: Frames, part: Instances) -> Instances:
        """The instances of a part that can be learned from."""
        return part

    def heads(self, *, dim: int, classes: int, copies: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights beside the encoder's, which are not kept; all read embeddings."""
        return {}

    def extra_buffers(self, weights: Weights, buffers: Weights) -> Weights:
        """Tensors, (members, …) each, to keep beside the encoder's batch-norm statistics."""
        return {}

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        """z: (members, views, batch, dim) -> (members,)."""
        raise NotImplementedError

    def train_loss(
        self, encoder: Encoder, weights: Weights, buffers: Weights, batch: Batch, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        """(members,) losses in training mode, and the buffers after this batch."""
        z, buffers = encoder.encode_training(weights, buffers, batch.x, keys)
        return self.loss(batch.by_view(z), batch, weights), buffers

    def validation_loss(
        self, encoder: Encoder, weights: Weights, buffers: Weights, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """(members,) losses in evaluation mode, and the embeddings by view."""
        z = batch.by_view(encoder.encode(weights, buffers, batch.x))
        return self.loss(z, batch, weights), z

    def after_step(self, weights: Weights, buffers: Weights) -> Weights | None:
        """The buffers after an optimiser step, where it changes them."""
        return None

    def metrics(self, z: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Further validation values to log, (members,) each."""
        return {}


@dataclass(frozen=True)
class Method:
    """A row of `clocs.pretraining.methods.METHODS`: a way to learn an encoder.

    Attributes:
        name: What users call it.
        of: What an instance is: one lead, or a frame in all its leads.
        views: What an instance is seen as.
        objective: What is optimised; None where nothing is learned.
        perturbable: Whether `perturb` may replace the perturbations of its views.
        fits_batch_norm: Whether an untrained encoder gets batch-norm statistics from the data.
    """

    name: str
    of: Literal["lead", "frame"]
    views: Views
    objective: type[Objective] | None = None
    perturbable: bool = True
    fits_batch_norm: bool = False

    @property
    def options(self) -> dict[str, Option]:
        """The method's own options by name."""
        return self.objective.options() if self.objective else {}

    @property
    def sees_data(self) -> bool:
        """Whether its encoders depend on the recordings."""
        return self.objective is not None or self.fits_batch_norm

    def configured(self, options: Mapping[str, Any]) -> Objective | None:
        """The objective with these options; refuses those that the method does not take."""
        unknown = [f"`{name}`" for name in options if name not in self.options]
        if unknown:
            known = ", ".join(f"`{name}`" for name in self.options)
            takes = f"; its own options are {known}" if known else " and has no options of its own"
            raise SettingError(f"{self.name} does not take {', '.join(unknown)}{takes}")
        return self.objective(**options) if self.objective else None

"""Training: its settings here; the loop, states, cards and checkpoints in the modules."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from clocs.errors import SettingError

Keep = Literal["best", "last"]
OptimizerName = Literal["adam", "adamw"]
Schedule = Literal["constant", "cosine"]
_CHOICES = {"keep": Keep, "optimizer": OptimizerName, "schedule": Schedule}
_ALWAYS = ("epochs", "patience", "batch_size", "lr")  # said even at their defaults
DECAY = 0.01  # AdamW's where none is given


@dataclass(frozen=True)
class Settings:
    """How long, how fast and with which optimizer; the paper's values by default.

    Attributes:
        epochs: Most epochs to train.
        patience: Epochs without a lower validation loss before a seed stops.
        batch_size: Instances per step; by default the paper's number for the dataset.
        lr: Learning rate; with a schedule or a warm-up, the highest.
        keep: Which weights to keep: 'best', those of the lowest validation loss, or 'last', those
            after all `epochs`, without early stopping.
        optimizer: Optimizer: adam, the paper's, or adamw, with weight decay.
        weight_decay: Decay of the weights under AdamW; biases and scales of norms do not decay.
            0.01 by default.
        schedule: Learning rate after the warm-up: 'constant', or 'cosine', which falls to 0 at the
            end of all `epochs`.
        warm_up: Share of all steps in which the learning rate rises to `lr`.
        average: Decay of an exponential average of the weights over steps, such as 0.998; the
            averaged weights are validated and kept.
    """

    epochs: int = 400
    patience: int = 15
    batch_size: int = 256
    lr: float = 1e-4
    keep: Keep = "best"
    optimizer: OptimizerName = "adam"
    weight_decay: float | None = None
    schedule: Schedule = "constant"
    warm_up: float = 0.0
    average: float | None = None

    @classmethod
    def choose(cls, settings: Settings | None, default_batch_size: int, **given: Any) -> Settings:
        """`settings`, or the fields in `given` that are not None and defaults for the others."""
        given = {name: value for name, value in given.items() if value is not None}
        if settings and given:
            raise SettingError(
                f"give `settings` or {' and '.join(f'`{name}`' for name in given)}, not both"
            )
        return settings or cls(**{"batch_size": default_batch_size} | given)

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch_size"):
            if getattr(self, name) < 1:
                raise SettingError(f"`{name}` must be at least 1, not {getattr(self, name)}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                valid = " or ".join(get_args(choices))
                raise SettingError(f"`{name}` is {valid}, not {getattr(self, name)}")
        if self.weight_decay is not None and self.optimizer != "adamw":
            raise SettingError("`weight_decay` needs `optimizer=adamw`; adam has none")
        fits = {
            "`lr`, the learning rate, must be above 0": self.lr > 0,
            "`weight_decay` must be a number from 0": 0 <= self.decay < math.inf,
            "`warm_up` is a share of all steps, at least 0 and below 1": 0 <= self.warm_up < 1,
            "`average` must be above 0 and below 1": self.average is None or 0 < self.average < 1,
        }
        for sentence, fit in fits.items():
            if not fit:
                raise SettingError(f"{sentence}, not {getattr(self, sentence.split('`')[1])}")

    @property
    def decay(self) -> float:
        """How fast weights decay."""
        if self.weight_decay is None:
            return DECAY if self.optimizer == "adamw" else 0.0
        return self.weight_decay

    def to_dict(self) -> dict[str, Any]:
        """By name, for cards and results; newer ones only where they are not at their defaults."""
        defaults = {f.name: f.default for f in fields(self) if f.name not in _ALWAYS}
        given = {k: v for k, v in asdict(self).items() if k not in defaults or v != defaults[k]}
        return given | ({"weight_decay": self.decay} if self.optimizer == "adamw" else {})


def settings_in(options: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of `Settings` out of the further keywords of a function."""
    return {f.name: options.pop(f.name) for f in fields(Settings) if f.name in options}

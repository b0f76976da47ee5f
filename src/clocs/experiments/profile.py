"""Profiles: how long the grid's trainings are: as in the paper, or small to try everything."""

from __future__ import annotations

from dataclasses import dataclass

from clocs.experiments.grid import CURVE_EPOCHS
from clocs.training.loop import Settings


@dataclass(frozen=True)
class Profile:
    """What all runs of a folder share.

    Attributes:
        name: 'paper', or 'simulated' where small simulated datasets stand for the real ones.
        epochs: At most, of every training.
        patience: Epochs without a lower validation loss before a member stops.
        lr: Adam's learning rate.
        curve_epochs: Of curves: all of them, without stopping.
        resamples: Of patients, for the intervals.
        seeds: Unless another number is asked for.
    """

    name: str = "paper"
    epochs: int = 400
    patience: int = 15
    lr: float = 1e-4
    curve_epochs: int = CURVE_EPOCHS
    resamples: int = 2000
    seeds: int = 5

    def settings(self, batch_size: int) -> Settings:
        return Settings(self.epochs, self.patience, batch_size, self.lr)

    def curve_settings(self, batch_size: int) -> Settings:
        return Settings(self.curve_epochs, self.curve_epochs, batch_size, self.lr)


PAPER = Profile()
SIMULATED = Profile(
    name="simulated", epochs=1, patience=1, lr=1e-3, curve_epochs=3, resamples=50, seeds=2
)

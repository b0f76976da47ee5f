"""Profiles: how long to train: as in the paper, or briefly, to try everything."""

from __future__ import annotations

from dataclasses import dataclass

from clocs.experiments.grid import CURVE_EPOCHS
from clocs.training.loop import Settings


@dataclass(frozen=True)
class Profile:
    """What all runs of a folder share.

    Attributes:
        name: 'paper', or 'simulated' for small simulated datasets.
        epochs: The most epochs of any training.
        patience: Epochs without a lower validation loss before a member stops.
        lr: Adam's learning rate.
        curve_epochs: The epochs of a curve, without early stopping.
        resamples: Bootstrap samples of patients, for the confidence intervals.
        seeds: The default number of seeds.
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

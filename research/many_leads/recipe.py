"""Recipe: how encoders are pre-trained and fine-tuned, the same for all methods of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from clocs.experiments.paper import CLOCS
from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan, Precision, find_method
from clocs.pretraining.task import learnable_parts
from clocs.training import Settings

MAX_EPOCHS = 60  # of fine-tuning, where few recordings are labeled
MIN_EPOCHS = 5
SMALLEST_BATCH = 8
# options that the recipe sets of other methods, and of those of CLOCS
_OPTIONS = {False: {"temperature"}, True: {"temperature", "positives", "crops", "most_leads"}}


@dataclass(frozen=True)
class Recipe:
    """Settings of a comparison; chosen on validation patients."""

    name: str = "full"
    encoder: str = "multilead"
    embedding_dim: int = 640
    dropout: float = 0.0  # of the encoder
    steps: int = 4000  # of pre-training, whatever the method
    factorial_steps: int = 750  # of each encoder of the factorial
    batch_size: int = 512
    lr: float = 1e-3
    weight_decay: float = 0.01
    warm_up: float = 0.05  # share of the steps
    average: float = 0.998  # decay of the average of weights
    temperature: float = 0.2
    positives: str = "patient"  # whose pairs are pulled together, where a method has a choice
    most_leads: int = 2  # of a view, where a method compares leads
    crops: str = "random"  # where a method compares segments
    # of every view, where a method allows it; noise is in mV
    perturb: str = "stretch>gaussian(sigma=0.03)"
    finetune_seconds: float = 10.0  # of a frame
    finetune_steps: int = 750  # with all labels; from scratch twice as many
    finetune_steps_few: int = 300  # with fewer labels
    finetune_batch_size: int = 128
    finetune_lr: tuple[float, ...] = (1e-3,)  # the best on validation patients is kept
    finetune_weight_decay: float = 0.05
    finetune_average: float = 0.99
    encoder_lr_few: float = 0.3  # share of the learning rate for pre-trained weights, fewer labels
    head_dropout: float = 0.3
    lead_subsets: float = 0.5  # share of frames seen through a subset of leads, in fine-tuning
    finetune_noise: float = 0.2  # the greatest, in standard deviations of a lead
    linear_draws: int = 5  # seeds of labeled patients, where not all are labeled
    finetune_draws: int = 3
    resamples: int = 2000
    precision: Precision = "bfloat16"  # of pre-training on a GPU
    patients: int | None = None  # at most so many of each part, to try it out

    def facts(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"finetune_lr": list(self.finetune_lr)}

    def plan(
        self,
        method: str,
        frames: Frames,
        seed: int,
        device: torch.device,
        *,
        encoder: str | None = None,
        most_leads: int | None = None,
        factors: Sequence[str] | None = None,
    ) -> Plan:
        """The plan of a pre-training: its epochs have `steps` steps in all.

        `factors` are what a loss of the factorial compares, whatever its method does.
        """
        row = find_method(method)
        offered = {option.name for option in row.options} & _OPTIONS[method in CLOCS]
        single = encoder is not None  # one lead at a time
        wanted: dict[str, Any] = {
            "temperature": self.temperature,
            "positives": self.positives,
            "crops": self.crops,
            "most_leads": None if single or method == "cmsc" else most_leads or self.most_leads,
        }
        if factors is not None:
            offered = {option.name for option in row.options}
            wanted |= {
                "segments": 2 if "segments" in factors else 1,
                "crops": self.crops if "segments" in factors else "consecutive",
                "positives": "patient" if "patient" in factors else "instance",
                "most_leads": self.most_leads if "leads" in factors else None,
            }
        plan = Plan(
            method=method,
            seeds=(seed,),
            encoder=encoder or self.encoder,
            embedding_dim=128 if single else self.embedding_dim,
            dropout=self.dropout,
            options={name: value for name, value in wanted.items() if name in offered},
            perturb=self.perturb if row.perturbable and row.objective else None,
            precision=self.precision if device.type == "cuda" else "float32",
            settings=Settings(batch_size=self.batch_size),
        )
        epochs = 1
        if row.objective is not None:
            count = len(learnable_parts(frames, plan)[0])
            steps = self.steps if factors is None else self.factorial_steps
            epochs = max(1, round(steps / max(1, count // self.batch_size)))
        return replace(plan, settings=self._schedule(epochs))

    def _schedule(self, epochs: int) -> Settings:
        return Settings(
            epochs=epochs,
            patience=epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            keep="last",
            optimizer="adamw",
            weight_decay=self.weight_decay,
            schedule="cosine",
            warm_up=self.warm_up,
            average=self.average,
        )

    def finetuning(self, rows: int, lr: float, steps: int, average: float | None) -> Settings:
        """Settings of so many steps on so many labeled rows; the best epoch is kept.

        Few rows make smaller batches, of a size that all draws of labeled patients fill: a network
        is compiled for every size.
        """
        size = self.finetune_batch_size
        while size > SMALLEST_BATCH and size > rows // 2:
            size //= 2
        each = max(1, rows // size)
        epochs = min(MAX_EPOCHS, max(MIN_EPOCHS, round(steps / each)))
        return Settings(
            epochs=epochs,
            patience=epochs,
            batch_size=size,
            lr=lr,
            optimizer="adamw",
            weight_decay=self.finetune_weight_decay,
            schedule="cosine",
            warm_up=self.warm_up,
            average=average,
        )


TINY = Recipe(
    name="tiny",
    embedding_dim=16,
    steps=2,
    factorial_steps=2,
    batch_size=8,
    average=0.5,
    finetune_steps=2,
    finetune_steps_few=2,
    finetune_average=0.5,
    finetune_batch_size=8,
    finetune_lr=(1e-3,),
    linear_draws=2,
    finetune_draws=2,
    resamples=20,
    patients=12,
)

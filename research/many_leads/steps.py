"""What is done for an item: an encoder trained, scored, or looked at in another way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import clipped_interval, draws_of
from clocs.evaluation.groups import GroupResult, score_groups
from clocs.evaluation.labeled import LabeledPart
from clocs.evaluation.result import Predictions
from clocs.experiments.ledger import pack_draws
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS
from clocs.pretraining.pretrain import pretrain_frames
from clocs.sealed import spelled_for_files
from clocs.training.checkpoint import Checkpoint, load_checkpoint
from clocs.training.loop import Epoch
from research.analyses.identity import identity_and_disease
from research.analyses.label_mapping import other_hospital
from research.many_leads.data import StudyData
from research.many_leads.items import (
    LEADS,
    NOISE_DB,
    SCRATCH,
    Analysis,
    Item,
    Pretraining,
    Scoring,
)
from research.many_leads.recipe import Recipe
from research.noise import fewer_leads, kinds_at, noisy_test

LINEAR = "linear-converged"  # the protocol of a linear readout here: solved, not trained in epochs
SAVE_EVERY = 30.0  # seconds
SHORT = ("cardiology",)  # episodes change within frames of twice the length
_LEFT_OUT = ("by_sex", "by_age", "curve", "thresholds", "folds", "better_than", "f1_per_class")


@dataclass(frozen=True)
class Bench:
    """Where items are computed, and what with."""

    data: StudyData
    recipe: Recipe
    folder: Path  # of the encoders
    device: torch.device

    def path(self, encoder: Pretraining) -> Path:
        """The folder of an encoder."""
        return self.folder / encoder.title / f"seed{encoder.seed}"

    def checkpoint(self, encoder: Pretraining) -> Checkpoint:
        own = load_checkpoint(self.path(encoder))
        return replace(own, card=replace(own.card, maxima=()))  # the published tables are by means

    def compute(self, item: Item, on_epoch: Callable[[Epoch], None]) -> dict[str, Any]:
        """The result of an item; what `on_epoch` raises stops a training, which can be resumed."""
        if isinstance(item, Pretraining):
            return self._pretrain(item, on_epoch)
        if isinstance(item, Scoring):
            return self._score(item)
        return self._analyze(item)

    def _pretrain(self, item: Pretraining, on_epoch: Callable[[Epoch], None]) -> dict[str, Any]:
        frames = self.data.frames(*item.datasets)
        names = ("encoder", "most_leads", "factors")
        wanted: Any = {name: getattr(item, name) for name in names}
        plan = self.recipe.plan(item.method, frames, item.seed, self.device, **wanted)
        made = pretrain_frames(
            frames,
            plan,
            self.path(item),
            device=self.device,
            resume=True,
            save_every=SAVE_EVERY,
            on_epoch=on_epoch,
        )[0]
        return {
            "metrics": made.card.metrics,
            "training": made.card.training,
            "encoder": made.card.encoder,
            "weights": count_weights(made),
            "sha256": made.fingerprint,
        }

    def _score(self, item: Scoring) -> dict[str, Any]:
        frames = self.data.frames(item.dataset)
        if (leads := LEADS[item.leads]) is not None:
            frames = frames.with_leads(leads)
        own = [self.checkpoint(encoder) for encoder in item.encoders]
        checkpoints = self._draws(own, item)
        if not own[0].encoder.leads:  # one lead at a time: those that the recordings have
            present = np.flatnonzero(frames.present.any(axis=0))
            frames = frames.with_leads([frames.leads[place] for place in present])
        conditions = self._conditions(frames) if item.conditions else {}
        common: dict[str, Any] = {
            "fraction": item.share,
            "by": "patient",
            "validation_labels": "all",
            "per": "recording",
            "further": list(conditions.values()),
            "resamples": self.recipe.resamples,
            "device": self.device,
        }
        if item.protocol == "linear":
            tried = [score_groups([checkpoints], frames, protocol=LINEAR, **common)[0]]
        else:
            tried = self._tried(item, checkpoints, frames, common)
        best = max(tried, key=lambda one: one.evaluation.auc_validation_mean)
        return result_of(best) | {
            "conditions": [
                self._under(name, one) for name, one in zip(conditions, best.further, strict=True)
            ],
            "tried": [
                {"lr": e.settings.get("lr"), "auc_validation": e.auc_validation_mean}
                for e in (one.evaluation for one in tried)
            ],
            "encoder_seeds": [one.card.seed for one in own],
            "weights": count_weights(own[0]),
        }

    def _tried(
        self,
        item: Scoring,
        checkpoints: Sequence[Checkpoint],
        frames: Frames,
        common: dict[str, Any],
    ) -> list[GroupResult]:
        """One result per learning rate; of several seeds, all have the same."""
        recipe = self.recipe
        rows = max(1, round(item.share * int((frames.split == PARTS.index("train")).sum())))
        steps = recipe.finetune_steps if item.share == 1 else recipe.finetune_steps_few
        more, average = {}, None
        if item.protocol == "finetune":
            more, average = self._finetuning(item, frames), recipe.finetune_average
            if "seconds" in more:
                rows = max(1, round(rows * frames.spec.seconds / recipe.finetune_seconds))
        if item.encoder.method == SCRATCH:
            steps *= 2
        made = []
        for lr in recipe.finetune_lr:
            settings = recipe.finetuning(rows, lr, steps, average)
            made += score_groups(
                [checkpoints], frames, protocol=item.protocol, settings=settings, **common, **more
            )
        return made

    def _finetuning(self, item: Scoring, frames: Frames) -> dict[str, Any]:
        """Options of the protocol."""
        recipe, few = self.recipe, item.share < 1 and item.encoder.method != SCRATCH
        options = {
            "encoder_lr": recipe.encoder_lr_few if few else 1.0,
            "head_dropout": recipe.head_dropout,
            "stop_by": "auc",
            "crops": True,
            "gaussian": recipe.finetune_noise,
            "precision": recipe.precision if self.device.type == "cuda" else "float32",
        }
        if item.encoder.encoder is None:  # of many leads, and of frames of any length
            several = int(frames.present.any(axis=0).sum()) > 1
            options["lead_subsets"] = recipe.lead_subsets if several else 0.0
            if item.dataset not in SHORT:
                options["seconds"] = recipe.finetune_seconds
        return options

    def _draws(self, own: Sequence[Checkpoint], item: Scoring) -> list[Checkpoint]:
        """One checkpoint per seed of labeled patients: of one encoder, copies of it."""
        if len(own) > 1 or item.share == 1:
            return list(own)
        linear = item.protocol == "linear"
        draws = self.recipe.linear_draws if linear else self.recipe.finetune_draws
        return [replace(own[0], card=replace(own[0].card, seed=seed)) for seed in range(draws)]

    def _conditions(self, frames: Frames) -> Mapping[str, Callable[[LabeledPart], LabeledPart]]:
        fewer = {
            f"leads {name}": partial(fewer_leads, leads=own)
            for name, own in LEADS.items()
            if own is not None
        }
        return fewer | {
            f"noise {kind} {db}": partial(noisy_test, kind=kind, snr_db=db, device=self.device)
            for kind in kinds_at(frames.spec.rate)
            for db in NOISE_DB
        }

    def _under(self, condition: str, p: Predictions) -> dict[str, Any]:
        """The scores under a condition."""
        auc = [metrics.macro(metrics.auc_per_class(own, p.targets)) for own in p.probabilities]
        around = clipped_interval(draws_of(p, self.recipe.resamples, self.device)[0])
        facts = {"condition": condition, "rows": len(p), "auc": auc}
        return facts | {"auc_mean": float(np.mean(auc)), "ci95": around}

    def _analyze(self, item: Analysis) -> dict[str, Any]:
        checkpoint, frames = self.checkpoint(item.encoder), self.data.frames(item.dataset)
        if item.kind == "hospital":
            assert item.other is not None
            other, common = self.data.frames(item.other), {"resamples": self.recipe.resamples}
            return other_hospital([checkpoint], frames, other, device=self.device, **common)
        return identity_and_disease(checkpoint, frames, device=self.device)


def result_of(one: GroupResult) -> dict[str, Any]:
    """What the ledger keeps of an evaluation."""
    scores = spelled_for_files(one.evaluation.json())
    facts = {k: v for k, v in scores.items() if k not in _LEFT_OUT}
    if one.draws is None:
        return facts
    return facts | {"draws": pack_draws(one.draws)}


def count_weights(checkpoint: Checkpoint) -> int:
    """Numbers that were learned."""
    return sum(tensor.numel() for tensor in checkpoint.weights.values())

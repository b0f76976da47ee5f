"""What a fine-tuning has learned, put together as a classifier and calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from clocs.evaluation import metrics
from clocs.evaluation.finetune_task import FinetunedClassifier
from clocs.evaluation.groups import GroupResult
from clocs.evaluation.recording_vectors import RecordingVectors
from clocs.evaluation.result import plain
from clocs.frames.frames import Frames
from clocs.models.calibration import fit_temperature, probabilities
from clocs.models.classifier import Classifier
from clocs.models.classifier_card import ClassifierCard
from clocs.models.reference import choose_limits, distance, fit_reference
from clocs.models.scored_part import labeled_part, score_part
from clocs.pretraining.cards import TRAINED_ON, datasets_of, trained_on
from clocs.training import leak_guard
from clocs.training.checkpoint import Checkpoint

_PARTS = {"train": 0, "validation": 1}


def assembled(
    encoders: Sequence[Checkpoint],
    result: GroupResult,
    frames: Frames,
    facts: dict[str, Any],
    about: dict[str, Any],
    recording_hashes: bool,
) -> Classifier:
    """The classifier of the members that are kept, not yet calibrated.

    Args:
        encoders: From which each member started.
        result: Their layers and scores on validation patients.
        frames: The labeled ones.
        facts: The settings; `head` and `members` decide what is kept.
        about: Name, license, citation and intended use.
        recording_hashes: Whether hashes of recordings are listed.
    """
    auc = result.evaluation.auc_validation
    kept = list(range(len(encoders)))
    if facts["members"] == "best":
        kept = [int(np.argmax([-1.0 if np.isnan(one) else one for one in auc]))]
    per_member = {"auc_validation": auc} | {
        name: result.evaluation.settings[name]
        for name in ("best_epoch", "status", "l2")
        if name in result.evaluation.settings
    }
    made = [
        _member(encoders[m], result.classifiers[m], frames, facts, recording_hashes) for m in kept
    ]
    labels = tuple(frames.labels)
    card = ClassifierCard(
        **about,
        dataset=frames.dataset,
        content=frames.content,
        labels=labels,
        multilabel=frames.multilabel,
        protocol="finetune" if facts["head"] == "whole" else "linear",
        encoders=tuple(one.card for one in made),
        temperature=(1.0,) * len(labels),
        thresholds=(None,) * len(labels),
        training=facts | {"kept": kept, "labeled": result.evaluation.labeled} | plain(per_member),
    )
    layers = [result.classifiers[m].weights for m in kept]
    top = {k: torch.cat([one[f"head.{k}"] for one in layers]) for k in ("weight", "bias")}
    return Classifier(card, tuple(made), top, {})


def _member(
    checkpoint: Checkpoint,
    made: FinetunedClassifier,
    frames: Frames,
    facts: dict[str, Any],
    recording_hashes: bool,
) -> Checkpoint:
    """The encoder of a member; who was trained on counts as seen, also by a frozen encoder."""
    card, whole = checkpoint.card, facts["head"] == "whole"
    hashed = recording_hashes and card.recording_hashes
    salt = (card.salt or leak_guard.salt_of(frames)) if hashed else ""
    own = leak_guard.hashed_recordings(frames, salt, TRAINED_ON if hashed else ())
    card = replace(
        card,
        dataset=datasets_of(frames.dataset, checkpoint) if whole else card.dataset,
        trained_on=trained_on(frames, checkpoint),
        leads=card.leads if checkpoint.encoder.leads else frames.leads,
        frame=frames.spec,
        encoder=made.encoder,
        recording_hashes=hashed,
        salt=salt,
        weights_sha256="" if whole or facts["half"] else card.weights_sha256,
    )
    weights = {k: v for k, v in made.weights.items() if not k.startswith("head.")}
    seen = np.union1d(own, checkpoint.recordings) if hashed else own
    return Checkpoint(card, weights, made.buffers, seen)


def calibrated(
    classifier: Classifier,
    frames: Frames,
    vectors: RecordingVectors,
    *,
    device: torch.device | str = "cpu",
) -> Classifier:
    """With temperature, thresholds and limits of abstention chosen on the validation patients."""
    card, multilabel = classifier.card, classifier.card.multilabel
    parts = {name: labeled_part(classifier, frames, split) for name, split in _PARTS.items()}
    reference = fit_reference(vectors.of(parts["train"]))
    scored = score_part(classifier, parts["validation"], device, vectors)
    limits = choose_limits(
        torch.from_numpy(scored.quality), distance(reference, torch.from_numpy(scored.vectors))
    )
    temperature = fit_temperature(scored.logits, scored.targets, multilabel=multilabel)
    chances = probabilities(scored.logits, temperature, multilabel=multilabel)
    thresholds = metrics.best_thresholds(chances, scored.targets)
    counts = {
        name: {
            "patients": len(np.unique(part.frames.patient[part.frame])),
            "recordings": len(part),
        }
        for name, part in parts.items()
    }
    card = replace(
        card,
        temperature=tuple(temperature.tolist()),
        thresholds=tuple(None if np.isnan(t) else t for t in thresholds.tolist()),
        limits=limits,
        training=card.training | counts,
    )
    return replace(classifier, card=card, reference=reference)

"""A classifier with random layers on top of given encoders, for tests."""

from __future__ import annotations

import torch

from clocs.models.classifier import Classifier
from clocs.training.card import ClassifierCard
from clocs.training.checkpoint import Checkpoint


def some_classifier(*encoders: Checkpoint, multilabel: bool = False) -> Classifier:
    """Of the classes AF, N and O."""
    made = torch.Generator().manual_seed(3)
    dim = encoders[0].encoder.embedding_dim
    card = ClassifierCard(
        name="rhythm-test",
        dataset="synthetic",
        content="0",
        labels=("AF", "N", "O"),
        multilabel=multilabel,
        protocol="linear",
        encoders=tuple(one.card for one in encoders),
        temperature=(1.5, 0.7, 2.0) if multilabel else (1.5, 1.5, 1.5),
        thresholds=(0.4, None, 0.5),
        limits={"1": {"ecg_share": 0.2}},
        scores={"auc": 0.9},
        license="CC-BY-4.0",
        citation="Somebody et al. 2020",
    )
    head = {
        "weight": torch.randn(len(encoders), dim, 3, generator=made) * 0.3,
        "bias": torch.randn(len(encoders), 3, generator=made),
    }
    return Classifier(card, encoders, head, {})

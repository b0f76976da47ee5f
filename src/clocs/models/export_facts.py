"""What a receiver of an exported model must know, in plain values: it travels inside the file."""

from __future__ import annotations

import json
from typing import Any

from clocs._version import __version__
from clocs.models.classifier import Classifier, first_encoder
from clocs.models.model_card import publications_of
from clocs.training.checkpoint import Checkpoint

INPUT, EMBEDDING, PROBABILITIES = "ecg", "embedding", "probabilities"  # names of tensors


def output_name(model: Checkpoint | Classifier) -> str:
    """What comes out."""
    return PROBABILITIES if isinstance(model, Classifier) else EMBEDDING


def export_facts(model: Checkpoint | Classifier, name: str | None = None) -> dict[str, Any]:
    """Everything but the weights, in words that need no other document.

    Args:
        model: An encoder or a classifier.
        name: Of the model; by default that in its card or, of an encoder, method and data.
    """
    encoder = first_encoder(model)
    card, at_once = encoder.card, encoder.encoder.leads
    leads = (
        "in the order of `leads`, nan in a lead that is missing"
        if at_once
        else "any number of them, each seen by itself, nan in a lead that is missing"
    )
    facts: dict[str, Any] = {
        "name": name or _name(model),
        "clocs": __version__,
        "kind": "classifier" if isinstance(model, Classifier) else "encoder",
        "input": f"{INPUT}: float32 (batch, leads, samples), in mV at `rate` Hz; leads {leads}; at "
        "least `frame_samples` samples; what is left after the last whole frame is not used",
        "output": _output(model),
        "rate": card.frame.rate,
        "frame_seconds": card.frame.seconds,
        "frame_samples": encoder.encoder.samples,
        "leads": list(at_once or card.leads),
        "leads_at_once": bool(at_once),
        "unit": "mV",
        "filters": str(card.frame.filters),
        "normalization": f"{card.normalization}; done inside",
    }
    if isinstance(model, Classifier):
        own = model.card
        facts |= {
            "labels": list(own.labels),
            "meanings": own.meanings,
            "multilabel": own.multilabel,
            "thresholds": list(own.thresholds),
            "limits": dict(own.limits),
            "intended_use": own.intended_use,
        }
    facts |= {"trained_on": [one.dataset for one in card.trained_on], "notice": card.notice}
    data = publications_of(card)
    licenses = [f"{one.title}: {one.license or 'the publisher names none'}" for one in data]
    given = model.card if isinstance(model, Classifier) else None
    return facts | {
        "license": (given and given.license) or "; ".join(licenses),
        "citation": (given and given.citation) or "; ".join(one.citation for one in data),
    }


def _name(model: Checkpoint | Classifier) -> str:
    if isinstance(model, Classifier):
        return model.card.name
    return "-".join([model.card.method, *(one.dataset for one in model.card.trained_on)])


def as_texts(facts: dict[str, Any]) -> dict[str, str]:
    """The same as text: words as they are, all else as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in facts.items()
    }


def _output(model: Checkpoint | Classifier) -> str:
    if isinstance(model, Classifier):
        each = "each class by itself" if model.card.multilabel else "they add up to 1"
        return (
            f"{PROBABILITIES}: float32 (batch, classes), calibrated, in the order of `labels`, "
            f"{each}; nan where a recording has no signal"
        )
    return (
        f"{EMBEDDING}: float32 (batch, {model.encoder.embedding_dim}), of length 1; nan where a "
        "recording has no signal"
    )

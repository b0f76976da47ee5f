"""Model cards: what a person must know before using a model, in Markdown; and the list of them.

One function for all of them: `clocs info NAME --verbose` prints it, the pages in `docs/models` are
its output, and an exported model carries it. `clocs info` lists the shipped ones, from their cards
alone: without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs._version import __version__
from clocs.datasets.download import PUBLICATIONS, Publication
from clocs.recording import STANDARD_LEADS
from clocs.training.card import (
    SHIPPED,
    Card,
    ClassifierCard,
    Shipped,
    read_card,
    read_classifier_card,
    shipped_as,
)

if TYPE_CHECKING:
    from clocs.models.classifier import Classifier
    from clocs.training.checkpoint import Checkpoint

HEADS = ("name", "kind", "learned on", "leads", "frame", "size", "AUC", "license of the data")
INPUT, EMBEDDING, PROBABILITIES = "ecg", "embedding", "probabilities"  # tensors of exports


def shipped_models() -> list[dict[str, Any]]:
    """The models inside the package, one row each, ready for JSON.

    `auc` and its interval are of the test patients of the dataset that the model learned on.
    """
    made = []
    for row in SHIPPED.values():
        own = card_of(row)
        card = first_card(own)
        if isinstance(own, ClassifierCard):
            auc, interval = own.scores.get("auc"), own.scores.get("ci95")
        else:
            auc, interval = row.scores[0].auc, [row.scores[0].low, row.scores[0].high]
        made.append(
            {
                "name": row.name,
                "kind": row.kind,
                "summary": row.summary,
                "data": list(dict.fromkeys(one.dataset for one in card.trained_on)),
                "leads": list(card.encoder.get("leads") or card.leads),
                "seconds": card.frame.seconds,
                "rate": card.frame.rate,
                "size": sum(file.stat().st_size for file in row.files),
                "auc": auc,
                "auc_ci95": interval,
                "license": list(dict.fromkeys(one.license for one in publications_of(card))),
            }
        )
    return made


def cells_of(model: Mapping[str, Any]) -> list[str]:
    """The cells below `HEADS` of a row of `shipped_models`."""
    low, high = model["auc_ci95"]
    return [
        model["name"],
        model["kind"],
        ", ".join(model["data"]),
        "twelve" if model["leads"] == list(STANDARD_LEADS) else ", ".join(model["leads"]),
        f"{model['seconds']:.3g} s at {model['rate']:g} Hz",
        f"{model['size'] / 1e3:,.0f} kB",
        f"{model['auc']:.3f} ({low:.3f}–{high:.3f})",
        ", ".join(model["license"]),
    ]


def card_of(row: Shipped) -> Card | ClassifierCard:
    """The card of a shipped model."""
    if row.kind == "classifier":
        return read_classifier_card(row.file)
    return read_card(row.file.with_suffix(".json"))


def first_card(card: Card | ClassifierCard) -> Card:
    """That of the encoder, or of a classifier's first member."""
    return card.encoders[0] if isinstance(card, ClassifierCard) else card


def publications_of(card: Card) -> list[Publication]:
    """The published datasets that have shaped the weights."""
    names = dict.fromkeys(one.dataset for one in card.trained_on)
    return [PUBLICATIONS[name] for name in names if name in PUBLICATIONS]


def model_card(name: str, model: Checkpoint | Classifier, *, call: str | None = None) -> str:
    """The page of a model in Markdown, from the template `model_card.md.j2`.

    Args:
        name: Of the model, the title of the page. Where it is the shipped model of that name, the
            page says how that was made.
        model: An encoder or a classifier.
        call: A block of code on how it is used, in place of the package's own commands.
    """
    import jinja2

    from clocs.models.classifier import first_encoder
    from clocs.training.checkpoint import STORED_AS

    checkpoint, row = first_encoder(model), SHIPPED.get(name)
    card, own = checkpoint.card, model.card if isinstance(model.card, ClassifierCard) else None
    given: dict[str, Any] = {}
    if own is not None:
        weights = {"class_weights": own.training.get("class_weights")}
        given = own.training.get("settings", {}) | weights
    published = [
        f"[{one.title}]({one.page}), version {one.version}; license: "
        f"{one.license or 'the publisher names no license'}. Please cite: {one.citation}"
        for one in publications_of(card)
    ]
    others = [
        f"{one.dataset}, split seed {one.split_seed}."
        for one in card.trained_on
        if one.dataset not in PUBLICATIONS
    ]
    shared = shipped_as(card.weights_sha256)
    row = row if row is not None and card_of(row) == model.card else None
    template = jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined).from_string(
        Path(__file__).with_suffix(".md.j2").read_text(encoding="utf-8")
    )
    text = template.render(
        name=name,
        own=own,
        first=card,
        row=row,
        call=call,
        classes="; ".join(
            label if label == meaning else f"{label} ({meaning})"
            for label, meaning in (own.meanings if own else {}).items()
        ),
        settings=[f"{k.replace('_', ' ')} {value}" for k, value in given.items() if value],
        shared=own is not None and shared,
        training=_training(card),
        fault=SHIPPED[shared].fault if shared else "",
        weights=sum(tensor.numel() for tensor in checkpoint.weights.values()),
        stored_as=card.environment.get(STORED_AS, "float32"),
        fingerprint=checkpoint.fingerprint if own is None else "",
        data=list(dict.fromkeys([*published, *others])),
    )
    return text + "\n"


def _training(card: Card) -> list[str]:
    """The settings of an encoder's training that have no row of their own, in words."""
    known = ("epochs", "patience", "batch_size", "lr", "optimizer", "optimiser", "views")
    made = [
        f"{name.replace('_', ' ')} {value}"
        for name, value in card.training.items()
        if value and name not in known
    ]
    copies = dict.fromkeys(one for one in card.training.get("views", {}).get("copies", ()) if one)
    return [*made, *(f"perturbed by {one}" for one in copies)]


def export_facts(
    model: Checkpoint | Classifier, name: str | None = None, level: str = "recording"
) -> dict[str, Any]:
    """What a receiver of an exported model must know, in words that need no other document.

    Args:
        model: An encoder or a classifier.
        name: Of the model; by default that in its card or, of an encoder, method and data.
        level: Of an encoder's vectors, 'recording' or 'frame'.
    """
    own = model.card if isinstance(model.card, ClassifierCard) else None
    card = first_card(model.card)
    at_once = card.encoder.get("leads")
    each = "in the order of `leads`" if at_once else "any number of them, each seen by itself"
    dim, view = card.encoder["embedding_dim"], "frame" if at_once else "frame of a lead"
    output = (
        f"{EMBEDDING}: float32 (batch, {dim}), of length 1; nan where a recording has no signal"
    )
    if level == "frame":
        output = f"{EMBEDDING}: float32 (batch, views, {dim}), one per {view}; nan without a signal"
    facts: dict[str, Any] = {"maxima": list(card.maxima)} if level == "frame" else {}
    if own is not None:
        sums = "each class by itself" if own.multilabel else "they add up to 1"
        output = (
            f"{PROBABILITIES}: float32 (batch, classes), calibrated, in the order of `labels`, "
            f"{sums}; nan where a recording has no signal"
        )
        names = ("labels", "meanings", "multilabel", "thresholds", "limits", "intended_use")
        facts = {name: getattr(own, name) for name in names}
        facts |= {"labels": list(own.labels), "thresholds": list(own.thresholds)}
    data = publications_of(card)
    licenses = [f"{one.title}: {one.license or 'the publisher names none'}" for one in data]
    own_name = own.name if own else "-".join([card.method, *(o.dataset for o in card.trained_on)])
    return {
        "name": name or own_name,
        "clocs": __version__,
        "kind": "encoder" if own is None else "classifier",
        "input": f"{INPUT}: float32 (batch, leads, samples), in mV at `rate` Hz; leads {each}, nan "
        "in a lead that is missing; at least `frame_samples` samples; what is left after the last "
        "whole frame is not used",
        "output": output,
        "rate": card.frame.rate,
        "frame_seconds": card.frame.seconds,
        "frame_samples": card.encoder["samples"],
        "leads": list(at_once or card.leads),
        "leads_at_once": bool(at_once),
        "unit": "mV",
        "filters": str(card.frame.filters),
        "normalization": f"{card.normalization}; done inside",
        **facts,
        "trained_on": [one.dataset for one in card.trained_on],
        "notice": card.notice,
        "license": (own and own.license) or "; ".join(licenses),
        "citation": (own and own.citation) or "; ".join(one.citation for one in data),
    }

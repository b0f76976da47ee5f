"""Model cards: what a person must know before using a model, in Markdown; and the list of them.

One function for all of them: `clocs models NAME` prints it, the pages in `docs/models` are its
output, and an exported model carries it. `clocs models` lists the shipped ones, from their cards
alone: without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clocs.datasets.download import PUBLICATIONS, Publication
from clocs.models.classifier_card import ClassifierCard, read_classifier_card, shipped_as
from clocs.recording import STANDARD_LEADS
from clocs.training.card import SHIPPED, Card, Shipped, read_card

if TYPE_CHECKING:
    from clocs.models.classifier import Classifier
    from clocs.training.checkpoint import Checkpoint

HEADS = ("name", "kind", "learned on", "leads", "frame", "size", "AUC", "license of the data")
_SPLIT = (
    "Patients are split by a hash of their IDs into 60 % training, 20 % validation and 20 % test."
)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


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


def models_table(models: Sequence[Mapping[str, Any]]) -> str:
    """The list in Markdown, for the documentation."""
    rows = [[f"[{one['name']}](models/{one['name']}.md)", *cells_of(one)[1:]] for one in models]
    return table(HEADS, rows)


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


def model_card(
    name: str,
    model: Checkpoint | Classifier,
    *,
    scores: str | None = None,
    call: str | None = None,
) -> str:
    """The page of a model in Markdown.

    Args:
        name: Of the model, the title of the page. Where it is the shipped model of that name, the
            page says how that was made.
        model: An encoder or a classifier.
        scores: The section of scores, in place of what the model or the package says of them.
        call: A block of code on how it is used, in place of the package's own commands.
    """
    own, card = model.card, first_card(model.card)
    row = SHIPPED.get(name)
    row = row if row is not None and card_of(row) == own else None  # not another of that name
    classifier = own if isinstance(own, ClassifierCard) else None
    if scores is None:
        scores = _classifier_scores(classifier, row) if classifier else _scores(row, card)
    sections = [
        f"# {name}",
        _summary(own),
        table(["", ""], [*_classes(classifier), *_facts(model)]),
        _use(classifier, call or _call(name, classifier, shipped=row is not None)),
        scores,
        _data(card),
        _made(row),
        _limits(card),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _summary(own: Card | ClassifierCard) -> str:
    card = first_card(own)
    leads = card.encoder.get("leads")
    sees = (
        f"sees up to {len(leads)} leads at once, any of which may be missing,"
        if leads
        else "sees one lead at a time"
    )
    if isinstance(own, ClassifierCard):
        classes = "; ".join(
            label if label == meaning else f"{label} ({meaning[:1].lower()}{meaning[1:]})"
            for label, meaning in own.meanings.items()
        )
        return (
            f"A classifier of ECGs that {sees} and turns frames of {card.frame.seconds:.3g} s into "
            f"calibrated probabilities of {classes}."
        )
    learned = f"It was learned {'with' if card.method == 'supervised' else 'without'} labels."
    if card.dataset is None or card.method == "random-bn":
        learned = "It is untrained."
    return (
        f"An encoder of ECGs that {sees} and turns {card.frame.seconds:.3g} s into a vector of "
        f"{card.encoder['embedding_dim']} numbers. {learned}"
    )


def _classes(card: ClassifierCard | None) -> list[list[str]]:
    if card is None:
        return []
    learned = "linear layer on the frozen encoder" if card.protocol == "linear" else "whole network"
    thresholds = [
        f"{label} {'none' if limit is None else f'{limit:.3f}'}"
        for label, limit in zip(card.labels, card.thresholds, strict=True)
    ]
    given = card.training.get("settings", {}) | {
        "class_weights": card.training.get("class_weights")
    }
    settings = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in given.items() if value
    )
    limits = ", ".join(f"{name} {value:.3g}" for name, value in card.limits.items())
    return [
        ["classes", ", ".join(card.labels)],
        ["classes of one recording", "several" if card.multilabel else "one"],
        ["learned with labels", learned],
        *([["settings", settings]] if settings else []),
        ["members", str(len(card.encoders))],
        ["temperature", ", ".join(f"{one:.3f}" for one in dict.fromkeys(card.temperature))],
        ["thresholds", ", ".join(thresholds)],
        *([["abstains beyond", limits]] if limits else []),
    ]


def _facts(model: Checkpoint | Classifier) -> list[list[str]]:
    from clocs.models.classifier import first_encoder
    from clocs.training.checkpoint import STORED_AS

    checkpoint, classifier = first_encoder(model), isinstance(model.card, ClassifierCard)
    card, training = checkpoint.card, checkpoint.card.training
    weights = sum(tensor.numel() for tensor in checkpoint.weights.values())
    shared = classifier and shipped_as(card.weights_sha256)
    optimizer = training.get("optimizer", "adam")
    facts = [
        ["pre-trained by" if classifier else "method", f"`{card.method}`"],
        *([["encoder", f"`{shared}`, in the package"]] if shared else []),
        ["network", f"`{card.encoder['name']}`, {weights:,} weights"],
        ["leads", ", ".join(card.encoder.get("leads") or card.leads)],
        ["frame", f"{card.frame.seconds:.3g} s at {card.frame.rate:g} Hz"],
        ["input", card.normalization],
    ]
    if not classifier:
        facts += [
            ["seed", str(card.seed)],
            ["epochs", f"{card.metrics['epochs']:,}"],
            ["optimizer", f"{optimizer}, learning rate {training.get('lr'):g}"],
            ["batch", f"{training.get('batch_size')} instances"],
        ]
    facts += [
        ["weights stored as", str(card.environment.get(STORED_AS, "float32"))],
        ["version of clocs", card.clocs],
    ]
    if not classifier:
        facts.append(["sha256 of the weights", f"`{checkpoint.fingerprint}`"])
    return facts


def _call(name: str, classifier: ClassifierCard | None, *, shipped: bool) -> str:
    """How it is used by this package."""
    given = name if shipped else f"{name}.safetensors"
    verb = "predict" if classifier else "embed"
    return f"""```sh
clocs {verb} {given} my.edf
```

```python
import clocs

model = clocs.load("{given}")
found = clocs.{verb}(model, "my.edf")
```

A file may have any rate and any further leads: those of the model are taken by \
their names, resampled, cut and normalized."""


def _use(classifier: ClassifierCard | None, call: str) -> str:
    words = (
        "It is meant for research: as a start for classifiers of one's own recordings, for search "
        "among them, and as a baseline. It is no medical device and must not be used for decisions "
        "about patients."
    )
    return "\n\n".join(["## Use", call, classifier.intended_use if classifier else words])


def _scores(row: Shipped | None, card: Card) -> str:
    if row is None or not row.scores:
        return ""
    each = "recording" if card.encoder.get("leads") else "frame and lead"
    lines = [
        [
            one.dataset,
            f"{one.auc:.3f} ({one.low:.3f}–{one.high:.3f})",
            f"`{one.command(row.name)}`",
        ]
        for one in row.scores
    ]
    intro = (
        f"Macro AUROC per {each} on test patients, with 95 % intervals: a linear layer on "
        f"the frozen encoder, learned from all training patients of the dataset. {_SPLIT}"
    )
    return "\n\n".join(["## Scores", intro, table(["dataset", "AUC", "command"], lines)])


def _classifier_scores(card: ClassifierCard, row: Shipped | None) -> str:
    """Those of its card, as far as it has them."""
    scores = card.scores
    if not isinstance(scores.get("auc"), int | float):
        return ""
    trained_on = first_card(card).trained_on
    by_folds = bool(trained_on) and trained_on[-1].folds is not None
    split = "Patients are split by the official folds of the dataset." if by_folds else _SPLIT
    words = f"Macro AUROC on the test patients of {card.dataset}: {scores['auc']:.3f}"
    if interval := scores.get("ci95"):
        words += " (95 % interval {:.3f} to {:.3f})".format(*interval)
    sections = ["## Scores", f"{words}. Each recording is one prediction. {split}"]
    if row is not None:
        again = f"clocs evaluate {row.name} stores/{card.dataset}"
        sections.append(f"`{again}` prints these scores and more, with the confusion matrix.")
    kinds = {"auc": "AUC", "ap": "average precision", "f1": "F1"}
    kinds |= {"sensitivity": "sensitivity", "specificity": "specificity"}
    if each := scores.get("per_class", {}):
        lines = [
            [label, *(_number(own.get(kind)) for kind in kinds), f"{own.get('recordings', 0):,}"]
            for label, own in each.items()
        ]
        sections.append(table(["class", *kinds.values(), "recordings"], lines))
    if groups := {**scores.get("by_sex", {}), **scores.get("by_age", {})}:
        lines = [
            [name, _number(own.get("auc")), f"{own.get('patients', 0):,}"]
            for name, own in groups.items()
        ]
        sections.append(table(["group", "AUC", "patients"], lines))
    if measured := scores.get("calibration", {}):
        lines = [
            [when, *(_number(measured[when].get(kind)) for kind in ("ece", "brier", "nll"))]
            for when in ("before", "after")
        ]
        heads = ["calibration", "expected calibration error", "Brier score", "log loss"]
        sections.append(table(heads, lines))
    return "\n\n".join(sections)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _data(card: Card) -> str:
    if not card.trained_on:
        return ""
    lines = [
        f"- [{one.title}]({one.page}), version {one.version}; license: "
        f"{one.license or 'the publisher names no license'}. Please cite: {one.citation}"
        for one in publications_of(card)
    ]
    lines += [
        f"- {one.dataset}, split seed {one.split_seed}."
        for one in card.trained_on
        if one.dataset not in PUBLICATIONS
    ]
    intro = (
        "Training and validation patients of these datasets have shaped the weights; "
        "`clocs evaluate` refuses to test on them."
    )
    return "\n\n".join(["## Training data", intro, "\n".join(dict.fromkeys(lines))])


def _made(row: Shipped | None) -> str:
    if row is None:
        return ""
    commands = "\n".join(["```sh", *row.commands, "```"])
    return "\n\n".join(["## How it was made", commands, row.chosen])


def _limits(card: Card) -> str:
    lines = [
        "- It has seen patients of few hospitals; other devices, ages and diseases may look unlike "
        "what it knows.",
        "- Frames at another rate must be resampled, which `clocs` does; frames of another length "
        "are other input, and embeddings of two lengths cannot be compared.",
        f"- {card.notice}",
    ]
    return "\n\n".join(["## Limits", "\n".join(lines)])

"""Model cards: what a person must know before using a model, in Markdown.

One function for all of them: `clocs models NAME` prints it, the pages in `docs/models` are its
output, and an exported model carries it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clocs.datasets.download import PUBLICATIONS, Publication
from clocs.models.classifier import Classifier, first_encoder, load, shipped_as
from clocs.models.classifier_card import ClassifierCard
from clocs.training.card import Card
from clocs.training.checkpoint import STORED_AS, Checkpoint
from clocs.training.shipped import SHIPPED, Shipped

_SPLIT = (
    "Patients are split by a hash of their IDs into 60 % training, 20 % validation and 20 % test."
)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


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
    row = _row_of(name, model)
    card = first_card(model)
    classifier = model if isinstance(model, Classifier) else None
    if scores is None:
        scores = _classifier_scores(classifier, row) if classifier else _scores(row, card)
    sections = [
        f"# {name}",
        _summary(model),
        table(["", ""], [*_classes(classifier), *_facts(model)]),
        _use(model, call or _call(name, model, shipped=row is not None)),
        scores,
        _data(card),
        _made(row),
        _limits(card),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def first_card(model: Checkpoint | Classifier) -> Card:
    """Of the encoder, or of a classifier's first member."""
    return first_encoder(model).card


def publications_of(card: Card) -> list[Publication]:
    """The published datasets that have shaped the weights."""
    names = dict.fromkeys(one.dataset for one in card.trained_on)
    return [PUBLICATIONS[name] for name in names if name in PUBLICATIONS]


def _row_of(name: str, model: Checkpoint | Classifier) -> Shipped | None:
    """The row of the shipped model, if this is it and not another of the same name."""
    row = SHIPPED.get(name)
    return row if row is not None and load(row.file).card == model.card else None


def _summary(model: Checkpoint | Classifier) -> str:
    card = first_card(model)
    leads = card.encoder.get("leads")
    sees = (
        f"sees up to {len(leads)} leads at once, any of which may be missing,"
        if leads
        else "sees one lead at a time"
    )
    if isinstance(model, Classifier):
        return (
            f"A classifier of ECGs that {sees} and turns frames of {card.frame.seconds:.3g} s into "
            f"calibrated probabilities of {_in_words(model.card)}."
        )
    return (
        f"An encoder of ECGs that {sees} and turns {card.frame.seconds:.3g} s into a vector of "
        f"{card.encoder['embedding_dim']} numbers. {_how_learned(card)}"
    )


def _in_words(card: ClassifierCard) -> str:
    """The classes with what they hold."""
    return "; ".join(
        label if label == meaning else f"{label} ({meaning[:1].lower()}{meaning[1:]})"
        for label, meaning in card.meanings.items()
    )


def _how_learned(card: Card) -> str:
    if card.dataset is None or card.method == "random-bn":
        return "It is untrained."
    return f"It was learned {'with' if card.method == 'supervised' else 'without'} labels."


def _split(card: Card) -> str:
    """How patients were split in the last training."""
    by_folds = bool(card.trained_on) and card.trained_on[-1].folds is not None
    return "Patients are split by the official folds of the dataset." if by_folds else _SPLIT


def _classes(classifier: Classifier | None) -> list[list[str]]:
    if classifier is None:
        return []
    card = classifier.card
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
    checkpoint = first_encoder(model)
    card, training = checkpoint.card, checkpoint.card.training
    weights = sum(tensor.numel() for tensor in checkpoint.weights.values())
    shared = isinstance(model, Classifier) and shipped_as(card.weights_sha256)
    trained = [
        ["seed", str(card.seed)],
        ["epochs", f"{card.metrics['epochs']:,}"],
        ["optimizer", f"{training.get('optimizer', 'adam')}, learning rate {training.get('lr'):g}"],
        ["batch", f"{training.get('batch_size')} instances"],
    ]
    facts = [
        ["method" if isinstance(model, Checkpoint) else "pre-trained by", f"`{card.method}`"],
        *([["encoder", f"`{shared}`, in the package"]] if shared else []),
        ["network", f"`{card.encoder['name']}`, {weights:,} weights"],
        ["leads", ", ".join(card.encoder.get("leads") or card.leads)],
        ["frame", f"{card.frame.seconds:.3g} s at {card.frame.rate:g} Hz"],
        ["input", card.normalization],
        *(trained if isinstance(model, Checkpoint) else []),
        ["weights stored as", str(card.environment.get(STORED_AS, "float32"))],
        ["version of clocs", card.clocs],
    ]
    if isinstance(model, Checkpoint):
        facts.append(["sha256 of the weights", f"`{model.fingerprint}`"])
    return facts


def _call(name: str, model: Checkpoint | Classifier, *, shipped: bool) -> str:
    """How it is used by this package."""
    given = name if shipped else f"{name}.safetensors"
    verb = "predict" if isinstance(model, Classifier) else "embed"
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


def _use(model: Checkpoint | Classifier, call: str) -> str:
    if isinstance(model, Classifier):
        return "\n\n".join(["## Use", call, model.card.intended_use])
    words = (
        "It is meant for research: as a start for classifiers of one's own recordings, for search "
        "among them, and as a baseline. It is no medical device and must not be used for decisions "
        "about patients."
    )
    return "\n\n".join(["## Use", call, words])


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


def _classifier_scores(classifier: Classifier, row: Shipped | None) -> str:
    """Those of its card; whatever is missing there is missing here."""
    card, scores = classifier.card, classifier.card.scores
    if not isinstance(scores.get("auc"), int | float):
        return ""
    words = f"Macro AUROC on the test patients of {card.dataset}: {scores['auc']:.3f}"
    if interval := scores.get("ci95"):
        words += " (95 % interval {:.3f} to {:.3f})".format(*interval)
    sections = [
        "## Scores",
        f"{words}. Each recording is one prediction. {_split(first_card(classifier))}",
    ]
    if row is not None:
        again = f"clocs evaluate {row.name} stores/{card.dataset}"
        sections.append(f"`{again}` prints these scores and more, with the confusion matrix.")
    kinds = {"auc": "AUC", "ap": "average precision", "f1": "F1"}
    kinds |= {"sensitivity": "sensitivity", "specificity": "specificity"}
    each = scores.get("per_class", {})
    if each:
        lines = [
            [label, *(_number(own.get(kind)) for kind in kinds), f"{own.get('recordings', 0):,}"]
            for label, own in each.items()
        ]
        sections.append(table(["class", *kinds.values(), "recordings"], lines))
    groups = {**scores.get("by_sex", {}), **scores.get("by_age", {})}
    if groups:
        lines = [
            [name, _number(own.get("auc")), f"{own.get('patients', 0):,}"]
            for name, own in groups.items()
        ]
        sections.append(table(["group", "AUC", "patients"], lines))
    measured = scores.get("calibration", {})
    if measured:
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

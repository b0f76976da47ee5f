"""The scores of a classifier in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from clocs.cli.tables import columns

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clocs.models.classifier_card import ClassifierCard


def scores_table(card: ClassifierCard, scores: dict[str, Any]) -> RenderableType:
    """All scores on test patients, for a person."""
    from rich.console import Group

    overall = Table(title=_title(card, scores), show_header=False)
    overall.add_row("AUC per recording, macro", Text(_number(scores["auc"]), "bold"))
    if scores["ci95"] is not None:
        overall.add_row("  95 % interval (patients)", "{:.3f} … {:.3f}".format(*scores["ci95"]))
    overall.add_row("average precision", _number(scores["ap"]))
    overall.add_row("F1, thresholds from validation", _number(scores["f1"]))
    overall.add_row("accuracy", _number(scores["accuracy"]))
    before, after = (scores["calibration"][when] for when in ("before", "after"))
    for name, words in (("ece", "calibration error"), ("brier", "Brier score"), ("nll", "NLL")):
        text = f"{_number(after[name])} ({_number(before[name])} before calibration)"
        overall.add_row(words, text)
    if (rest := scores["abstention"]) is not None:
        words = f"{100 * rest['coverage']:.1f} % of recordings"
        overall.add_row("within the limits", f"{words}, AUC {_number(rest.get('auc'))}")
    for groups in (scores["by_sex"], scores["by_age"]):
        for name, group in groups.items():
            words = f"AUC {_number(group['auc'])}, {group['patients']:,} patients"
            overall.add_row(f"  {name}", words)
    overall.add_row(
        "test", f"{scores['recordings']:,} recordings of {scores['patients']:,} patients"
    )
    if scores["left_out_copies"]:
        words = f"{scores['left_out_copies']:,} recordings that are copies of training recordings"
        overall.add_row("left out", words)
    return Group(overall, _per_class(card, scores), _confusion(card, scores))


def _per_class(card: ClassifierCard, scores: dict[str, Any]) -> Table:
    table = Table(
        title="Each class against the rest",
        caption="F1, sensitivity and specificity of predictions from that probability on",
    )
    names = ("class", "AUC", "AP", "F1", "sens.", "spec.", "from", "recordings")
    columns(table, names, left=("class",))
    for (label, own), threshold in zip(scores["per_class"].items(), card.thresholds, strict=True):
        kinds = ("auc", "ap", "f1", "sensitivity", "specificity")
        numbers = [_number(own[kind]) for kind in kinds]
        table.add_row(label, *numbers, _number(threshold), f"{own['recordings']:,}")
    return table


def _confusion(card: ClassifierCard, scores: dict[str, Any]) -> Table:
    counts: Sequence[Any] = scores["confusion"]
    if card.multilabel:
        table = Table(title="Recordings by what is true and what is predicted")
        names = ("class", "both", "true alone", "predicted alone", "neither")
        columns(table, names, left=("class",))
        for label, ((neither, predicted), (true, both)) in zip(card.labels, counts, strict=True):
            table.add_row(label, *(f"{n:,}" for n in (both, true, predicted, neither)))
        return table
    table = Table(title="Recordings by true class (rows) and most probable class")
    columns(table, ("", *card.labels), left=("",))
    for label, row in zip(card.labels, counts, strict=True):
        table.add_row(label, *(f"{n:,}" for n in row))
    return table


def _title(card: ClassifierCard, scores: dict[str, Any]) -> str:
    members = f", {len(card.encoders)} members" if len(card.encoders) > 1 else ""
    return f"{card.name} ({card.protocol}{members}) on {scores['dataset']}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"

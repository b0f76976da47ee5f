"""Checkpoints in the terminal: one card in full, or one row per seed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from clocs.cli.tables import columns, facts_table
from clocs.recording import Filters

if TYPE_CHECKING:
    from clocs.training.checkpoint import Checkpoint


def card_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint's card and sizes, ready for JSON."""
    return asdict(checkpoint.card) | {
        "weights": sum(tensor.numel() for tensor in checkpoint.weights.values()),
        "hashed_recordings": len(checkpoint.recordings),
    }


def card_table(card: dict[str, Any]) -> Table:
    """All facts of one checkpoint."""
    frame, trained = card["frame"], card["frame_trained"]
    encoder = card["encoder"]
    rows = {
        "trained on": card["dataset"] or "nothing",
        "leads": ", ".join(card["leads"]),
        "frame to use": f"{frame['seconds']:g} s as {frame['samples']} samples",
        "frame in training": f"{trained['seconds']:g} s as {trained['samples']} samples",
        "encoder": f"{encoder['name']}, {encoder['embedding_dim']} dimensions, "
        f"{card['weights']:,} weights",
        "filters": _filters(frame),
        "normalization": card["normalization"],
        "training": _words(card["training"]),
        "outcome": _words(card["metrics"]),
        "patient split": _split(card),
        "hashed recordings": f"{card['hashed_recordings']:,}"
        if card["recording_hashes"]
        else "left out",
        "written by": f"clocs {card['clocs']}",
        "notice": card["notice"],
    }
    return facts_table(
        f"{card['method']}, seed {card['seed']}",
        ((name, str(value)) for name, value in rows.items()),
    )


def _words(facts: dict[str, Any]) -> str:
    """Names and values as one would say them; facts within facts in parentheses."""

    def said(value: Any) -> str:
        match value:
            case bool():
                return "yes" if value else "no"
            case float():
                return f"{value:.6g}"
            case dict():
                return f"({_words(value)})"
            case list() | tuple():
                return " and ".join(said(one) or "unchanged" for one in value) or "none"
            case _:
                return "none" if value is None else str(value)

    return ", ".join(f"{name.replace('_', ' ')} {said(value)}" for name, value in facts.items())


def _filters(frame: dict[str, Any]) -> str:
    return str(Filters(**frame["filters"]) if "filters" in frame else Filters())


def _split(card: dict[str, Any]) -> str:
    """By hash, or by which folds of which dataset."""
    by_folds = [
        f"{one['dataset']}: test {', '.join(one['folds']['test'])}, validation "
        f"{', '.join(one['folds']['validation']) or 'by hash'}"
        for one in card["trained_on"]
        if one.get("folds")
    ]
    return "; ".join([f"seed {card['split_seed']}", *by_folds])


def cards_summary(cards: list[dict[str, Any]]) -> Table:
    """One row per seed of a pre-training."""
    table = Table(title=f"{cards[0]['method']} on {cards[0]['dataset'] or 'nothing'}")
    columns(table, ("seed", "status", "epochs", "best epoch", "validation loss"), left=("status",))
    for card in cards:
        metrics = card["metrics"]
        loss = metrics["validation_loss"]
        table.add_row(
            str(card["seed"]),
            metrics["status"],
            str(metrics["epochs"]),
            str(metrics["best_epoch"]),
            "–" if loss is None else f"{loss:.4f}",
        )
    return table

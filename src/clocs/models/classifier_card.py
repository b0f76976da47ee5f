"""What one must know to use a classifier, as JSON inside its file.

A card may come from a stranger: what sizes, names or switches something is compared with limits
before anything is made from it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from clocs._version import __version__
from clocs.datasets.label_names import meanings
from clocs.errors import CheckpointError
from clocs.sealed import spelled_for_files, spelled_in_code
from clocs.training.card import LONGEST_NAME, MAX_LABELS, Card, check_text, parse_card

MAX_MEMBERS = 100
LONGEST_TEXT = 10_000  # characters
INTENDED_USE = (
    "Research: reading recordings like those it was trained on. Not a medical device: no diagnosis "
    "and no treatment may rest on it."
)
PROTOCOLS = ("linear", "finetune")
LIMITS = ("quality", "distance")


@dataclass(frozen=True)
class ClassifierCard:
    """A classifier in words and numbers."""

    name: str
    dataset: str  # whose labels it learned
    content: str  # content hash of that store
    labels: tuple[str, ...]  # classes, in the order of the probabilities
    multilabel: bool  # whether a recording can have several of them
    protocol: str  # 'linear', on frozen encoders, or 'finetune'
    encoders: tuple[Card, ...]  # of each member, as it is used here
    temperature: tuple[float, ...]  # by which the logits of each class are divided
    # from which calibrated probability on a class is predicted; None where validation had none
    thresholds: tuple[float | None, ...]
    # beyond which no prediction is made: the least "quality", the greatest "distance"
    limits: dict[str, float] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)  # its settings
    scores: dict[str, Any] = field(default_factory=dict)  # on the test patients
    intended_use: str = INTENDED_USE
    license: str = ""  # of these weights, and of the data behind them
    citation: str = ""  # of the data
    clocs: str = __version__  # the version that wrote it

    @property
    def meanings(self) -> dict[str, str]:
        """What each class holds, in words: AFIB of Chapman is atrial fibrillation or flutter."""
        return meanings(self.labels, self.dataset)

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        made = spelled_for_files(asdict(self))
        made["encoders"] = [json.loads(card.json()) for card in self.encoders]
        return made

    @classmethod
    def of(cls, facts: dict[str, Any]) -> ClassifierCard:
        """The card of these facts; ValueError, KeyError or TypeError say what is wrong."""
        facts = spelled_in_code(facts)
        differing = facts.keys() ^ {one.name for one in fields(cls)}
        if differing:
            raise ValueError(f"its fields differ: {', '.join(sorted(differing)):.100}")
        _check(facts)
        made = dict(facts)
        try:
            cards = [parse_card(json.dumps(one).encode()) for one in facts["encoders"]]
        except CheckpointError as error:
            raise ValueError(f"of one of its encoders: {error}") from error
        made["encoders"] = tuple(cards)
        for name in ("labels", "temperature", "thresholds"):
            made[name] = tuple(facts[name])
        return cls(**made)


def _check(facts: dict[str, Any]) -> None:
    """Compare every field with its type and limits."""
    check_text({name: value for name, value in facts.items() if name != "encoders"})
    labels = facts["labels"]
    sound = {
        "labels": _are_texts(labels)
        and 1 <= len(labels) <= MAX_LABELS
        and len(set(labels)) == len(labels),
        "multilabel": type(facts["multilabel"]) is bool,
        "protocol": facts["protocol"] in PROTOCOLS,
        "encoders": isinstance(facts["encoders"], list)
        and 1 <= len(facts["encoders"]) <= MAX_MEMBERS,
        "temperature": _are_numbers(facts["temperature"], len(labels), least=1e-6),
        "thresholds": _are_numbers(facts["thresholds"], len(labels), most=1, maybe=True),
        "limits": isinstance(facts["limits"], dict)
        and facts["limits"].keys() <= set(LIMITS)
        and all(map(_is_number, facts["limits"].values())),
    }
    texts = {"name", "dataset", "content", "intended_use", "license", "citation", "clocs"}
    sound |= {name: _is_text(facts[name], LONGEST_TEXT) for name in texts}
    sound |= {name: isinstance(facts[name], dict) for name in ("training", "scores")}
    for name, passes in sound.items():
        if not passes:
            raise ValueError(f"`{name}` is {facts[name]!r:.100}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= 1e300  # false for NaN, too


def _are_numbers(
    value: Any, count: int, *, least: float = 0, most: float = 1e6, maybe: bool = False
) -> bool:
    return (
        isinstance(value, list)
        and len(value) == count
        and all((maybe and v is None) or (_is_number(v) and least <= v <= most) for v in value)
    )


def _is_text(value: Any, longest: int = LONGEST_NAME) -> bool:
    return isinstance(value, str) and len(value) <= longest


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))

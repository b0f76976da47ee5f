"""What one must know to use a classifier, as JSON inside its file; read without torch.

A card may come from a stranger: what sizes, names or switches something is compared with limits
before anything is made from it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from clocs._version import __version__
from clocs.datasets.label_names import meanings
from clocs.errors import CheckpointError, StoreError
from clocs.sealed import spelled_for_files, spelled_in_code
from clocs.training.card import (
    CLASSIFIER,
    LONGEST_NAME,
    MAX_ITEMS,
    SHIPPED,
    Card,
    check_text,
    named_path,
    parse_card,
    read_card,
)

MAX_MEMBERS = 100
LONGEST_TEXT = 10_000  # characters
INTENDED_USE = (
    "Research: reading recordings like those it was trained on. Not a medical device: no diagnosis "
    "and no treatment may rest on it."
)


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

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        cards = [json.loads(card.json()) for card in self.encoders]
        return spelled_for_files(asdict(self)) | {"encoders": cards}

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> ClassifierCard:
        """The card of these facts; ValueError, KeyError or TypeError say what is wrong."""
        facts = spelled_in_code(facts)
        if differing := facts.keys() ^ {one.name for one in fields(cls)}:
            raise ValueError(f"its fields differ: {', '.join(sorted(differing)):.100}")
        _check(facts)
        try:
            cards = [parse_card(json.dumps(one).encode()) for one in facts["encoders"]]
        except CheckpointError as error:
            raise ValueError(f"of one of its encoders: {error}") from error
        lists = {name: tuple(facts[name]) for name in ("labels", "temperature", "thresholds")}
        return cls(**facts | lists | {"encoders": tuple(cards)})


def is_classifier(path: Path | str) -> bool:
    """Whether the file, or the shipped model of that name, is a classifier."""
    path = named_path(path)
    return path.suffix == ".safetensors" and path.is_file() and CLASSIFIER.is_kind_of(path)


def read_classifier_card(path: Path | str) -> ClassifierCard:
    """The card of a classifier's file, or of the shipped one of that name.

    Raises:
        CheckpointError: It is no classifier, or is damaged.
    """
    path = named_path(path)
    try:
        return ClassifierCard.from_dict(CLASSIFIER.read_facts(path))
    except StoreError as error:
        raise CheckpointError(str(error)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise not_a_classifier(path, error) from error


def not_a_classifier(path: Path, why: Exception) -> CheckpointError:
    """What is said of a file that cannot be used as one."""
    return CheckpointError(f"{path} is not {CLASSIFIER.what} ({why}); {CLASSIFIER.remedy}")


@cache
def shipped_encoders() -> dict[str, str]:
    """The sha256 of the weights of each encoder inside the package, by its name."""
    rows = [row for row in SHIPPED.values() if row.kind == "encoder"]
    return {row.name: read_card(row.file.with_suffix(".json")).weights_sha256 for row in rows}


def shipped_as(weights_sha256: str) -> str | None:
    """The name of the encoder inside the package that has these weights."""
    return next((name for name, own in shipped_encoders().items() if own == weights_sha256), None)


def _check(facts: dict[str, Any]) -> None:
    """Compare every field with its type and limits."""
    check_text({name: value for name, value in facts.items() if name != "encoders"})
    labels, limits, count = facts["labels"], facts["limits"], len(facts["labels"])
    sound = {
        "labels": isinstance(labels, list)
        and all(_is_text(label, LONGEST_NAME) for label in labels)
        and 1 <= len(set(labels)) == count <= MAX_ITEMS,
        "multilabel": type(facts["multilabel"]) is bool,
        "protocol": facts["protocol"] in ("linear", "finetune"),
        "encoders": isinstance(facts["encoders"], list)
        and 1 <= len(facts["encoders"]) <= MAX_MEMBERS,
        "temperature": _are_numbers(facts["temperature"], count, 1e-6, 1e6),
        "thresholds": isinstance(facts["thresholds"], list)
        and _are_numbers([0 if v is None else v for v in facts["thresholds"]], count, 0, 1),
        "limits": isinstance(limits, dict)
        and limits.keys() <= {"quality", "distance"}
        and _are_numbers([*limits.values()], len(limits), -1e300, 1e300),
    }
    texts = ("name", "dataset", "content", "intended_use", "license", "citation", "clocs")
    sound |= {name: _is_text(facts[name], LONGEST_TEXT) for name in texts}
    sound |= {name: isinstance(facts[name], dict) for name in ("training", "scores")}
    for name, passes in sound.items():
        if not passes:
            raise ValueError(f"`{name}` is {facts[name]!r:.100}")


def _are_numbers(values: Any, count: int, least: float, most: float) -> bool:
    """Whether this is a list of so many numbers in the range; nan is in none."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(v) in (int, float) and least <= v <= most for v in values)
    )


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest

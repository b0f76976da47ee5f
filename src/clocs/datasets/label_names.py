"""What labels mean: full names, synonyms and SNOMED CT codes that link datasets.

`snomed.csv` has the codes of the PhysioNet/CinC 2021 challenge with its abbreviations, in words;
`label_names.csv` the labels of the other datasets; `scp_statements.csv` the statements of PTB-XL as
published. A label that is in none of them means what it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from clocs.files import packaged_table


@dataclass(frozen=True)
class LabelName:
    """What a label means.

    Attributes:
        label: As in the dataset, 'I-AVB'.
        name: In words, 'First-degree atrioventricular block'; the label itself where unknown.
        synonyms: Other words for the same.
        code: SNOMED CT, '' where there is none; labels with the same one mean the same.
    """

    label: str
    name: str
    synonyms: tuple[str, ...] = ()
    code: str = ""


def _synonyms(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row["synonyms"].split("; ")) if row["synonyms"] else ()


_CODES = packaged_table("clocs.datasets", "snomed.csv")
# SNOMED codes of the classes that the challenge scored, of all classes, and the label of every
# code: some are scored as one with another class.
SCORED: Final = MappingProxyType({row["label"]: row["code"] for row in _CODES if row["scored"]})
CLASSES: Final = MappingProxyType(
    {row["label"]: row["code"] for row in _CODES if not row["same_as"]}
)
LABELS: Final = MappingProxyType({row["code"]: row["same_as"] or row["label"] for row in _CODES})

# The 71 statements of PTB-XL, and the classes of each set of labels, in order.
STATEMENTS: Final = MappingProxyType(
    {row["statement"]: row for row in packaged_table("clocs.datasets", "scp_statements.csv")}
)
DIAGNOSTIC: Final = tuple(name for name, row in STATEMENTS.items() if row["superclass"])
LABEL_SETS: Final = MappingProxyType(
    {
        "superclass": ("NORM", "MI", "STTC", "CD", "HYP"),
        "subclass": tuple(dict.fromkeys(STATEMENTS[name]["subclass"] for name in DIAGNOSTIC)),
        "diagnostic": DIAGNOSTIC,
        "form": tuple(name for name, row in STATEMENTS.items() if row["form"]),
        "rhythm": tuple(name for name, row in STATEMENTS.items() if row["rhythm"]),
        "all": tuple(STATEMENTS),
    }
)


def statement_label(statement: str, label_set: str) -> str | None:
    """The label that a statement of PTB-XL gives in a set of labels; None where it gives none."""
    if label_set in ("superclass", "subclass"):
        return STATEMENTS.get(statement, {}).get(label_set) or None
    return statement if statement in LABEL_SETS[label_set] else None


def _called(label: str, same: LabelName) -> LabelName:
    synonyms = same.synonyms if label == same.label else (same.label, *same.synonyms)
    return LabelName(label, same.name, synonyms, same.code)


_SHARED: Final = {
    row["label"]: LabelName(row["label"], row["name"], _synonyms(row), row["code"])
    for row in _CODES
    if row["name"]
}


def _of_datasets() -> dict[str, dict[str, LabelName]]:
    tables: dict[str, dict[str, LabelName]] = {}
    for row in packaged_table("clocs.datasets", "label_names.csv"):
        label, name, more = row["label"], row["name"], _synonyms(row)
        made = LabelName(label, name, more)
        if row["same_as"]:
            same = _called(label, _SHARED[row["same_as"]])
            made = LabelName(label, name or same.name, (*same.synonyms, *more), same.code)
        tables.setdefault(row["dataset"], {})[label] = made
    return tables


_OWN: Final = _of_datasets()


def meanings(labels: Iterable[str], dataset: str) -> dict[str, str]:
    """Labels of a dataset in words; a label of a dataset that is not published is its own name."""
    known = dataset in _OWN or dataset == "physionet2021"
    return {label: label_name(label, dataset).name if known else label for label in labels}


def label_name(label: str, dataset: str = "") -> LabelName:
    """What a label means in a dataset; where the dataset does not say, what it usually means."""
    tables = [_OWN.get(dataset, {}), _SHARED]
    if len(label) > 1:  # single letters mean something else elsewhere
        tables += _OWN.values()
    for table in tables:
        if label in table:
            return table[label]
    name = LABELS.get(label, "")  # a code
    return _called(label, _SHARED[name]) if name in _SHARED else LabelName(label, label)

"""Labels from the recordings' own files: codes in WFDB comments, statements of other headers."""

from __future__ import annotations

from collections.abc import Mapping

from clocs.datasets.label_names import LABELS
from clocs.datasets.label_values import is_nothing, split_labels
from clocs.recording import Recording

_FIELDS = ("dx", "statements", "diagnosis", "diagnoses", "rhythm")


class Codes:
    """Names of codes: those of the user first, then SNOMED's of the PhysioNet challenges."""

    def __init__(self, given: Mapping[str, str] | None) -> None:
        self._names = {**LABELS, **(given or {})}

    def __getitem__(self, code: str) -> str:
        return self._names.get(code, code)


def header_labels(recording: Recording, codes: Codes) -> tuple[str, ...]:
    """The labels that a recording's own file gives; codes by their names, others as they are."""
    fields = {key.lower(): text for key, text in recording.extra.items()}
    text = next((fields[key] for key in _FIELDS if not is_nothing(fields.get(key, ""))), "")
    found = (codes[one] for one in split_labels(text.replace(", ", ",")))
    return tuple(dict.fromkeys(one for one in found if one))

"""Whose recording a file is: by its folder, its name, a pattern, a table or its own header."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from clocs.errors import SettingError
from clocs.formats.source import stem

_FORMS = "header, folder, folder:N, file, column:NAME or pattern:REGEX"
# What people write where they write no patient.
_NOBODY = re.compile(r"(x|0+|anonym\w*|unknown|none|null|n/?a|patient|test|-|\?)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PatientRule:
    """How the user says to tell patients apart.

    Attributes:
        from_path: From a file's path to its patient, '' where the path has none; None where the
            path does not tell.
        column: The table's column of patients, where that tells.
        from_header: Whether to take what files say.
        required: Whether every recording must have a patient by this rule.
    """

    from_path: Callable[[str], str] | None = None
    column: str | None = None
    from_header: bool = False
    required: bool = True


def patient_rule(given: str | None) -> PatientRule:
    """The rule behind the option `patient`.

    Raises:
        SettingError: There is no such rule.
    """
    if given is None:
        return PatientRule(from_header=True, required=False)
    kind, colon, value = given.partition(":")
    if given == "header":
        return PatientRule(from_header=True)
    if given == "file":
        return PatientRule(from_path=stem)
    if kind == "folder" and (not colon or re.fullmatch(r"-?[1-9]\d*", value)):
        return PatientRule(from_path=_Folder(int(value or -1)))
    if kind == "column" and value:
        return PatientRule(column=value)
    if kind == "pattern" and value:
        return PatientRule(from_path=_Pattern(value))
    raise SettingError(f"`patient` is {given!r}; give {_FORMS}")


def is_somebody(patient: str) -> bool:
    """Whether a header's patient is one, and not a word for nobody such as 'anonymous'."""
    return _NOBODY.match(patient.strip()) is None


@dataclass(frozen=True, slots=True)
class _Folder:
    """The nth folder of the path from the top, or from the file upwards where negative."""

    number: int

    def __call__(self, path: str) -> str:
        folders = path.split("/")[:-1]
        at = self.number - 1 if self.number > 0 else len(folders) + self.number
        return folders[at] if 0 <= at < len(folders) else ""


class _Pattern:
    """The one group of a regular expression, found anywhere in the path."""

    def __init__(self, text: str) -> None:
        try:
            self._expression = re.compile(text)
        except re.error as error:
            raise SettingError(
                f"`patient` has the pattern {text!r}, which is no regular expression ({error})"
            ) from None
        if self._expression.groups != 1:
            raise SettingError(
                f"`patient` has the pattern {text!r} with {self._expression.groups} groups; put "
                "parentheses around the patient, such as pattern:(P[0-9]+)_"
            )

    def __call__(self, path: str) -> str:
        match = self._expression.search(path)
        return (match[1] or "") if match else ""

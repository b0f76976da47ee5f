"""Whose recording a file is: by its folder, its name, a pattern, a table or its own header."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from clocs.errors import SettingError
from clocs.formats.source import stem

_FORMS = "header, folder, folder:N, file, column:NAME or pattern:REGEX"
# What people write where they write no patient.
_NOBODY = re.compile(r"(x|0+|anonym\w*|unknown|none|null|n/?a|patient|test|-|\?)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PatientRule:
    """How the user says to tell patients apart.

    Attributes:
        from_paths: From files' paths to their patients, '' where a path has none; None where
            paths do not tell.
        column: The table's column of patients, where that tells.
        from_header: Whether to take what files say.
        required: Whether every recording must have a patient by this rule.
    """

    from_paths: Callable[[Sequence[str]], Sequence[str]] | None = None
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
        return PatientRule(from_paths=partial(_each, stem))
    if kind == "folder" and (not colon or re.fullmatch(r"-?[1-9]\d{0,5}", value)):
        return PatientRule(from_paths=partial(_each, partial(_folder, int(value or -1))))
    if kind == "column" and value:
        return PatientRule(column=value)
    if kind == "pattern" and value:
        _found(value, [""])  # refused before files are listed
        return PatientRule(from_paths=partial(_found, value))
    raise SettingError(f"`patient` is {given!r}; give {_FORMS}")


def is_somebody(patient: str) -> bool:
    """Whether a header's patient is one, and not a word for nobody such as 'anonymous'."""
    return _NOBODY.match(patient.strip()) is None


def _each(act: Callable[[str], str], paths: Sequence[str]) -> Sequence[str]:
    return [act(path) for path in paths]


def _folder(number: int, path: str) -> str:
    """The nth folder of the path from the top, or from the file upwards where negative."""
    folders = path.split("/")[:-1]
    at = number - 1 if number > 0 else len(folders) + number
    return folders[at] if 0 <= at < len(folders) else ""


def _found(pattern: str, paths: Sequence[str]) -> Sequence[str]:
    """The one group of a regular expression, found anywhere in each path.

    The engine of polars takes linear time: no pattern runs for hours.
    """
    import polars as pl

    try:
        found = pl.Series(paths, dtype=pl.String).str.extract_groups(pattern)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        why = (str(error).strip().splitlines() or [""])[-1].removeprefix("error: ")
        raise SettingError(
            f"`patient` has the pattern {pattern!r:.200}, which is no regular expression "
            f"({why:.200}); look-around and backreferences cannot be used"
        ) from None
    groups = found.struct.fields
    if len(groups) != 1:
        raise SettingError(
            f"`patient` has the pattern {pattern!r:.200} with {len(groups)} groups; put "
            "parentheses around the patient, such as pattern:(P[0-9]+)_"
        )
    return found.struct.field(groups[0]).fill_null("").to_list()

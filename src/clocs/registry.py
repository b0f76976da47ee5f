"""Rows declared by the modules of a package, collected into one table.

A method, an encoder, a dataset or an evaluation protocol is one module that declares its row:
putting the file into the folder is all it takes to add one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, TypeVar

from clocs.errors import SettingError


class Named(Protocol):
    @property
    def name(self) -> str: ...


Row = TypeVar("Row", bound=Named)


def rows_in(package: str, kind: type[Row]) -> dict[str, Row]:
    """All rows of a kind that the modules of a package declare at top level, by name.

    Modules are read in alphabetical order, rows in the order of declaration; a row imported from
    another module counts once.
    """
    found: dict[str, Row] = {}
    for module in sorted(info.name for info in iter_modules(import_module(package).__path__)):
        for value in vars(import_module(f"{package}.{module}")).values():
            if isinstance(value, kind) and found.setdefault(value.name, value) is not value:
                raise ValueError(f"two rows of {package} are called {value.name!r}")
    return found


@dataclass(frozen=True)
class Number:
    """A number that belongs to one row, such as the count of neighbours of one protocol.

    Attributes:
        name: The keyword in Python; the command line makes an option of it.
        default: Its value where none is given; an int where only whole numbers make sense.
        help: What it is, as a phrase.
        minimum: The least value allowed; None where any is.
    """

    name: str
    default: float
    help: str
    minimum: float | None = None


def complete_numbers(
    row: str, numbers: Sequence[Number], given: Mapping[str, float]
) -> dict[str, float]:
    """All numbers of a row: those given, and the defaults of the others.

    Args:
        row: Its name, for messages.
        numbers: That the row declares.
        given: By name.

    Raises:
        SettingError: A number that the row does not have, or a value that it cannot have.
    """
    known = {number.name: number for number in numbers}
    for name, value in given.items():
        if name not in known:
            names = ", ".join(f"`{known_name}`" for known_name in known) or "none of its own"
            raise SettingError(f"{row} has no setting `{name}`; it has {names}")
        number = known[name]
        whole = isinstance(number.default, int)
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            kind = "whole number" if whole else "number"
            raise SettingError(f"`{name}` of {row} should be a {kind}, not {value!r}")
        if number.minimum is not None and not value >= number.minimum:
            raise SettingError(f"`{name}` of {row} is {value}; give at least {number.minimum:g}")
    return {number.name: given.get(number.name, number.default) for number in numbers}

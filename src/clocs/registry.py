"""Rows declared by the modules of a package, collected into one table, and their options.

A method, an encoder, a dataset or an evaluation protocol is one module that declares its row:
putting the file into the folder is all it takes to add one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, TypeVar

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
class Option:
    """Something users choose for one row: a keyword in Python, an option on the command line.

    Attributes:
        name: The keyword.
        default: Its value where none is given; where that is None, None is valid.
        help: What it is, as a phrase.
        kind: int, float, str, tuple (names, also as text with commas) or dict (pairs of names, also
            as text such as 'a=b,c=d'); by default the default's, str where that is None.
        minimum: The least valid number.
        above: Valid numbers are greater than this.
        maximum: The greatest valid number.
        choices: All valid strings; empty where any is valid.
    """

    name: str
    default: Any
    help: str
    kind: type | None = None
    minimum: float = -math.inf
    above: float = -math.inf
    maximum: float = math.inf
    choices: tuple[str, ...] = ()

    @property
    def value_type(self) -> type:
        return self.kind or (str if self.default is None else type(self.default))

    def checked(self, value: Any) -> Any:
        """The value as its type, or a sentence that says what is valid."""
        if value is None and self.default is None:
            return None
        if self.value_type is tuple:
            return tuple(map(str.strip, value.split(",") if isinstance(value, str) else value))
        if self.value_type is dict:
            return self._pairs(value)
        huge = type(value) is int and abs(value) >= 1 << 63  # more than a float may hold
        if self.value_type is float and type(value) is int and not huge:
            value = float(value)
        valid = type(value) is self.value_type and not huge
        valid = valid and (not self.choices or value in self.choices)
        if valid and self.value_type in (int, float):
            limits = self.above < value and self.minimum <= value <= self.maximum
            valid = limits and math.isfinite(value)
        if not valid:
            raise SettingError(f"`{self.name}` must be {self._valid()}, not {value!r:.100}")
        return value

    def _pairs(self, value: Any) -> dict[str, str]:
        if isinstance(value, str):
            parts = (part.partition("=") for part in value.split(",") if part.strip())
            value = {name.strip(): given.strip() for name, _, given in parts}
        pairs = dict(value) if isinstance(value, Mapping) else {"": ""}
        if not all(isinstance(word, str) and word for pair in pairs.items() for word in pair):
            raise SettingError(f"`{self.name}` must be pairs such as 'a=b,c=d', not {value!r:.80}")
        return pairs

    def _valid(self) -> str:
        bounds = {"above": self.above, "at least": self.minimum, "at most": self.maximum}
        limits = [f"{word} {x:g}" for word, x in bounds.items() if math.isfinite(x)]
        kinds = {int: "a whole number", float: "a number"}
        kind = " or ".join(self.choices) or kinds.get(self.value_type, "text")
        return f"{kind} {' and '.join(limits)}".strip()


class Configurable(Named, Protocol):
    @property
    def options(self) -> Sequence[Option]: ...


def chosen_options(row: Configurable, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a row by name: those given, checked, and the defaults of the others."""
    known = {option.name: option for option in row.options}
    unknown = ", ".join(f"`{name}`" for name in given if name not in known)
    if unknown:
        names = ", ".join(f"`{name}`" for name in known) or "no options of its own"
        raise SettingError(f"{row.name} does not take {unknown}; it has {names}")
    return {
        name: o.checked(given[name]) if name in given else o.default for name, o in known.items()
    }

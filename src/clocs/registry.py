"""Rows declared by the modules of a package, collected into one table.

A method, an encoder, a dataset or an evaluation protocol is one module that declares its row:
putting the file into the folder is all it takes to add one.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, TypeVar


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

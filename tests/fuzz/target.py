"""Target: one kind of file that clocs reads, its samples, and how to judge what reading gave."""

from __future__ import annotations

import hashlib
import shutil
import struct
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from clocs.errors import ClocsError, ClocsWarning
from fuzz.mutations import Files

Outcome = Literal["error", "returned", "escape", "silent change"]
FAILURES: tuple[Outcome, ...] = ("escape", "silent change")


@dataclass
class Given:
    """What a target reads: files in memory and, on demand, in a folder."""

    files: Files
    scratch: Path

    def folder(self) -> Path:
        """The files, freshly written; whatever a reader left there before is gone."""
        if self.scratch.exists():
            shutil.rmtree(self.scratch)
        for name, data in self.files.items():
            path = self.scratch / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return self.scratch

    def one(self, suffix: str | tuple[str, ...]) -> str:
        """The first file with one of these endings."""
        return next((name for name in self.files if name.lower().endswith(suffix)), "missing")


@dataclass(frozen=True)
class Target:
    """What is read.

    Attributes:
        name: On the command line and in the table.
        samples: Makes valid samples.
        read: Reads one, damaged or not; its result is compared where `checked`.
        checked: Whether the format has a checksum: a damaged file that is read without an error
            must then give what the undamaged one gave.
        seal: Makes the checksums of damaged files fit again, as a hostile sender would.
        limited: Whether the product reads it in a process with limits of its own, whose lack of
            memory is an error about the file.
    """

    name: str
    samples: Callable[[], list[Files]]
    read: Callable[[Given], Any]
    checked: bool = False
    seal: Callable[[Files], Files] | None = None
    limited: bool = False


@dataclass(frozen=True)
class Judgment:
    """The outcome of one input; what was raised, and the digest of what was returned."""

    outcome: Outcome
    error: BaseException | None = None
    value: str = ""


class SilentChangeError(Exception):
    """A damaged file was read without an error, but not as it was."""


def judge(target: Target, given: Given, expected: str | None) -> Judgment:
    """Read once. `expected` is the digest of the undamaged sample; None where any value is fine."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            result = target.read(given)
            value = digest_of(result) if target.checked else ""
        except ClocsError as error:
            if "\n" in str(error):
                return Judgment("escape", error)
            return Judgment("error", error)
        except MemoryError as error:
            return Judgment("error" if target.limited else "escape", error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of polars is no Exception
            return Judgment("escape", error)
    if expected in (None, value):
        return Judgment("returned", value=value)
    if any(issubclass(one.category, ClocsWarning) for one in heard):
        return Judgment("error")  # not silent: a warning says that something else was taken
    return Judgment("silent change", SilentChangeError("another value than before"), value)


def digest_of(value: Any) -> str:
    """A digest that tells any two results of the readers apart."""
    total = hashlib.blake2b(digest_size=16)
    _add(total, value)
    return total.hexdigest()


def _add(total: Any, value: Any) -> None:
    if hasattr(value, "numpy") and hasattr(value, "requires_grad"):
        value = value.detach().numpy()
    total.update(type(value).__name__.encode())
    if isinstance(value, np.ndarray):
        total.update(f"{value.dtype}{value.shape}".encode())
        total.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, pl.DataFrame):
        _add(total, {"schema": str(value.schema), "rows": value.rows()})
    elif is_dataclass(value):
        _add(total, {field.name: getattr(value, field.name) for field in fields(value)})
    elif isinstance(value, Mapping):
        total.update(str(len(value)).encode())
        for key in sorted(value, key=str):  # their order in a file means nothing
            _add(total, key)
            _add(total, value[key])
    elif isinstance(value, list | tuple):
        total.update(str(len(value)).encode())
        for one in value:
            _add(total, one)
    elif isinstance(value, float):
        total.update(struct.pack("<d", value))
    elif value is None or isinstance(value, str | int | np.generic):
        total.update(repr(value).encode(errors="backslashreplace"))
    else:
        raise TypeError(f"{type(value)} has no digest")

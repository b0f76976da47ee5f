"""The errors that clocs raises on purpose.

Every message says in one sentence what was given, what was expected and what to do; the command
line prints it without a traceback.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Self, TypeVar

T = TypeVar("T")

# Control characters but the line break, separators of lines, marks that reverse text.
STEERING = re.compile("(?!\n)[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str, *, lines: bool = False) -> str:
    r"""Text that cannot control the terminal it is printed on.

    Control characters become `\x1b`, bytes of file names that are no UTF-8 `\xe9`.

    Args:
        text: Anything, such as a file's name or a label.
        lines: Whether line breaks are meant.
    """
    if text.isprintable():
        return text
    try:
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    text = STEERING.sub(_escaped, text)
    return text if lines else text.replace("\n", "\\n")


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def first_of(names: Sequence[str], most: int, mark: str = ", ", noun: str = "") -> str:
    """At most so many names for a message, and how many more (of what) there are."""
    more = len(names) - most
    return mark.join(names[:most]) + (f" and {more:,} more {noun}".rstrip() if more > 0 else "")


def distinct(names: Sequence[str]) -> list[str]:
    """The same names, repeated ones numbered from the second on."""
    return [
        f"{name} #{n}" if (n := 1 + list(names[:place]).count(name)) > 1 else name
        for place, name in enumerate(names)
    ]


def suggestion(given: str, known: Iterable[str], otherwise: str = "choose one of") -> str:
    """What a message ends with: the name that was most likely meant, else all that there are."""
    names = list(known)
    lower = {name.lower(): name for name in names}
    if close := get_close_matches(str(given).lower(), lower, n=1):
        return f"did you mean {lower[close[0]]}?"
    return f"{otherwise} {', '.join(names) or 'none'}"


def find_row(rows: Mapping[str, T], name: str, kind: str) -> T:
    """The row of that name; SettingError names what was most likely meant."""
    if name not in rows:
        raise SettingError(f"there is no {kind} {name!r}; {suggestion(name, rows)}")
    return rows[name]


def with_extra(name: str) -> str:
    """How to install what an extra of this package adds; clocs itself is on no index."""
    return f"run pip install '.[{name}]' in the folder of clocs"


class ClocsError(Exception):
    """Base of everything that clocs raises on purpose."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))


class ClocsWarning(UserWarning):
    """Something worth knowing that stopped nothing."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))


def warn(sentence: str) -> None:
    """Warn with a `ClocsWarning`, at the line outside of this package that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith("clocs."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, ClocsWarning, stacklevel=level)


class SourceError(ClocsError):
    """A source is not what it claims to be, or cannot be read at all."""


class FileError(ClocsError):
    """A file cannot be read or written: the disk is full, or permission is missing."""


class UnusableError(ClocsError):
    """One recording cannot be used; it goes to quarantine with its reason.

    Attributes:
        reason: One of `REASONS`, for counting.
        detail: What exactly was found, for a person.
    """

    REASONS = (
        *("truncated", "unreadable", "nan", "no rate", "implausible", "exceeds limits", "flat"),
        *("no known lead", "too short", "no label", "unknown label", "duplicate id"),
    )

    def __init__(self, reason: str, detail: str) -> None:
        if reason not in self.REASONS:
            raise ValueError(f"{reason!r} is not one of {self.REASONS}")
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = printable(detail)

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (self.reason, self.detail)  # on its way between processes


class UnknownUnitError(UnusableError):
    """A file does not give its unit, and the size of its numbers does not tell it."""


class UnknownRateError(UnusableError):
    """A file does not give its sampling rate: a question to its owner, never a guess."""

    @classmethod
    def for_recording(cls, name: str, what: str = "does not say its sampling rate") -> Self:
        """With what to do about it, for the recording of this name."""
        return cls("no rate", f"{name} {what}; give it in Hz as `rate`, such as `rate=500`")


class StoreError(ClocsError):
    """A store is missing, incomplete, damaged or of another version."""


class CheckpointError(ClocsError):
    """A checkpoint is missing, damaged, or does not fit what it is used for."""


class BusyError(ClocsError):
    """Another process is writing the same folder."""


class LeakError(ClocsError):
    """Patients on whom an encoder was trained are among those it would be tested on."""


class SettingError(ClocsError):
    """A setting given by the user is not valid here."""


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Say what needs a package, and which extra adds it, where an import inside the `with` fails.

    Args:
        what: The beginning of the sentence, such as 'search needs faiss'.
        extra: The extra of this package.
    """
    try:
        yield
    except ImportError as error:
        raise SettingError(f"{what}; {with_extra(extra)}") from error


class TrainingError(ClocsError):
    """A training diverged."""


class LostProcessError(ClocsError):
    """Another process of a training on many GPUs has ended."""

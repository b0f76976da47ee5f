"""Recordings by the names that people write into tables: paths, file names, IDs without zeros."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from clocs.datasets.base import Entry

_AMBIGUOUS = ""


class Names(Protocol):
    """Something that knows which recordings a text names."""

    def find(self, text: str) -> Sequence[int]:
        """Numbers of the recordings that a text names, none where it names none or is unclear."""
        ...


class PatientNames:
    """The recordings of the patient that a text names."""

    def __init__(self, patients: Iterable[str]) -> None:
        self._numbers: dict[str, list[int]] = {}
        for number, patient in enumerate(patients):
            if patient:
                self._numbers.setdefault(patient.strip().casefold(), []).append(number)

    def find(self, text: str) -> Sequence[int]:
        """See `Names`."""
        return self._numbers.get(text.strip().casefold(), ())


class RecordingNames:
    """Which recordings a text names, whatever its folder, suffix, case or leading zeros.

    A text that fits files of several names is none of them. Recordings of one file are found
    together by the file's name, and one by one by their own.
    """

    def __init__(self, entries: Iterable[Entry], suffixes: tuple[str, ...]) -> None:
        self._suffixes = suffixes
        self._files: dict[str, list[int]] = {}
        self._names: dict[str, str] = {}  # -> the file's path, or one of its recordings
        self._numbers: dict[str, str] = {}
        self._single: dict[str, int] = {}
        for number, entry in enumerate(entries):
            own = self._files.setdefault(entry.path, [])
            own.append(number)
            part = entry.info.get("part", "")
            if part:
                self._add(self._names, f"{entry.path}#{part}", f"{entry.path}#{part}")
                self._single[f"{entry.path}#{part}"] = number
                for name in (entry.id, part):
                    self._add(self._names, name.casefold(), f"{entry.path}#{part}")
            if len(own) > 1:
                continue
            for name in self._tails(entry.path):
                self._add(self._names, name, entry.path)
            short = self._bare(entry.path.rpartition("/")[2].casefold())
            if short.isdigit():
                self._add(self._numbers, short.lstrip("0"), entry.path)

    def find(self, text: str) -> list[int]:
        """Numbers of the entries that a text names, none where it names none or is unclear."""
        for tail in self._tails(text.strip().replace("\\", "/")):
            if found := self._names.get(tail):
                return self._numbered(found)
        if found := self._numbers.get(text.strip().lstrip("0")):
            return self._numbered(found)
        return []

    def _numbered(self, found: str) -> list[int]:
        return [self._single[found]] if found in self._single else self._files[found]

    def _tails(self, path: str) -> Iterator[str]:
        """The path, then ever less of its folders, each with and without its suffix."""
        tail = path.casefold().removeprefix("./").strip("/")
        while tail:
            yield tail
            bare = self._bare(tail)
            if bare != tail:
                yield bare
            tail = tail.partition("/")[2]

    def _bare(self, name: str) -> str:
        if not name.endswith(self._suffixes):
            return name
        return name.removesuffix(next(one for one in self._suffixes if name.endswith(one)))

    @staticmethod
    def _add(names: dict[str, str], name: str, target: str) -> None:
        if names.setdefault(name, target) != target:
            names[name] = _AMBIGUOUS

"""Saved cohorts: groups of patients as files in a folder, one CSV table of IDs each.

The folder is beside the stores, for who has these may know the IDs; what leaves the server is
pseudonyms. `clocs embed --cohort` and others take the files as they are.
"""

from __future__ import annotations

import os
import re
import secrets
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clocs.errors import ClocsError, SettingError
from clocs.files import private_folder, write_atomic, writing
from clocs.patients.cohort import Cohort, cohort_text, read_cohort

LONGEST_NAME = 60
MAX = 1000  # cohorts in a folder
_NAME = re.compile(r"\w([\w .,()+=-]*[\w)+])?")


class UnknownCohortError(ClocsError):
    """There is no such cohort."""


class NameTakenError(ClocsError):
    """A cohort has this name already."""


@dataclass(frozen=True)
class CohortFolder:
    """Cohorts by name: `folder/NAME.csv`."""

    path: Path

    def files(self) -> dict[str, Path]:
        """The files by the names of their cohorts, in alphabetical order."""
        found = [one for one in self.path.glob("[!.]*.csv") if one.is_file()]
        named = {unicodedata.normalize("NFC", one.stem): one for one in found}
        return dict(sorted(named.items(), key=lambda item: item[0].casefold()))

    def read(self, name: str) -> Cohort:
        """The cohort of this name."""
        return read_cohort(self._file(name))

    def _file(self, name: str) -> Path:
        file = self.files().get(unicodedata.normalize("NFC", name))
        if file is None:
            raise UnknownCohortError(f"there is no cohort {name[:LONGEST_NAME]!r}")
        return file

    def save(self, name: str, patients: Iterable[tuple[str, str]], *, replace: bool = False) -> str:
        """Write the (dataset, ID)s of a cohort; an existing one is changed only to `replace` it.

        Returns its name: that of the one that is replaced, or as `checked_name` makes it.

        Raises:
            NameTakenError: There is a cohort of this name, or of one that differs in case alone.
        """
        name = checked_name(name)
        content = cohort_text(patients).encode()
        files = self.files()
        taken = {one.casefold(): one for one in files}.get(name.casefold())
        if taken is not None and replace:
            write_atomic(files[taken], content)
            return taken
        if taken is not None:
            raise NameTakenError(f"there is a cohort {taken!r} already; give another name")
        if len(files) >= MAX:
            raise SettingError(f"{MAX:,} cohorts are saved already; delete some of their files")
        with writing(self.path):
            private_folder(self.path)
        _write_new(self.path / f"{name}.csv", content)
        return name


def checked_name(name: str) -> str:
    """A name that is a good name of a file, too.

    Raises:
        SettingError: It is not.
    """
    name = unicodedata.normalize("NFC", " ".join(name.split()))
    if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise SettingError(
            f"a name of a cohort has up to {LONGEST_NAME} letters, digits, spaces and .,()+=-_ and "
            "begins with a letter or a digit"
        )
    return name


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that does not exist, whole or not at all, even where two do so at once."""
    draft = path.with_name(f".{secrets.token_hex(8)}.csv")
    try:
        write_atomic(draft, content)
        try:
            os.link(draft, path)
        except FileExistsError:
            raise NameTakenError(
                f"there is a cohort {path.stem!r} already; give another name"
            ) from None
        except OSError:  # a file system without hard links
            with writing(path):
                draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)

"""Saved cohorts as one session shows them: pseudonyms, and who is not in the session."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from clocs.errors import ClocsError, SettingError
from clocs.explorer.cohort_folder import CohortFolder
from clocs.explorer.session import Session
from clocs.patients.cohort import Cohort, read_cohort


def listed(session: Session) -> list[dict[str, Any]]:
    """The saved cohorts, those that cannot be read with the reason."""
    if session.cohorts is None:
        return []
    found = []
    for name, file in session.cohorts.files().items():
        facts = {"name": name, "patients": 0, "elsewhere": 0, "saved": None, "problem": None}
        try:
            facts["saved"] = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat()
            rows, facts["elsewhere"] = _rows_of(session, read_cohort(file))
            facts["patients"] = len(rows)
        except (ClocsError, OSError) as error:
            facts["problem"] = str(error) if session.show_ids else "its file cannot be read"
        found.append(facts)
    return found


def saved_cohort(session: Session, name: str) -> dict[str, Any]:
    """The pseudonyms of a saved cohort."""
    folder = _folder(session)
    try:
        rows, elsewhere = _rows_of(session, folder.read(name))
    except SettingError:  # it names the folder
        raise SettingError(f"the file of the cohort {name!r} cannot be read as one") from None
    codes = [session.codes[row] for row in rows]
    return {"name": name, "codes": codes, "elsewhere": elsewhere, "file": file_of(session, name)}


def save(session: Session, name: str, codes: list[str], *, replace: bool) -> dict[str, Any]:
    """Save patients under a name; their pseudonyms, as `saved_cohort` has them."""
    named = ids_of(session, codes)
    return saved_cohort(session, _folder(session).save(name, named, replace=replace))


def ids_of(session: Session, codes: Iterable[str]) -> list[tuple[str, str]]:
    """(dataset, ID) of each pseudonym, for files; never for the page unless it shows IDs."""
    ids = session.embeddings.rows.select("dataset", "patient")
    return [ids.row(session.row(code)) for code in codes]


def file_of(session: Session, name: str) -> str:
    """Where a cohort lies: the whole path where IDs are shown, else its end."""
    path = _folder(session).path / f"{name}.csv"
    return str(path if session.show_ids else Path(path.parent.name, path.name))


def _rows_of(session: Session, cohort: Cohort) -> tuple[list[int], int]:
    """Rows of its patients, in the order of the pseudonyms, and how many are not in the session."""
    rows = np.flatnonzero(cohort.mask(session.embeddings.rows)).tolist()
    return rows, max(0, len(cohort.ids) - len(rows))


def _folder(session: Session) -> CohortFolder:
    if session.cohorts is None:
        raise SettingError("no folder for cohorts is known; start the explorer with `cohorts`")
    return session.cohorts

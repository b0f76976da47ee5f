"""Groups of patients: saved cohorts, comparisons in numbers, average beats.

Cohorts are files in a folder, one CSV table of IDs each. The folder is beside the stores, whose
owner may know the IDs; what leaves the server is pseudonyms. `clocs embed --cohort` and others
take the files.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import binomtest

from clocs.errors import ClocsError, SettingError
from clocs.explorer.measured import MEASURED, ShownMeasurement
from clocs.explorer.session import NotFoundError, Session
from clocs.files import PRIVATE, private_folder, write_atomic, writing
from clocs.measurements.beats import average_beat
from clocs.measurements.intervals import median_of
from clocs.patients.cohort import Cohort, cohort_text, read_cohort
from clocs.recording import STANDARD_LEADS, Recording

LONGEST_NAME = 60
MAX_COHORTS = 1000  # in a folder
MAX_AVERAGED = 100  # patients of an average beat: the first by pseudonym, which is a random order
BEFORE, AFTER = 0.25, 0.45  # s around the R peak
RATE = 250  # Hz
Z = 1.959964  # of a normal distribution, for 95 %
_NAME = re.compile(r"\w([\w .,()+=-]*[\w)+])?")
_SECONDS = 30  # of a long recording
_TIMES = np.arange(-round(BEFORE * RATE), round(AFTER * RATE) + 1) / RATE
NO_LABEL = "no label"
_SEXES = ("female", "male")
# bands of values, by their lower ends
_AGES = {"under 40": 0.0, "40–59": 40.0, "60–79": 60.0, "80 and over": 80.0}


class NameTakenError(ClocsError):
    """A cohort has this name already."""


def cohort_files(folder: Path) -> dict[str, Path]:
    """The files, `NAME.csv`, by the names of their cohorts, in alphabetical order."""
    found = [one for one in folder.glob("[!.]*.csv") if one.is_file()]
    named = {unicodedata.normalize("NFC", one.stem): one for one in found}
    return dict(sorted(named.items(), key=lambda item: item[0].casefold()))


def save_cohort(
    folder: Path, name: str, patients: Iterable[tuple[str, str]], *, replace: bool = False
) -> str:
    """Write the (dataset, ID)s of a cohort; an existing one is changed only to `replace` it.

    Returns its name: that of the one that is replaced, or a new one with single spaces.

    Raises:
        NameTakenError: There is a cohort of this name, or of one that differs in case alone.
        SettingError: The name is no good name of a file.
    """
    return _save(folder, name, cohort_text(patients).encode(), replace=replace)


def _save(folder: Path, name: str, content: bytes, *, replace: bool = False) -> str:
    name = unicodedata.normalize("NFC", " ".join(name.split()))
    if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise SettingError(
            f"a name of a cohort has up to {LONGEST_NAME} letters, digits, spaces and .,()+=-_ and "
            "begins with a letter or a digit"
        )
    files = cohort_files(folder)
    taken = {one.casefold(): one for one in files}.get(name.casefold())
    if taken is not None and replace:
        write_atomic(files[taken], content)
        return taken
    if taken is not None:
        raise NameTakenError(f"there is a cohort {taken!r} already; give another name")
    if len(files) >= MAX_COHORTS:
        raise SettingError(f"{MAX_COHORTS:,} cohorts are saved already; delete some of their files")
    file = folder / f"{name}.csv"
    with writing(folder):
        private_folder(folder)
        try:  # of two who save the same name at once, one is told
            file.touch(PRIVATE, exist_ok=False)
        except FileExistsError:
            raise NameTakenError(f"there is a cohort {name!r} already; give another name") from None
    try:
        write_atomic(file, content)
    except BaseException:
        file.unlink()
        raise
    return name


def remove_cohort(folder: Path, name: str) -> None:
    """Delete the file of a cohort."""
    with writing(folder):
        _file_of(folder, name).unlink(missing_ok=True)


def rename_cohort(folder: Path, name: str, new: str) -> str:
    """Give a cohort another name, which nobody has; returns that name."""
    old = _file_of(folder, name)
    with writing(folder):
        made = _save(folder, new, old.read_bytes())
        old.unlink(missing_ok=True)
    return made


def _file_of(folder: Path, name: str) -> Path:
    file = cohort_files(folder).get(unicodedata.normalize("NFC", name))
    if file is None:
        raise NotFoundError(f"there is no cohort {name[:LONGEST_NAME]!r}")
    return file


def list_cohorts(session: Session) -> list[dict[str, Any]]:
    """The saved cohorts, those that cannot be read with the reason."""
    found = []
    for name, file in cohort_files(session.cohorts).items():
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
    """The pseudonyms of a saved cohort, and its file, whose folder is shown only where IDs are."""
    file = _file_of(session.cohorts, name)
    try:
        rows, elsewhere = _rows_of(session, read_cohort(file))
    except SettingError:  # it names the folder
        raise SettingError(f"the file of the cohort {name!r} cannot be read as one") from None
    shown = str(file if session.show_ids else Path(file.parent.name, file.name))
    codes = [session.codes[row] for row in rows]
    return {"name": name, "codes": codes, "elsewhere": elsewhere, "file": shown}


def _rows_of(session: Session, cohort: Cohort) -> tuple[list[int], int]:
    """Rows of its patients, in the order of the pseudonyms, and how many are not in the session."""
    rows = np.flatnonzero(cohort.mask(session.embeddings.rows)).tolist()
    return rows, max(0, len(cohort.ids) - len(rows))


def compare(session: Session, groups: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Diagnoses and sexes of groups of pseudonyms, their ages and what was measured."""
    rows = [sorted({session.row(code) for code in codes}) for codes in groups]
    tables = [session.embeddings.rows[own] for own in rows]
    ages = [one["age"].cast(pl.Float64).fill_null(math.nan).to_numpy() for one in tables]
    measured = {
        MEASURED[name]: [values[own].astype(np.float64) for own in rows]
        for name, values in session.measured.items()
    }
    labels = [
        Counter(label for own in one["labels"].to_list() for label in set(own) or {NO_LABEL})
        for one in tables
    ]
    sizes = [len(own) for own in rows]

    def rank(label: str) -> tuple[bool, float, str]:
        most = max(one[label] / of for one, of in zip(labels, sizes, strict=True))
        return label == NO_LABEL, -most, label

    sections = [
        _section("Diagnosis", sorted(set().union(*labels), key=rank), labels, sizes),
        _section("Sex", _SEXES, [Counter(one["sex"].drop_nulls()) for one in tables]),
        _section("Age in years", _AGES, [_banded(_AGES, one) for one in ages]),
    ]
    medians = [
        {**one._asdict(), "groups": [_median(own) for own in groups]}
        for one, groups in {ShownMeasurement("Age", "years"): ages, **measured}.items()
    ]
    return {
        "patients": sizes,
        "in_both": len(set.intersection(*map(set, rows))) if len(rows) > 1 else 0,
        "medians": [one for one in medians if any(one["groups"])],
        "sections": [one for one in sections if one["rows"]],
    }


def _section(
    title: str,
    values: Iterable[str],
    counts: Sequence[Counter[str]],
    sizes: Sequence[int] | None = None,
) -> dict[str, Any]:
    """The share of each value that one of the groups has, by default of those where it is known."""
    sizes = sizes or [one.total() for one in counts]
    rows = []
    for value in values:
        shares = [_share(one[value], of) for one, of in zip(counts, sizes, strict=True)]
        if any(one["count"] for one in shares):
            rows.append({"value": value, "shares": shares})
    return {"title": title, "rows": rows}


def _share(count: int, of: int) -> dict[str, Any]:
    """With its Wilson interval, for 95 %."""
    low, high = binomtest(count, of).proportion_ci(method="wilson") if of else (0.0, 1.0)
    share = count / of if of else None
    return {"count": count, "of": of, "share": share, "low": float(low), "high": float(high)}


def _banded(bands: Mapping[str, float], values: NDArray[np.float64]) -> Counter[str]:
    """How many are in each band, of which the lower end is given."""
    known = values[np.isfinite(values)]
    names = list(bands)
    return Counter(names[i - 1] for i in np.searchsorted([*bands.values()], known, "right"))


def _median(values: NDArray[np.float64]) -> dict[str, Any] | None:
    """Of what is known, with its interval."""
    found, known = median_of(values), int(np.isfinite(values).sum())
    facts = {"median": found.value, "low": found.low, "high": found.high, "known": known}
    return facts if known else None


def average_beats(session: Session, codes: Sequence[str]) -> dict[str, Any]:
    """Mean beats over patients' first recordings, with the mean's pointwise 95 % interval.

    In mV; if no recording has a known gain, in arbitrary units.
    """
    read: list[Recording] = []
    for code in sorted(set(codes))[:MAX_AVERAGED]:
        session.row(code)  # an unknown one is an error
        with suppress(ClocsError):  # its signal is not here
            read.append(session.recording(code, 0))
    units = [one.unit for one in read]
    unit = "mV" if "mV" in units else next(iter(units), "mV")
    each = [beats for one in read if one.unit == unit and (beats := beats_of(one))]
    order = {lead: i for i, lead in enumerate(STANDARD_LEADS)}
    leads = {lead for beats in each for lead in beats}
    return {
        "unit": unit,
        "rate": RATE,
        "start": float(_TIMES[0]),
        "patients": len(each),
        "of": len(set(codes)),
        "leads": [
            _averaged(lead, np.array([beats[lead] for beats in each if lead in beats]))
            for lead in sorted(leads, key=lambda lead: (order.get(lead, len(order)), lead))
        ],
    }


def beats_of(recording: Recording) -> dict[str, NDArray[np.float64]]:
    """(samples,) the mean beat of each lead, its own median at zero; none without two beats."""
    rate = recording.rate
    part = recording.between(0, min(recording.samples, round(_SECONDS * rate)))
    own = average_beat(part)
    if own is None:
        return {}
    signal, peaks = part.signal, own.peaks / rate
    whole = peaks[(peaks > BEFORE) & (peaks < part.seconds - AFTER)]
    if len(whole) < 2:
        return {}
    at, moments = whole[:, None] + _TIMES, np.arange(part.samples) / rate
    beats = {}
    for lead, trace in zip(part.leads, signal, strict=True):
        windows = np.interp(at, moments, trace)  # nan where a gap is
        windows = windows[np.isfinite(windows).all(axis=1)]
        if len(windows) and np.ptp(windows) > 0:
            mean = windows.mean(axis=0)
            beats[lead] = mean - np.median(mean)
    return beats


def _averaged(lead: str, beats: NDArray[np.float64]) -> dict[str, Any]:
    mean = beats.mean(axis=0)
    reach = Z * beats.std(axis=0, ddof=1) / math.sqrt(len(beats)) if len(beats) > 1 else 0 * mean
    found = {"mean": mean, "low": mean - reach, "high": mean + reach}
    facts = {name: values.round(4).tolist() for name, values in found.items()}
    return {"lead": lead, "patients": len(beats)} | facts

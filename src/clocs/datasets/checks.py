"""Checks that every recording of a published dataset must pass, and fields that all share."""

from __future__ import annotations

import math
from collections.abc import Collection

from clocs.errors import UnusableError
from clocs.recording import FrameSpec, Recording

_SEXES = {"male": "male", "m": "male", "female": "female", "f": "female"}


def check_signal(recording: Recording, *, frame: FrameSpec, known_leads: Collection[str]) -> None:
    """Refuse a recording that is unusable as a whole; single leads may be flat.

    Raises:
        UnusableError: no known lead, flat or too short.
    """
    if not any(lead in known_leads for lead in recording.leads):
        found = ", ".join(recording.leads)
        detail = f"{recording.id} has {found}; one of {', '.join(known_leads)} is needed"
        raise UnusableError("no known lead", detail)
    check_varies(recording)
    needed = round(frame.seconds * recording.rate)
    if recording.samples < needed:
        detail = (
            f"{recording.id} has {recording.samples} samples ({recording.seconds:.2f} s), "
            f"a frame needs {needed}"
        )
        raise UnusableError("too short", detail)


def check_varies(recording: Recording) -> None:
    """Refuse a recording that is constant in every lead.

    Raises:
        UnusableError: flat.
    """
    digital = recording.digital
    # Nearly every recording varies at its start: only the others are checked in full.
    if not (digital[:, :64] != digital[:, :1]).any() and (digital == digital[:, :1]).all():
        raise UnusableError("flat", f"{recording.id} is constant in every lead")


def parse_age(text: str | None) -> float | None:
    """Years, or None where unknown ('', 'NaN', '-1' …)."""
    try:
        age = float(text or "nan")
    except ValueError:
        return None
    return age if 0 <= age < math.inf else None


def parse_sex(text: str | None) -> str | None:
    """'male', 'female' or None."""
    return _SEXES.get((text or "").strip().lower())


def header_extra(recording: Recording) -> dict[str, str]:
    """Header fields other than age and sex, by lower-case name."""
    fields = {key.lower(): value for key, value in recording.extra.items()}
    return {key: value for key, value in fields.items() if key not in ("age", "sex")}

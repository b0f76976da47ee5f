"""Leads by the names that files give them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from clocs.errors import UnusableError, first_of
from clocs.recording import LEAD_WORD, STANDARD_LEADS, canonical_lead, is_modified_lead

_MAX_NAMED = 12  # of the names in a message
_COUNTED = re.compile(rf"(?:ecg|ekg)?[\s_.:-]*{LEAD_WORD}[\s_.:-]*(\d+)", re.IGNORECASE).fullmatch
_CHEST = re.compile(r"c[\s_]?([1-6])$", re.IGNORECASE)


def name_leads(
    names: Sequence[str], mapped: Mapping[str, str], *, name: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    """One name per lead, and what `Recording.extra` should say about them.

    What the user says comes first, then `canonical_lead`, then the company of a name: 'Lead 1' is I
    unless the leads are counted further than 3, and 'C1' is V1 beside limb leads, unless C3 and C4
    alone are named, as EEGs name them. Modified leads of ambulatory recorders
    ('MLII') take the names of limb leads, which is noted, unless the file has those too. Leads
    without a name are called 'signal 0', further ones of an unknown name 'ECG 2'.

    Args:
        names: As the file has them.
        mapped: `ReadOptions.lead_names`; its keys are compared without case, too.
        name: Of the file, for messages.

    Raises:
        UnusableError: unreadable, where two are the same standard lead.
    """
    folded = {key.strip().lower(): canonical_lead(lead) for key, lead in mapped.items()}
    given = [text.strip() for text in names]
    leads = [folded.get(text.lower()) or canonical_lead(text) for text in given]
    for i, lead in _by_company(given, leads).items():
        if given[i].lower() not in folded and lead not in leads:
            leads[i] = lead
    noted: dict[str, str] = {}
    for i, text in enumerate(given):
        if is_modified_lead(text) and text.lower() not in folded:
            if leads.count(leads[i]) > 1:
                leads[i] = text
            else:
                noted[leads[i]] = text
    taken: set[str] = set()
    for i, lead in enumerate(leads):
        if lead in taken and lead in STANDARD_LEADS:
            same = ", ".join(repr(given[k]) for k, one in enumerate(leads) if one == lead)
            raise UnusableError("unreadable", f"{name} has several leads of one name: {same}")
        unique = lead or f"signal {i}"
        for number in range(2, len(leads) + 2):
            if unique not in taken:
                break
            unique = f"{lead or f'signal {i}'} {number}"
        leads[i] = unique
        taken.add(unique)
    said = ", ".join(f"{lead} is {text}" for lead, text in noted.items())
    return tuple(leads), {"leads": said} if said else {}


def _by_company(given: Sequence[str], leads: Sequence[str]) -> dict[int, str]:
    """Leads of names that mean a lead only beside others, by their places."""
    found: dict[int, str] = {}
    numbers = {i: int(match[1]) for i, text in enumerate(given) if (match := _COUNTED(text))}
    if set(numbers.values()) <= {1, 2, 3}:
        found |= {i: STANDARD_LEADS[number - 1] for i, number in numbers.items()}
    chest = {i: canonical_lead(_CHEST.sub(r"V\1", text)) for i, text in enumerate(given)}
    chest = {i: lead for i, lead in chest.items() if lead != leads[i] and lead in STANDARD_LEADS}
    beside_limbs = {*leads, *found.values()} & set(STANDARD_LEADS[:6])
    if beside_limbs and {"V1", "V2"} & set(chest.values()):
        found |= chest
    return found


def unknown_leads(leads: Iterable[str]) -> list[str]:
    """Those that are none of the standard twelve, each once, in order."""
    return [lead for lead in dict.fromkeys(leads) if lead not in STANDARD_LEADS]


def how_to_map(unknown: Sequence[str]) -> str:
    """A sentence that lists unknown names and says which option maps them."""
    named = first_of([repr(lead) for lead in unknown], _MAX_NAMED)
    return (
        f"leads of unknown names: {named}; if one is a standard lead, say so with "
        f"`lead_names`, such as {unknown[0]}=II"
    )

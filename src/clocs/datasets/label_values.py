"""What people write into the cells of tables: several labels at once, yes and no, dates, ages."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

_NOTHING = frozenset({"", "nan", "none", "null", "na", "n/a", "unknown", "-", "?"})
_YES = frozenset({"1", "1.0", "true", "yes"})
_NO = frozenset({"0", "0.0", "false", "no"}) | _NOTHING
_MOST_CELL = 10_000  # characters of a cell that are parsed as a list
_NUMPY = re.compile(r"""(['"])\s+(['"])""")  # "['AF' 'PVC']"
_DAY = re.compile(r"(\d{1,4})[./-](\d{1,2})[./-](\d{1,4})(?:[T ]+(\d{1,2}:\d{2}(?::\d{2})?).*)?$")
_AGE = re.compile(r"0*(\d+(?:\.\d*)?)\s*(?:y|years?|yrs?)?$", re.IGNORECASE)
_OLDEST = 150


def is_nothing(text: str) -> bool:
    """Whether a cell says nothing: '', 'NaN' or 'unknown'."""
    return text.strip().lower() in _NOTHING


def split_labels(text: str) -> tuple[str, ...]:
    """The labels in a cell, each once: 'AF', 'AF;PVC', '["AF", "PVC"]', "{'NORM': 100.0}"."""
    text = text.strip()
    if is_nothing(text):
        return ()
    found = _listed(text) if text[0] in "[{(" and len(text) <= _MOST_CELL else None
    if found is None:
        found = re.split(r"[;|]", text)
        if len(found) == 1 and "," in text:
            parts = [part.strip() for part in text.split(",")]
            # 'Sinus rhythm, normal' is one label; 'AF,PVC' are two.
            found = parts if not any(" " in part for part in parts) else found
    labels = (str(one).strip() for one in found)
    return tuple(dict.fromkeys(label for label in labels if not is_nothing(label)))


def _listed(text: str) -> Iterable[object] | None:
    """The items of a list, or the keys of a mapping, as JSON or Python writes them."""
    value: object
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(_NUMPY.sub(r"\1, \2", text))  # parses, and executes nothing
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return None
    if isinstance(value, Mapping | Collection) and not isinstance(value, str | bytes):
        return list(value)
    return [value]


def are_yes_or_no(values: Iterable[str]) -> bool:
    """Whether these cells are all 1 or 0, yes or no, or empty, and some say yes or no."""
    found = {value.strip().lower() for value in values}
    return found <= _YES | _NO and bool(found - _NOTHING)


def is_yes(text: str) -> bool:
    """Whether a cell says 1, yes or true."""
    return text.strip().lower() in _YES


def age_of(text: str) -> float | None:
    """Years, from '62', '062Y' or '62.5 years'; None where it is no plausible age."""
    match = _AGE.match(text.strip())
    age = float(match[1]) if match else -1.0
    return age if 0 <= age <= _OLDEST else None


def dates_of(values: Iterable[str]) -> list[str | None]:
    """A column of dates as ISO 8601, None where one cannot be understood.

    '03/04/2020' is 3 April where some first number of the column exceeds 12, 4 March where some
    second one does, and None where nothing tells.
    """
    texts = [value.strip() for value in values]
    matches = [_DAY.match(text) for text in texts]
    firsts = [int(m[1]) for m in matches if m and len(m[3]) == 4]
    seconds = [int(m[2]) for m in matches if m and len(m[3]) == 4]
    points = any("." in text for text in texts if _DAY.match(text))
    day_first: bool | None = None
    if points or any(number > 12 for number in firsts):
        day_first = True
    elif any(number > 12 for number in seconds):
        day_first = False
    return [
        _date(text, match, day_first=day_first) for text, match in zip(texts, matches, strict=True)
    ]


def _date(text: str, match: re.Match[str] | None, *, day_first: bool | None) -> str | None:
    if match is None or len(match[1]) == 4:
        return _iso(text)
    if len(match[3]) != 4 or day_first is None:
        return None
    day, month = (match[1], match[2]) if day_first else (match[2], match[1])
    time = f"T{match[4]:0>5}" if match[4] else ""
    return _iso(f"{match[3]}-{month:0>2}-{day:0>2}{time}")


def _iso(text: str) -> str | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment.replace(tzinfo=None, microsecond=0)
    only_day = len(text) <= 10 or (moment.hour, moment.minute, moment.second) == (0, 0, 0)
    return moment.date().isoformat() if only_day else moment.isoformat()

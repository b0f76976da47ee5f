"""Groups of patients in numbers: shares and means with 95 % intervals, two groups side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clocs.explorer.session import Session

Z = 1.959964  # of a normal distribution, for 95 %
_AGES = (("under 40", 0, 40), ("40–59", 40, 60), ("60–79", 60, 80), ("80 and over", 80, 200))
_RATES = (("below 60", 0, 60), ("60–100", 60, 100.0001), ("above 100", 100.0001, 1000))


def wilson(count: int, of: int) -> tuple[float, float]:
    """The Wilson score interval of a share, for 95 %."""
    if not of:
        return 0.0, 1.0
    share = count / of
    middle = share + Z**2 / (2 * of)
    reach = Z * sqrt(share * (1 - share) / of + Z**2 / (4 * of**2))
    scale = 1 + Z**2 / of
    low, high = (middle - reach) / scale, (middle + reach) / scale
    return (0.0 if not count else low), (1.0 if count == of else high)


def compare(session: Session, groups: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Diagnoses, sexes, ages and heart rates of groups of pseudonyms."""
    rows = [np.array(sorted({session.row(code) for code in codes}), np.int64) for codes in groups]
    table = session.embeddings.rows
    labels = [table["labels"].gather(own.tolist()).to_list() for own in rows]
    ages = table["age"].fill_null(float("nan")).to_numpy().astype(np.float64)
    sexes = np.array(table["sex"].fill_null("").to_list())
    rates = session.heart_rates.values.astype(np.float64)
    sections = [
        _section("Diagnosis", _label_rows(labels)),
        _section("Sex", [_row(sex, [_counts(sexes[own], sex) for own in rows]) for sex in _SEXES]),
        _section("Age in years", _bands(_AGES, [ages[own] for own in rows])),
        _section("Heart rate in beats per minute", _bands(_RATES, [rates[own] for own in rows])),
    ]
    means = [
        {"title": "Age", "unit": "years", "groups": [_mean(ages[own]) for own in rows]},
        {"title": "Heart rate", "unit": "beats/min", "groups": [_mean(rates[own]) for own in rows]},
    ]
    both = set(rows[0].tolist()).intersection(*(own.tolist() for own in rows[1:]))
    return {
        "patients": [len(own) for own in rows],
        "in_both": len(both) if len(rows) > 1 else 0,
        "means": [one for one in means if any(one["groups"])],
        "sections": [one for one in sections if one["rows"]],
    }


_SEXES = ("female", "male")


def _section(title: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Only what one of the groups has."""
    return {"title": title, "rows": [row for row in rows if any(s["count"] for s in row["shares"])]}


def _row(value: str, counts: Sequence[tuple[int, int]]) -> dict[str, Any]:
    shares = []
    for count, of in counts:
        low, high = wilson(count, of)
        share = count / of if of else None
        shares.append({"count": count, "of": of, "share": share, "low": low, "high": high})
    return {"value": value, "shares": shares}


def _label_rows(groups: Sequence[Sequence[Sequence[str]]]) -> list[dict[str, Any]]:
    """One row per label, the most common of either group first; patients without any count, too."""
    counts = [Counter(label for own in group for label in set(own)) for group in groups]
    known = sorted(set().union(*counts))
    sizes = [len(group) for group in groups]
    rows = [
        _row(label, [(c[label], n) for c, n in zip(counts, sizes, strict=True)]) for label in known
    ]
    rows.sort(key=lambda row: -max(share["share"] or 0 for share in row["shares"]))
    none = _row("no label", [(sum(not own for own in group), len(group)) for group in groups])
    return [*rows, none]


def _counts(values: NDArray[np.str_], value: str) -> tuple[int, int]:
    return int((values == value).sum()), int((values != "").sum())


def _bands(
    bands: Sequence[tuple[str, float, float]], groups: Sequence[NDArray[np.float64]]
) -> list[dict[str, Any]]:
    return [
        _row(
            name,
            [
                (int(((group >= low) & (group < high)).sum()), int(np.isfinite(group).sum()))
                for group in groups
            ],
        )
        for name, low, high in bands
    ]


def _mean(values: NDArray[np.float64]) -> dict[str, Any] | None:
    """The mean of what is known, with its normal interval."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    mean = float(known.mean())
    reach = Z * float(known.std(ddof=1)) / sqrt(len(known)) if len(known) > 1 else None
    low, high = (None, None) if reach is None else (mean - reach, mean + reach)
    return {"mean": mean, "low": low, "high": high, "known": len(known)}

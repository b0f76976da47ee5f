"""Results of `analyses` as Markdown tables, by name of the marked part of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clocs.experiments import paper
from clocs.experiments.pages import markdown_table

Result = Mapping[str, Any]
Title = Callable[[Result], str]

NOTHING = "Not measured yet."
_MIN_RANDOM = 64  # directions
_WAYS = {"cosine": "cosine", "trained": "trained metric"}


def tables(found: Sequence[Result]) -> dict[str, str]:
    """Markdown of every part; of results that are not there it says so."""
    return {
        "identity": identity_table(_of(found, "identity and disease")),
        "privacy": privacy_table(_of(found, "privacy")),
        "hospital": hospital_table(_of(found, "other hospital")),
        "noise": _noise(_of(found, "noise")),
    }


def _of(found: Iterable[Result], analysis: str) -> list[Result]:
    """Those of an analysis, encoders of many leads last."""
    own = [one for one in found if one["analysis"] == analysis]
    return sorted(own, key=lambda one: len(one["encoders"][0]["encoder"].get("leads", ())))


def encoder_title(one: Result) -> str:
    facts = one["encoders"][0]
    method = paper.METHOD_TITLES.get(facts["method"], facts["method"])
    leads = len(facts["encoder"].get("leads", ()))
    sees = f"`{facts['encoder']['name']}`" + (f" of {leads} leads" if leads else "")
    return f"{method}, {sees}, {_dataset(facts['trained_on'])}"


def _dataset(name: str | None) -> str:
    if name is None:
        return "no data"
    return " + ".join(paper.DATASET_TITLES.get(part, part) for part in name.split("+"))


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Columns after the first `words` are numbers."""
    listed = list(rows)
    return markdown_table(titles, listed, words=words) if listed else NOTHING


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _auc(score: Mapping[str, Any]) -> str:
    """An AUC and its interval."""
    if score["auc"] is None:
        return "–"
    low, high = score["ci95"]
    return f"{score['auc']:.3f} ({low:.3f}–{high:.3f})"


def identity_table(found: Sequence[Result], title: Title = encoder_title) -> str:
    rows = []
    for one in found:
        for row in one["rows"]:
            kind, count = row["removed"], row["directions"]
            if kind == "random" and count < _MIN_RANDOM:
                continue  # as if nothing were removed
            first = kind == "nothing"
            removed = "nothing" if first else f"{kind}, {count} of {one['dim']}"
            search = [_percent(row["search"][way]["top1"]) for way in _WAYS]
            names = [_dataset(one["dataset"]), title(one)] if first else ["", ""]
            rows.append([*names, removed, *search, _auc(row["diagnosis"])])
    titles = [
        "test patients of",
        "encoder",
        "directions removed",
        *(f"found, {way}" for way in _WAYS.values()),
        "diagnosis, AUC",
    ]
    return _table(titles, rows, 3)


def privacy_table(found: Sequence[Result], title: Title = encoder_title) -> str:
    rows = []
    for one in found:
        who = "test patients" if one["patients"] == "test" else "all patients"
        for way, sizes in one["ways"].items():
            for row in sizes:
                shares = []
                for name in ("top1", "top10"):
                    ends = row[f"{name}_ci95"]
                    around = f" ({100 * ends[0]:.1f}–{100 * ends[1]:.1f})" if ends else ""
                    shares.append(f"{_percent(row[name])}{around}")
                first = row is sizes[0]
                names = [f"{_dataset(one['dataset'])}, {who}", title(one), _WAYS[way]]
                chance = f"{100 * row['top1_chance']:.2g} %"
                rows.append([*(names if first else [""] * 3), f"{row['size']:,}", *shares, chance])
    titles = ["searched for", "encoder", "compared by", "gallery", "nearest", "among ten", "chance"]
    return _table(titles, rows, 3)


def hospital_table(found: Sequence[Result], title: Title = encoder_title) -> str:
    rows = []
    for one in found:
        same, other = one["same"], one["other"]
        where = f"{_dataset(same['tested_on'])} → {_dataset(other['tested_on'])}"
        for name, score in other["concepts"].items():
            own = same["concepts"][name]
            first = name == next(iter(other["concepts"]))
            rows.append(
                [
                    *([where, title(one)] if first else ["", ""]),
                    name,
                    _auc(own),
                    _auc(score),
                ]
            )
    titles = ["learned → tested", "encoder", "", "at the same hospital", "at the other"]
    return _table(titles, rows, 3)


def _noise(found: Sequence[Result]) -> str:
    levels = sorted({row["snr_db"] for one in found for row in one["noisy"]}, reverse=True)
    rows = []
    for one in found:
        kinds = dict.fromkeys(row["kind"] for row in one["noisy"])
        for kind in kinds:
            own = {row["snr_db"]: row["auc"] for row in one["noisy"] if row["kind"] == kind}
            first = kind == next(iter(kinds))
            names = [_dataset(one["dataset"]), encoder_title(one)] if first else ["", ""]
            clean = f"{one['clean']['auc']:.3f}" if first else ""
            values = [f"{own[level]:.3f}" if level in own else "–" for level in levels]
            rows.append([*names, kind, clean, *values])
    titles = [
        *("test patients of", "encoder", "noise", "without"),
        *(f"{level:g} dB" for level in levels),
    ]
    return _table(titles, rows, 3)

"""Results of `analyses` as Markdown tables, by name of the marked part of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clocs.experiments import paper
from clocs.experiments.pages import markdown_table
from clocs.patients.controls import CONTROLS
from research.analyses.search import ANOTHER_DAY, APART, HALVES

Result = Mapping[str, Any]
Title = Callable[[Result], str]

NOTHING = "Not measured yet."
_SHOWN = (64, 256)  # directions removed; of disease, all
_WAYS = {"cosine": "cosine", "trained": "trained metric"}


def tables(found: Sequence[Result]) -> dict[str, str]:
    """Markdown of every part; of results that are not there it says so."""
    own = _of(found, "identity and disease")
    halves = [one for one in own if one["searched_by"] == HALVES]
    days = [one for one in own if one["searched_by"] == ANOTHER_DAY]
    return {
        "found": found_table(halves, [HALVES]),
        "days": found_table(days, [HALVES, *APART]),
        "identity": identity_table(halves),
        "identity-days": identity_table(days),
        "hospital": hospital_table(_of(found, "other hospital")),
        "noise": _noise(_of(found, "noise")),
    }


def _of(found: Iterable[Result], analysis: str) -> list[Result]:
    """Those of an analysis, encoders of many leads last."""
    own = [one for one in found if one["analysis"] == analysis]
    return sorted(own, key=lambda one: len(one["encoders"][0]["encoder"].get("leads", ())))


def encoder_title(one: Result) -> str:
    facts = one["encoders"][0]
    if facts["method"] in CONTROLS:
        return str(facts["method"]).replace("-", " ")
    method = paper.METHOD_TITLES.get(facts["method"], facts["method"])
    leads = len(facts["encoder"].get("leads", ()))
    sees = f"`{facts['encoder']['name']}`" + (f" of {leads} leads" if leads else "")
    return f"{method}, {sees}, {_dataset(facts['trained_on'])}"


def _dataset(name: str | None) -> str:
    if name is None:
        return "no data"
    return " + ".join(paper.DATASET_TITLES.get(part, part.upper()) for part in name.split("+"))


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Columns after the first `words` are numbers."""
    listed = list(rows)
    return markdown_table(titles, listed, words=words) if listed else NOTHING


def _auc(score: Mapping[str, Any]) -> str:
    """An AUC and its interval."""
    if score["auc"] is None:
        return "–"
    low, high = score["ci95"]
    return f"{score['auc']:.3f} ({low:.3f}–{high:.3f})"


def identity_table(found: Sequence[Result], title: Title = encoder_title) -> str:
    rows = []
    for one in found:
        diseases = [row["directions"] for row in one["rows"] if row["removed"] == "disease"][-1:]
        for row in one["rows"]:
            kind, count = row["removed"], row["directions"]
            shown = diseases if kind == "disease" else _SHOWN
            if kind != "nothing" and count not in shown:
                continue
            first = kind == "nothing"
            removed = "nothing" if first else f"{kind}, {count} of {one['dim']}"
            search = [f"{100 * row['search'][way]['top1']:.1f} %" for way in _WAYS]
            names = [_dataset(one["dataset"]), title(one)] if first else ["", ""]
            rows.append([*names, removed, *search, _auc(row["diagnosis"])])
    ways = [f"found, {way}" for way in _WAYS.values()]
    titles = ["patients of", "encoder or control", "directions removed", *ways, "diagnosis, AUC"]
    return _table(titles, rows, 3)


def found_table(found: Sequence[Result], kinds: Sequence[str]) -> str:
    """How often patients are found by pairs of these kinds; the median rank is by the last."""
    rows, kinds = [], [kind for kind in kinds if all(kind in one["pairs"] for one in found)]
    heads = kinds
    best_first = sorted(found, key=lambda one: -one["pairs"][kinds[-1]]["cosine"]["top1"])
    for one in best_first:
        for way, title in _WAYS.items():
            own = [one["pairs"][kind][way] for kind in kinds]
            heads = [
                f"{k}, {n['patients']:,} of {n['size']:,}" for k, n in zip(kinds, own, strict=True)
            ]
            shares = [f"{100 * n['top1']:.0f} % ({_ends(n['ci95'], 100)})" for n in own]
            rank = f"{own[-1]['median_rank']:g} ({_ends(own[-1]['median_rank_ci95'], 1)})"
            rows.append([encoder_title(one) if way == "cosine" else "", title, *shares, rank])
    return _table(["encoder or control", "compared by", *heads, "median rank"], rows, 2)


def _ends(around: Sequence[float], times: float) -> str:
    return "–".join(f"{times * end:.0f}" for end in around)


def hospital_table(found: Sequence[Result], title: Title = encoder_title) -> str:
    rows = []
    for one in found:
        same, other = one["same"], one["other"]
        where = f"{_dataset(same['tested_on'])} → {_dataset(other['tested_on'])}"
        for name, score in other["concepts"].items():
            own = same["concepts"][name]
            first = name == next(iter(other["concepts"]))
            names = [where, title(one)] if first else ["", ""]
            rows.append([*names, name, _auc(own), _auc(score)])
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
    titles = ["test patients of", "encoder", "noise", "without"]
    return _table([*titles, *(f"{level:g} dB" for level in levels)], rows, 3)

"""Published scores of the search (`clocs retrieval --json`) as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from clocs.errors import SettingError
from clocs.experiments import paper
from clocs.experiments.findings import NOT_RUN
from clocs.experiments.results import value_of

_DATASETS = paper.PRETRAIN  # as `retrieval-NAME.json`
# (title, part and field of a row) of each column
_COLUMNS = (
    ("other half of the recording nearest", "halves", "top1"),
    ("among the ten nearest", "halves", "top10"),
    ("ten nearest that share a diagnosis", "diagnosis", "precision"),
)
_MEANING = (
    "Every patient has one recording, so this means finding the rest of the same recording, "
    "not the patient on another day."
)


def retrieval_parts(folder: Path) -> dict[str, str]:
    """A table per dataset, and one paragraph per dataset that was scored on frames of 5 s."""
    found = {name: _rows(folder / f"retrieval-{name}.json") for name in _DATASETS}
    tables = {f"retrieval-{name}": _table(rows) for name, rows in found.items()}
    sentences = [_sentence(name, found[name]) for name in ("physionet2020", "chapman")]
    scored = [one for one in sentences if one] or ["The search has not been scored."]
    if any(row["one_recording_each"] for rows in found.values() for row in rows):
        scored.append(_MEANING)
    return tables | {"retrieval": "\n\n".join(scored)}


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return [row for row in rows if _settings(row)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(
            f"{path} holds no scores that can be read ({error!r}); write them again with "
            "`clocs retrieval`"
        ) from error


def _settings(row: Mapping[str, Any]) -> tuple[str, float, float]:
    """What tells encoders apart: method, seconds of the frames scored and trained on."""
    return row["method"], row["frame"]["seconds"], row["frame_trained"]["seconds"]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per encoder and frame, mean ± sd over seeds; chance below."""
    if not rows:
        return NOT_RUN
    groups: dict[tuple[str, float, float], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(_settings(row), []).append(row)
    titles = " | ".join(title for title, *_ in _COLUMNS)
    lines = [f"| | frame | trained on | {titles} |", f"| --- |{' ---: |' * (2 + len(_COLUMNS))}"]
    for (method, frame, trained), own in groups.items():
        halves = own[0]["halves"]
        length = frame if halves is None or halves["frame"] == frame else None
        shown = f"{frame:g} s" if length else f"{halves['frame']:g} s; {frame:g} s"
        values = [_over_seeds(own, part, key) for _, part, key in _COLUMNS]
        name = paper.METHOD_TITLES[method]
        lines.append(f"| {name} | {shown} | {trained:g} s | {' | '.join(values)} |")
    first = next((row for row in rows if row["halves"]), rows[0])
    chances = [
        f"{first[part][key]:.4f}" if first[part] else ""
        for part, key in (("halves", "chance"), ("halves", "chance10"), ("diagnosis", "base_rate"))
    ]
    return "\n".join([*lines, f"| chance | | | {' | '.join(chances)} |"])


def _over_seeds(rows: Sequence[Mapping[str, Any]], part: str, key: str) -> str:
    return str(value_of([row[part][key] for row in rows])) if all(r[part] for r in rows) else "–"


def _sentence(dataset: str, rows: Sequence[Mapping[str, Any]]) -> str:
    rows = [row for row in rows if row["halves"]]  # none where a frame is a whole recording
    top1 = {
        method: fmean(row["halves"]["top1"] for row in rows if row["method"] == method)
        for method in dict.fromkeys(row["method"] for row in rows)
    }
    if "cmsc" not in top1:
        return ""
    first = next(row for row in rows if row["method"] == "cmsc")
    shares = ", ".join(
        f"{paper.METHOD_TITLES[method].replace(',', '')} {100 * share:.0f} %"
        for method, share in sorted(top1.items(), key=lambda one: -one[1])
    )
    among, seconds = first["halves"]["among"], first["halves"]["frame"]
    return (
        f"Search, on unseen patients of {paper.DATASET_TITLES[dataset]}: how often the nearest of "
        f"{among:,} second halves of recordings belongs to the same recording as the first half "
        f"({seconds:g} s frames for all methods): {shares}."
    )

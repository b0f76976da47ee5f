"""Results of the comparison as one JSON document: rows of scores, and paired differences."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clocs.errors import SettingError
from clocs.evaluation.bootstrap import interval
from clocs.experiments.duel import Drawn
from clocs.experiments.ledger import Run, open_ledger, unpack_draws
from clocs.files import PUBLIC, file_error, write_atomic
from research.many_leads.items import SCRATCH, WINNER

FILE = "many-leads.json.xz"
UNTRAINED = "random-bn"
_DIGITS, _DRAW_DIGITS = 5, 4
_SCORES = (
    "auc", "auc_mean", "ci95", "auc_validation", "auc_validation_mean", "ap_mean", "f1_mean",
    "auc_per_class", "undefined_classes", "labelled", "test_patients", "left_out_copies", "seeds",
    "encoder_seeds", "embedding_dim", "settings", "tried", "weights", "per", "by", "split",
)  # fmt: skip
_TRAINING = ("weights", "sha256", "metrics", "training")
_ANALYSES = (
    "same", "other", "rows", "dim", "pairs", "patients", "readout",
)  # fmt: skip

Row = dict[str, Any]


@dataclass(frozen=True)
class StudyResults:
    """What the report shows; the fields are those of the JSON file."""

    recipe: Mapping[str, Any]
    data: Mapping[str, str]  # content hashes, by dataset
    versions: Sequence[Mapping[str, str]]
    pretrainings: Sequence[Row]
    scores: Sequence[Row]
    analyses: Sequence[Row]
    differences: Sequence[Row]
    again: Sequence[Row] = ()  # what a later run has computed once more, with encoders of its own


def read_runs(folders: Iterable[Path]) -> StudyResults:
    """The finished items of some folders of runs; of an item in several, the last one."""
    runs: dict[str, Run] = {}
    packed: dict[str, bytes] = {}
    facts: dict[str, Any] = {}
    for folder in folders:
        with closing(open_ledger(folder, create=False)) as ledger:
            own = {name: run for name, run in ledger.runs().items() if run.state == "done"}
            runs |= own
            draws = ledger.draws().items()
            packed |= {k: v for k, v in draws if k in own and isinstance(v, bytes)}
            for name, value in ledger.facts().items():
                if name.startswith("data of") and facts.setdefault(name, value) != value:
                    raise SettingError(
                        f"{folder} holds results of other data than the folders before"
                    )
                facts[name] = value
    if not runs:
        raise SettingError("there is no finished item to report; run the comparison first")
    versions = {json.dumps(run.versions, sort_keys=True): run.versions for run in runs.values()}
    rows = {name: row_of(run) for name, run in runs.items()}
    scores = [row for row in rows.values() if "auc_mean" in row]
    unpacked = {name: unpack_draws(content) for name, content in packed.items()}
    for row in scores:
        if row["factors"] is not None and row["name"] in unpacked:
            row["draws"] = unpacked[row["name"]].round(_DRAW_DIGITS).tolist()
    return StudyResults(
        recipe=facts.get("recipe", {}),
        data={k.removeprefix("data of "): v for k, v in facts.items() if k.startswith("data of ")},
        versions=list(versions.values()),
        pretrainings=[row for row in rows.values() if row["kind"] == "pretrain"],
        scores=scores,
        analyses=[r for r in rows.values() if "auc_mean" not in r and r["kind"] != "pretrain"],
        differences=differences(scores, unpacked),
    )


def joined(found: Sequence[StudyResults]) -> StudyResults:
    """All of them; of an item in several, the last one."""
    first, *others = found
    for one in others:
        if any(one.data[name] != first.data.get(name, one.data[name]) for name in one.data):
            raise SettingError("the runs are of other data than the report before them")
        rows = {
            field: [
                *{r["name"]: r for r in (*getattr(first, field), *getattr(one, field))}.values()
            ]
            for field in ("pretrainings", "scores", "analyses")
        }
        first = replace(
            first,
            recipe={**first.recipe, **one.recipe},
            data={**first.data, **one.data},
            versions=[*first.versions, *(own for own in one.versions if own not in first.versions)],
            differences=[*first.differences, *one.differences],
            **rows,
        )
    return first


def drawn_in(results: StudyResults) -> Drawn:
    """Of the factorial, what there are draws for."""
    return {
        (row["method"], row["dataset"], tuple(row["factors"])): (row["auc"], np.array(row["draws"]))
        for row in results.scores
        if "draws" in row
    }


def row_of(run: Run) -> Row:
    """One finished item, compactly."""
    result, settings = run.result or {}, run.settings
    encoder = settings if run.kind == "pretrain" else settings["encoder"]
    wanted: tuple[str, ...]
    row: Row = {
        "name": run.name,
        "kind": run.kind,
        "seconds": run.seconds,
        "version": run.versions.get("clocs"),
        "device": run.versions.get("device"),
        "method": encoder["method"],
        "datasets": encoder["datasets"],
        "most_leads": encoder["most_leads"],
        "network": encoder["encoder"],
        "factors": encoder.get("factors"),
    }
    if run.kind == "pretrain":
        row["seed"], wanted = settings["seed"], _TRAINING
    elif "kind" in settings:
        row |= {"dataset": settings["dataset"], "tested_on": settings["other"]}
        wanted = _ANALYSES
    else:
        row |= {name: settings[name] for name in ("dataset", "protocol", "share", "leads")}
        row["encoders"], wanted = settings["seeds"], _SCORES
    row |= {name: result[name] for name in wanted if name in result}
    if settings.get("conditions"):
        row["conditions"] = [
            {name: one[name] for name in ("condition", "auc_mean", "ci95")}
            for one in result["conditions"]
        ]
    rounded: Row = _rounded(row)
    return rounded


def differences(scores: Sequence[Row], draws: Mapping[str, Any]) -> list[Row]:
    """Paired differences with intervals: against what is untrained, and of the winner to others."""
    made = []
    for one in scores:
        for other in scores:
            rival = SCRATCH if one["protocol"] == "finetune" else UNTRAINED
            pair = one["method"], other["method"]
            if pair[0] == pair[1] or not (pair[1] == rival or pair[0] == WINNER):
                continue
            keys = ("protocol", "dataset", "share", "leads", "encoders", "seeds", "datasets")
            alike = all(one[key] == other[key] for key in keys)
            plain = not any(
                "conditions" in row or row["most_leads"] or row["network"] or row.get("factors")
                for row in (one, other)
            )
            known = one["name"] in draws and other["name"] in draws
            defined = None not in (one["auc_mean"], other["auc_mean"])
            if not (alike and plain and known and defined):
                continue
            a, b = draws[one["name"]], draws[other["name"]]
            count = min(len(a), len(b))
            around = interval(np.asarray(a[:count] - b[:count]))
            row = {"one": one["name"], "other": other["name"], "methods": list(pair)}
            row |= {key: one[key] for key in ("protocol", "dataset", "share", "encoders")}
            row |= {"difference": one["auc_mean"] - other["auc_mean"], "ci95": around}
            made.append(_rounded(row))
    return made


def write(results: StudyResults, folder: Path) -> Path:
    """Write the JSON file into a folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    text = json.dumps(vars(results), ensure_ascii=False, allow_nan=False)
    write_atomic(path, lzma.compress(text.encode()), mode=PUBLIC)
    return path


def read(path: Path) -> StudyResults:
    """What `write` wrote."""
    try:
        return StudyResults(**json.loads(lzma.decompress(path.read_bytes())))
    except OSError as error:
        raise file_error(error, path, doing="read") from error
    except (ValueError, TypeError, lzma.LZMAError) as error:
        raise SettingError(f"{path} is no file of results ({error}); write it again") from error


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value

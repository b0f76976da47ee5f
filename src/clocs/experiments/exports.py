"""A report's results as JSON files, and back: so that reports can include runs made elsewhere.

`runs.json` lists every run but the scores, which are in one file per table (`table-1.json`, …), as
`clocs evaluate --json` prints them; each row there names its run.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from clocs.errors import ClocsWarning, SettingError
from clocs.experiments.grid import GRIDS, grid
from clocs.experiments.ledger import FILE, Run, open_ledger
from clocs.experiments.results import Results
from clocs.files import PUBLIC, file_error, write_atomic

RUNS = "runs.json"


def open_results(folder: Path, *more: Path, keep_earlier: bool = False) -> Results:
    """Read folders of runs or of reports; where two have a run, the completed one counts.

    With `keep_earlier`, where `folder` and another have different results of a cell, the other's
    counts; without, that is an error.
    """
    results = _open_one(folder)
    for other in more:
        results = _merged(folder, results, other, _open_one(other), keep_earlier)
    return results


def write_exports(results: Results, out: Path) -> None:
    """Write `runs.json` and one file per table that has results."""
    listed: set[str] = set()
    for name in GRIDS:
        rows = list(_rows(results, name))
        listed.update(row["run"] for row in rows)
        if rows:
            _write(out / f"{name}.json", rows)
    runs = []
    for run in results.runs.values():
        row = asdict(run)
        del row["versions"]
        runs.append(row | ({"result": None} if run.name in listed else {}))
    versions = [dict(own) for own in results.versions]
    start = json.dumps({"facts": dict(results.facts), "versions": versions}, ensure_ascii=False)
    _write(out / RUNS, runs, start[:-1] + ', "runs": [', "]}")


def _rows(results: Results, name: str) -> Iterator[dict[str, Any]]:
    """What a table's cells gave, with the run and the encoder's settings in front."""
    for cell in grid(name):
        run = results.run(cell)
        if run is not None and run.state == "done" and run.result is not None:
            yield {"run": run.name, "pretraining": asdict(cell.pretraining), **run.result}


def _write(path: Path, rows: Iterable[Any], start: str = "[", end: str = "]") -> None:
    """Write JSON with one row per line, so that a changed row is a changed line."""
    texts = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    text = start + "\n" + ",\n".join(texts) + "\n" + end + "\n"
    write_atomic(path, text.encode(), mode=PUBLIC)


def _open_one(folder: Path) -> Results:
    if not (folder / FILE).is_file() and (folder / RUNS).is_file():
        return _read_exports(folder)
    with closing(open_ledger(folder, create=False)) as ledger:
        runs = ledger.runs()
        made_by = {json.dumps(run.versions, sort_keys=True) for run in runs.values()} - {"{}"}
        return Results(runs, ledger.facts(), [json.loads(text) for text in sorted(made_by)])


def _read_exports(folder: Path) -> Results:
    try:
        content = json.loads((folder / RUNS).read_text(encoding="utf-8"))
        scores: dict[str, dict[str, Any]] = {}
        for path in (folder / f"{name}.json" for name in GRIDS):
            for row in json.loads(path.read_text(encoding="utf-8")) if path.is_file() else ():
                del row["pretraining"]
                scores[row.pop("run")] = row
        runs = {row["name"]: Run(**row, versions={}) for row in content["runs"]}
        runs |= {name: replace(runs[name], result=result) for name, result in scores.items()}
        return Results(runs, content["facts"], content["versions"])
    except OSError as error:
        raise file_error(error, folder / RUNS, doing="read") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise SettingError(
            f"{folder} holds no results that can be read ({error!r}); "
            "write them again with `clocs report`"
        ) from error


def _merged(
    folder: Path, first: Results, other: Path, second: Results, keep_second: bool
) -> Results:
    """Both; refuses two values for one fact, and two results of one cell."""
    differ = [name for name, value in first.facts.items() if second.facts.get(name, value) != value]
    if differ:
        raise SettingError(
            f"{folder} and {other} differ in the {' and the '.join(differ)}; report them separately"
        )
    runs = dict(second.runs)
    twice = []
    for name, run in first.runs.items():
        theirs = runs.get(name)
        if theirs is None or theirs.state != "done":
            runs[name] = run
        elif run.state == "done" and run.kind != "pretrain" and run.result != theirs.result:
            twice.append(name)
    differing = f"{folder} and {other} hold different results of {', '.join(twice)}"
    if twice and not keep_second:
        raise SettingError(f"{differing}; keep those of {other} with `keep_earlier`")
    if twice:
        warnings.warn(ClocsWarning(f"{differing}; kept those of {other}"), stacklevel=4)
    versions = {json.dumps(own, sort_keys=True): own for own in (*first.versions, *second.versions)}
    return Results(runs, {**second.facts, **first.facts}, list(versions.values()))

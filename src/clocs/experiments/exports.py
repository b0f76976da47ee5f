"""A report's results as JSON files, and back: so that reports can include runs made elsewhere.

`runs.json` lists every run but the scores, which are in one file per table (`table-1.json`, …), as
`clocs evaluate --json` prints them; each row there names its run. `draws.safetensors` has the draws
from which results are compared.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from clocs.errors import ClocsWarning, SettingError, first_of
from clocs.experiments import draws
from clocs.experiments.grid import GRIDS, Cell, grid
from clocs.experiments.ledger import FILE, Run, open_ledger
from clocs.experiments.results import Results, papers
from clocs.experiments.runner import last_line
from clocs.experiments.settings import ADDED, settings_of
from clocs.experiments.twelve_leads import set_apart
from clocs.files import PUBLIC, file_error, write_atomic

RUNS = "runs.json"
_SHOWN = 3  # names in a message


def open_results(folder: Path, *more: Path, keep_earlier: bool = False) -> Results:
    """Read folders of runs or of reports; where two have a run, the completed one counts.

    With `keep_earlier`, where `folder` and another have different results of a cell, the other's
    counts, unless only the new one has draws to compare it by; without, that is an error.
    """
    results = _open_one(folder)
    for other in more:
        theirs = _open_one(other)
        ours, theirs = set_apart(results, theirs), set_apart(theirs, results)
        results = _merged(folder, ours, other, theirs, keep_earlier)
    return results


def not_known(cells: Sequence[Cell], folders: Sequence[Path]) -> list[Cell]:
    """The cells that none of these folders of runs or reports has a result of."""
    known = [open_results(folder) for folder in folders]  # which may have different results
    return [cell for cell in cells if all(one.result(cell) is None for one in known)]


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
        runs.append(asdict(run) | ({"result": None} if run.name in listed else {}))
    if results.draws:
        draws.write_draws(results.draws, out / draws.FILE)
    versions = [dict(own) for own in results.versions]
    start = json.dumps({"facts": dict(results.facts), "versions": versions}, ensure_ascii=False)
    _write(out / RUNS, runs, start[:-1] + ', "runs": [', "]}")


def _rows(results: Results, name: str) -> Iterator[dict[str, Any]]:
    """What a table's cells gave, with the run and all settings in front."""
    for cell in grid(name):
        run = results.run(cell)
        if run is not None and run.state == "done" and run.result is not None:
            settings = settings_of(cell, run, simulated=results.simulated)
            yield settings | {"paper": _beside(results, cell)} | run.result


def _beside(results: Results, cell: Cell) -> dict[str, float | None] | None:
    """The paper's result, and ours less it: by logits where the paper's are."""
    theirs = papers(cell)
    if theirs is None:
        return None
    return asdict(theirs) | {"difference": results.difference(cell)}


def _write(path: Path, rows: Iterable[Any], start: str = "[", end: str = "]") -> None:
    """Write JSON with one row per line, so that a changed row is a changed line."""
    texts = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    text = start + "\n" + ",\n".join(texts) + "\n" + end + "\n"
    write_atomic(path, text.encode(), mode=PUBLIC)


def _open_one(folder: Path) -> Results:
    if not (folder / FILE).is_file() and (folder / RUNS).is_file():
        return _read_exports(folder)
    with closing(open_ledger(folder, create=False)) as ledger:
        runs = {name: replace(run, error=_shared(run.error)) for name, run in ledger.runs().items()}
        made_by = {json.dumps(run.versions, sort_keys=True) for run in runs.values()} - {"{}"}
        found = {name: draws.Draws.unpack(own) for name, own in ledger.draws().items()}
        made = [json.loads(text) for text in sorted(made_by)]
        return Results(runs, ledger.facts(), made, found)


def _shared(error: str | None) -> str | None:
    """What went wrong in one line, without folders of this machine: reports are passed on."""
    line = last_line(error).replace(str(Path.home()), "~")
    return None if error is None else re.sub(r"[^\s'\"(]*[/\\](?=\S)", "", line)


def _read_exports(folder: Path) -> Results:
    try:
        content = json.loads((folder / RUNS).read_text(encoding="utf-8"))
        # Runs of older reports have no versions of their own; often all have one.
        made_by = {own["clocs"] for own in content["versions"]}
        common = {"versions": {"clocs": made_by.pop()} if len(made_by) == 1 else {}}
        runs = {row["name"]: Run(**common | row) for row in content["runs"]}
        for path in (folder / f"{name}.json" for name in GRIDS):
            for row in json.loads(path.read_text(encoding="utf-8")) if path.is_file() else ():
                result = {key: value for key, value in row.items() if key not in ADDED}
                runs[row["run"]] = replace(runs[row["run"]], result=result)
                if row["pretraining"]["method"] == "mtssl" and "input" not in row:
                    runs[row["run"]] = replace(runs[row["run"]], result=None, state="waiting")
        found = draws.read_draws(folder / draws.FILE)
        return Results(runs, content["facts"], content["versions"], found)
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
        elif run.state == "done" and run.kind != "pretrain" and _differ(run.result, theirs.result):
            if keep_second and name in first.draws and name not in second.draws:
                runs[name] = run
            else:
                twice.append(name)
    differing = f"{folder} and {other} hold different results of {first_of(twice, _SHOWN)}"
    if twice and not keep_second:
        raise SettingError(f"{differing}; keep those of {other} with `keep_earlier`")
    if twice:
        warnings.warn(ClocsWarning(f"{differing}; kept those of {other}"), stacklevel=4)
    versions = {json.dumps(own, sort_keys=True): own for own in (*first.versions, *second.versions)}
    found = {}
    for name, run in runs.items():  # a result keeps its own draws
        for source in (first, second):
            same = source.runs.get(name)
            if same is not None and not _differ(same.result, run.result) and name in source.draws:
                found[name] = source.draws[name]
    return Results(runs, {**second.facts, **first.facts}, list(versions.values()), found)


def _differ(first: dict[str, Any] | None, second: dict[str, Any] | None) -> bool:
    """Whether two results disagree in what both have; newer versions may add scores."""
    if first is None or second is None:
        return first is not second
    return any(first[key] != second[key] for key in first.keys() & second.keys())

"""Results: our value and the paper's for each cell, or why there is none.

They are read from folders of runs, and from reports, which keep them in two files: `runs.json.xz`
has every run with its settings and scores, `draws.safetensors` the draws by which two results are
compared. So reports can include runs made elsewhere.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import hypot, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from clocs.errors import SettingError, StoreError, first_of
from clocs.experiments import ledger as ledgers
from clocs.experiments import paper
from clocs.experiments.data import leads_for
from clocs.experiments.grid import Cell, paper_values, run_name
from clocs.experiments.ledger import FILE, Draws, Run, last_line, open_ledger
from clocs.files import PUBLIC, file_error, write_atomic
from clocs.recording import STANDARD_LEADS
from clocs.sealed import ArrayFile

RUNS, DRAWS = "runs.json.xz", "draws.safetensors"
TWELVE = ", twelve leads"  # in the names of facts of a second store of a dataset
_MAX_BYTES = 2**30  # of unpacked runs
_LEVELS = 1023  # of a draw that is published: 10 bits, steps of about 0.0001
_SHOWN = 3  # names in a message
_DRAWS = ArrayFile(
    "a file of draws", key="clocs", format=1, remedy="write it again with `clocs reproduce report`"
)


@dataclass(frozen=True)
class Value:
    """An AUC as mean and standard deviation over seeds; no deviation for a single seed."""

    mean: float
    std: float | None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.std is None else f" ± {self.std:.3f}")


@dataclass(frozen=True)
class Results:
    """Everything that the report shows."""

    runs: Mapping[str, Run]  # by name
    facts: Mapping[str, Any]  # what holds for all runs: their data and their profile
    versions: Sequence[Mapping[str, str]] = ()  # software and devices that made them, each once
    draws: Mapping[str, Draws] = field(default_factory=dict)  # by the name of their run

    @property
    def simulated(self) -> bool:
        """Whether the data are simulated."""
        return (self.facts.get("profile") or {}).get("name") == "simulated"

    @cached_property
    def seeds(self) -> list[int]:
        """Every number of seeds that was run, the largest first."""
        return sorted({run.seeds for run in self.runs.values()}, reverse=True)

    def run(self, cell: Cell) -> Run | None:
        """Its completed run with the most seeds, else any run."""
        found = [self.runs.get(run_name(cell, seeds)) for seeds in self.seeds]
        known = [run for run in found if run is not None]
        return next((run for run in known if run.state == "done"), known[0] if known else None)

    def result(self, cell: Cell) -> dict[str, Any] | None:
        run = self.run(cell)
        return run.result if run is not None and run.state == "done" else None

    def left_out(self, cell: Cell) -> int:
        """How many test recordings an earlier version left out for a copy trained on; else 0."""
        result = self.result(cell) or {}
        return 0 if result.get("copies_together") else int(result.get("left_out_copies") or 0)

    def draws_of(self, cell: Cell) -> Draws | None:
        run = self.run(cell)
        return self.draws.get(run.name) if run is not None and run.state == "done" else None

    def ours(self, cell: Cell) -> Value | None:
        """Our test AUC."""
        result = self.result(cell)
        if result is None or result.get("auc_mean") is None:
            return None
        return Value(result["auc_mean"], result["auc_std"])

    def interval(self, cell: Cell) -> tuple[float, float] | None:
        """The 95 % interval of our test AUC, over seeds and patients.

        Earlier versions, which had no AUC of validation patients, took it over patients alone. To
        those the spread of the seeds is added, as if independent of the patients.
        """
        result = self.result(cell) or {}
        if not result.get("ci95"):
            return None
        low, high = result["ci95"]
        if "auc_validation" not in result and len(result["auc"]) > 1:
            mean, least, most = over_seeds_alone(result["auc"])
            low = mean - hypot(mean - low, mean - least)
            high = mean + hypot(high - mean, most - mean)
        return max(low, 0.0), min(high, 1.0)

    def logits(self, cell: Cell) -> Value | None:
        """Our test AUC of raw logits, where that is what the paper prints; else None."""
        if cell.downstream in paper.MULTI_LABEL:
            return None
        return self.over_seeds(cell, "auc_logits")

    def over_seeds(self, cell: Cell, metric: str) -> Value | None:
        """Any score that the result has for each seed."""
        found = [x for x in (self.result(cell) or {}).get(metric) or () if x is not None]
        return value_of(found) if found else None

    def beside(self, cell: Cell) -> Value | None:
        """Our test AUC as the paper computed its own: of logits, or of probabilities."""
        return self.logits(cell) or self.ours(cell)

    def difference(self, cell: Cell) -> float | None:
        """Ours less the paper's, like with like."""
        ours, theirs = self.beside(cell), papers(cell)
        return None if ours is None or theirs is None else ours.mean - theirs.mean

    def why_not(self, cell: Cell) -> str:
        """Why there is no result, in a few words."""
        p = cell.pretraining
        for dataset in (p.dataset, cell.downstream):
            present = self.facts.get(f"leads of {dataset}")
            if p.leads == len(STANDARD_LEADS):
                present = self.facts.get(f"leads of {dataset}{TWELVE}", present)
            if present is not None and leads_for(p.leads, tuple(present)) is None:
                return f"needs a {p.leads}-lead store"
        run = self.run(cell)
        if run is not None and run.state == "failed":
            return f"failed: {last_line(run.error)}"
        for seeds in self.seeds:
            encoder = self.runs.get(run_name(p, seeds))
            if encoder is not None and encoder.state == "failed":
                return f"its pre-training failed: {last_line(encoder.error)}"
        return "not run"


def value_of(numbers: Sequence[float]) -> Value:
    """Mean and sd of numbers, one per seed."""
    return Value(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None)


def over_seeds_alone(numbers: Sequence[float]) -> tuple[float, float, float]:
    """Mean of numbers, one per seed, and the ends of its 95 % interval, by Student's t."""
    count, mean = len(numbers), fmean(numbers)
    half = float(stdtrit(count - 1, 0.975)) * stdev(numbers) / sqrt(count)
    return mean, mean - half, mean + half


def papers(cell: Cell) -> Value | None:
    """What the paper prints for a cell."""
    row = paper_values().get(cell)
    return None if row is None else Value(row.mean, row.std)


def open_results(folder: Path, *more: Path) -> Results:
    """Read folders of runs or of reports; where two have a run, the completed one counts.

    Raises:
        SettingError: Two folders differ in their data, or in the result of a cell.
    """
    results = _open_one(folder)
    for other in more:
        theirs = _open_one(other)
        ours, theirs = set_apart(results, theirs), set_apart(theirs, results)
        results = _merged(folder, ours, other, theirs)
    return results


def not_known(cells: Sequence[Cell], folders: Sequence[Path]) -> list[Cell]:
    """The cells that none of these folders of runs or reports has a result of."""
    known = [open_results(folder) for folder in folders]  # which may have different results
    return [cell for cell in cells if all(one.result(cell) is None for one in known)]


def write_results(results: Results, out: Path) -> None:
    """Write `runs.json.xz`, and the draws that comparisons use: all but of so many patients."""
    content = {
        "facts": dict(results.facts),
        "versions": [dict(own) for own in results.versions],
        "runs": [vars(run) for run in results.runs.values()],
    }
    text = json.dumps(_rounded(content), ensure_ascii=False, allow_nan=False)
    write_atomic(out / RUNS, lzma.compress(text.encode()), mode=PUBLIC)
    whole = {n: run for n, run in results.runs.items() if run.settings.get("patients") is None}
    if kept := {name: own for name, own in results.draws.items() if name in whole}:
        write_draws(kept, out / DRAWS)


def _rounded(content: Any) -> Any:
    """As it is published: numbers of seven digits take half the space."""
    return json.loads(json.dumps(content), parse_float=lambda text: float(f"{float(text):.7g}"))


def _open_one(folder: Path) -> Results:
    if (folder / RUNS).is_file() and not (folder / FILE).is_file():
        return _read_report(folder)
    with closing(open_ledger(folder, create=False)) as ledger:
        runs = {name: replace(run, error=_shared(run.error)) for name, run in ledger.runs().items()}
        made_by = {json.dumps(run.versions, sort_keys=True) for run in runs.values()} - {"{}"}
        found = {name: ledgers.unpack_draws(own) for name, own in ledger.draws().items()}
        return Results(runs, ledger.facts(), [json.loads(text) for text in sorted(made_by)], found)


def _shared(error: str | None) -> str | None:
    """What went wrong in one line, without folders of this machine: reports are passed on."""
    line = last_line(error).replace(str(Path.home()), "~")
    return None if error is None else re.sub(r"[^\s'\"(]*[/\\](?=\S)", "", line)


def _read_report(folder: Path) -> Results:
    path = folder / RUNS
    try:
        text = lzma.LZMADecompressor().decompress(path.read_bytes(), max_length=_MAX_BYTES)
        content = json.loads(text)
        runs = {row["name"]: Run(**row) for row in content["runs"]}
        return Results(runs, content["facts"], content["versions"], read_draws(folder / DRAWS))
    except OSError as error:
        raise file_error(error, path, doing="read") from error
    except (
        KeyError, TypeError, ValueError, AttributeError, RecursionError, lzma.LZMAError,
    ) as error:  # fmt: skip
        raise SettingError(
            f"{folder} holds no results that can be read ({error!r}); "
            "write them again with `clocs reproduce report`"
        ) from error


def _merged(folder: Path, first: Results, other: Path, second: Results) -> Results:
    """Both; refuses two values for one fact, and two results of one cell.

    Patients are counted otherwise where earlier versions took copies of a recording for two.
    """
    differ = [
        name
        for name, value in first.facts.items()
        if second.facts.get(name, value) != value and not name.startswith("counts of ")
    ]
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
            twice.append(name)
    if twice:
        raise SettingError(
            f"{folder} and {other} hold different results of {first_of(twice, _SHOWN)}; report "
            "them separately"
        )
    versions = {json.dumps(own, sort_keys=True): own for own in (*first.versions, *second.versions)}
    draws = {**first.draws, **second.draws}
    return Results(runs, {**second.facts, **first.facts}, list(versions.values()), draws)


def _differ(first: dict[str, Any] | None, second: dict[str, Any] | None) -> bool:
    """Whether two results disagree in what both have; newer versions may add scores."""
    ours, theirs = _rounded(first or {}), _rounded(second or {})
    return any(ours[key] != theirs[key] for key in ours.keys() & theirs.keys())


def set_apart(results: Results, other: Results) -> Results:
    """`results` ready to be joined with `other`, which may have a dataset in fewer leads.

    Two stores of one dataset differ in their data: the facts of the twelve-lead store are then
    called '…, twelve leads', and its runs on four of the twelve leads are left out, as they belong
    to the other store.
    """
    here, there = _with_twelve(results), _with_twelve(other)
    known = {dataset for dataset in paper.DATASET_TITLES if f"leads of {dataset}" in other.facts}
    apart = (here & known) - there
    if not apart:
        return results
    names = [f"{what} of {dataset}" for what in ("data", "leads", "counts") for dataset in apart]
    renamed = {name: name + TWELVE for name in names}
    runs = {name: run for name, run in results.runs.items() if not _uses_four(run, apart)}
    return replace(
        results,
        runs=runs,
        facts={renamed.get(name, name): value for name, value in results.facts.items()},
        draws={name: own for name, own in results.draws.items() if name in runs},
    )


def _with_twelve(results: Results) -> set[str]:
    """The datasets that have all twelve leads."""
    leads = {name: results.facts.get(f"leads of {name}") or () for name in paper.DATASET_TITLES}
    return {name for name, own in leads.items() if set(STANDARD_LEADS) <= set(own)}


def _uses_four(run: Run, datasets: Set[str]) -> bool:
    encoder = run.settings.get("pretraining", run.settings)
    used = {encoder["dataset"], run.settings.get("downstream")}
    return encoder["leads"] != len(STANDARD_LEADS) and bool(used & datasets)


def write_draws(draws: Mapping[str, Draws], path: Path) -> None:
    """Write the draws of runs, by name: all high bytes, then all low bytes, compressed."""
    names = sorted(draws)
    encoded = [ledgers.encode_draws(draws[name], _LEVELS) for name in names]
    codes = np.full((len(names), max(len(own) for _, own in encoded)), ledgers.NO_DRAW, np.uint16)
    for row, (_, own) in zip(codes, encoded, strict=True):
        row[: len(own)] = own
    planes = np.stack([codes >> 8, codes & 255]).astype(np.uint8)
    arrays: dict[str, NDArray[Any]] = {
        "scale": np.array([scale for scale, _ in encoded], np.float64),
        "packed": np.frombuffer(lzma.compress(planes.tobytes()), np.uint8),
    }
    _DRAWS.write(path, {"runs": names}, arrays, mode=PUBLIC)


def read_draws(path: Path) -> dict[str, Draws]:
    """What `write_draws` wrote; nothing where there is no file."""
    if not path.is_file():
        return {}
    facts, arrays = _DRAWS.read(path)
    try:
        names = facts["runs"]
        planes = lzma.LZMADecompressor().decompress(arrays["packed"], max_length=_MAX_BYTES)
        high, low = np.frombuffer(planes, np.uint8).reshape(2, len(names), -1)
        rows = zip(names, arrays["scale"], high.astype(np.uint16) << 8 | low, strict=True)
        return {name: ledgers.decode_draws(scale, own) for name, scale, own in rows}
    except (KeyError, TypeError, ValueError, lzma.LZMAError) as error:
        raise StoreError(f"{path} is not {_DRAWS.what} ({error!r}); {_DRAWS.remedy}") from error

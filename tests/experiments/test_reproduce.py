"""`clocs reproduce` and `clocs report` as a person types them."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from click.testing import CliRunner

from clocs.cli.main import Root
from clocs.errors import TrainingError
from clocs.experiments.estimate import estimate
from clocs.experiments.grid import grid
from clocs.experiments.ledger import Ledger
from clocs.experiments.reproduce import reproduce
from command_line import clocs as command

# what a machine with torch, numpy, scipy and safetensors alone does not have
ABSENT = ["fastexcel", "jinja2", "matplotlib", "numcodecs", "pandas", "platformdirs"]
ABSENT += ["polars", "rich", "sklearn", "soundfile", "click", "wfdb", "xxhash", "zarr"]
BARE = f"""
import sys
for name in {ABSENT}:
    sys.modules[name] = None
import clocs
print(clocs.reproduce(
    "table-1", dataset="synthetic", out=sys.argv[1], seeds=1, device="cpu",
    on_progress=lambda message, done, total: print(message),
))
"""


def clocs(*arguments: str) -> dict[str, Any]:
    """A command that succeeds, and the JSON it prints."""
    done = CliRunner().invoke(Root(), [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def table_1(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Table 1 on simulated data, end to end, where only the least is installed."""
    folder = tmp_path_factory.mktemp("runs")
    given = ["table-1", "--dataset", "synthetic", "--out", str(folder), "--seeds", "1"]
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return folder, {"words": done.stdout, "arguments": given}


def test_table_1_runs_small_end_to_end_on_a_bare_machine(
    table_1: tuple[Path, dict[str, Any]],
) -> None:
    folder, told = table_1
    ledger = Ledger(folder)
    runs = ledger.runs()
    ledger.close()
    assert len(runs) == 2 * len(grid("table-1"))
    assert {run.state for run in runs.values()} == {"done"}
    scored = [run.result or {} for run in runs.values() if run.kind == "linear"]
    assert {result["protocol"] for result in scored} == {"linear"}
    assert "16 results computed" in told["words"]
    fleets = [line for line in told["words"].splitlines() if "scored 8 encoders" in line]
    assert len(fleets) == 2  # one for each dataset, all encoders at once


def test_the_report_of_simulated_runs_says_so(table_1: tuple[Path, dict[str, Any]]) -> None:
    page = Path(clocs("reproduce", "report", "--out", str(table_1[0]))["page"]).read_text(
        encoding="utf-8"
    )
    assert "Simulated data." in page
    assert "16 of 16 results computed" in page


def test_a_second_call_finds_all_done(table_1: tuple[Path, dict[str, Any]]) -> None:
    outcome = clocs("reproduce", *table_1[1]["arguments"])
    assert (outcome["done"], outcome["left"], outcome["failed"]) == (16, 0, 0)


def test_the_table_is_printed_beside_the_papers(table_1: tuple[Path, dict[str, Any]]) -> None:
    lines = command("reproduce", *table_1[1]["arguments"]).stdout.splitlines()
    (cmsc,) = (line for line in lines if "CMSC " in line)
    assert "(0.896)" in cmsc and "(0.715)" in cmsc  # as printed in table 1
    assert any("simulated recordings" in line for line in lines)


def test_results_of_another_folder_are_not_computed_again(
    table_1: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    known = ["table-1", "--dataset", "synthetic", "--seeds", "1", "--with", str(table_1[0])]
    outcome = clocs("reproduce", *known, "--out", str(tmp_path))
    assert (outcome["done"], outcome["left"], outcome["failed"]) == (0, 0, 0)
    found = estimate(
        ["table-1", "table-2"], out=tmp_path, dataset="synthetic", seeds=1, known=[table_1[0]]
    )
    assert found.cells() == len(set(grid("table-1") + grid("table-2"))) - 16
    assert not (tmp_path / "pretrained").exists()


def test_a_dry_run_says_what_is_done_and_what_is_left(
    table_1: tuple[Path, dict[str, Any]],
) -> None:
    folder = table_1[0]
    found = estimate(["table-1", "table-2"], out=folder, dataset="synthetic", seeds=1)
    assert found.cells("done") == 16
    done = {unit.name for unit in found.units if unit.state == "done"}
    assert "chapman-4leads-e128-cmsc" in done


def test_a_dry_run_of_everything_says_what_needs_twelve_leads(tmp_path: Path) -> None:
    found = estimate(["all"], out=tmp_path / "none")
    assert found.cells() == len(grid("all"))
    assert not (tmp_path / "none").exists()  # a dry run writes nothing
    assert max(map(len, found.lines())) <= 80  # no row is wrapped by a terminal


def test_bad_input_gets_one_sentence(tmp_path: Path) -> None:
    for arguments, words in (
        (["table-9", "--dataset", "synthetic"], "no experiment 'table-9'"),
        (["table-1"], "--stores"),
        (["table-1", "--stores", str(tmp_path / "nowhere")], "is not a folder"),
        (["table-1", "--dataset", "mnist"], "synthetic as --dataset"),
    ):
        said = command("reproduce", *arguments, "--out", tmp_path / "runs", code=1).stderr
        assert words in said and len(said.splitlines()) == 1


def test_threads_share_a_grid_and_do_each_run_once(
    tmp_path: Path, table_1: tuple[Path, dict[str, Any]]
) -> None:
    given = ["table-1", "--dataset", "synthetic", "--seeds", "1", "--only", "cmsc,random"]
    found = clocs("reproduce", *given, "--out", str(tmp_path), "--device", "cpu", "--parallel", "3")
    assert found["left"] == found["failed"] == 0
    both = [Ledger(folder).runs() for folder in (tmp_path, table_1[0])]
    assert {run.attempts for run in both[0].values()} == {1}
    for name, run in both[0].items():
        if run.kind != "pretrain":
            assert run.result is not None
            assert run.result["auc"] == pytest.approx((both[1][name].result or {})["auc"])


def test_a_thread_that_fails_stops_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, stopped = count(), []

    class Stand:
        def __init__(self, *_: object, stop: Event, **__: object) -> None:
            self.number, self.stop = next(order), stop

        def work(self, _: object) -> None:
            if self.number == 2:
                raise TrainingError("the disk is full")
            stopped.append(self.stop.wait(60))

    monkeypatch.setattr("clocs.experiments.reproduce.Runner", Stand)
    with pytest.raises(TrainingError, match="the disk is full"):
        reproduce("table-1", out=tmp_path, dataset="synthetic", device="cpu", parallel=3)
    assert stopped == [True, True]

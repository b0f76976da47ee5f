"""The benchmark of many recordings runs every command; here on a few."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import clocs
from compiled_code import with_compiled_code

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "million.py"
STEPS = ["prepare", "info", "pretrain", "embed", "index", "similar", "explore"]
MEASURED = ("prepare", "explore")  # as in use; others run here, each process would import torch


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc, which Linux has")
def test_every_step_of_the_benchmark_runs_and_finished_steps_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = runpy.run_path(str(BENCHMARK))
    main, measured = benchmark["main"], benchmark["run_step"]

    def run_step(name: str, step: Any, work: Path, recordings: int, *, final_map: bool) -> Any:
        if name in MEASURED:
            return measured(name, step, work, recordings, final_map=final_map)
        clocs(*step.arguments, cwd=work)
        written = benchmark["bytes_in"](work / step.out) if step.out else 0
        return benchmark["Result"](recordings, 1.0, 1.0, 2**21, 2**21, written)

    main.__globals__["run_step"] = run_step
    monkeypatch.setenv("CLOCS_CACHE", str(with_compiled_code(tmp_path / "cache")))
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "--recordings=64", f"--work={tmp_path}"])
    main()
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == STEPS
    for one in results.values():
        assert 2**20 < one["memory"] < 3 * 2**30
        assert one["recordings"] == 64 and one["processor_seconds"] > 0
    written = {name for name, one in results.items() if one["written"]}
    assert written == {"prepare", "pretrain", "embed", "index", "explore"}
    table = capsys.readouterr().out.split("\n\n")[-1]
    main()
    assert capsys.readouterr().out.strip() == table.strip()

"""The benchmark of many recordings runs every command; here on a few."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "million.py"
STEPS = ["prepare", "info", "pretrain", "embed", "index", "similar", "explore"]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc, which Linux has")
def test_every_step_of_the_benchmark_runs_and_finished_steps_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, str(BENCHMARK), "--recordings", "64", "--work", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == STEPS
    for one in results.values():
        assert 2**20 < one["memory"] < 3 * 2**30
        assert one["recordings"] == 64 and one["processor_seconds"] > 0
    written = {name for name, one in results.items() if one["written"]}
    assert written == {"prepare", "pretrain", "embed", "index", "explore"}
    table = done.stdout.split("\n\n")[-1]
    monkeypatch.setattr(sys, "argv", command[1:])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    assert capsys.readouterr().out.strip() == table.strip()

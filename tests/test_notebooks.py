"""The notebooks of the docs run from top to bottom, offline, and come with their outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs_scripts import load

NOTEBOOKS = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
run_notebook = load(NOTEBOOKS / "run.py").run_notebook


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_runs_and_its_outputs_are_kept(path: Path, tmp_path: Path) -> None:
    made = run_notebook(path, tmp_path)
    kept = json.loads(path.read_text("utf-8"))
    kinds = [
        [[output["output_type"] for output in cell.get("outputs", ())] for cell in one["cells"]]
        for one in (made, kept)
    ]
    assert kinds[0] == kinds[1]
    assert any("display_data" in outputs for outputs in kinds[0])

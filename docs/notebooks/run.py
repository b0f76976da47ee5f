"""Runs the notebooks of the docs from top to bottom and keeps what they print and draw.

    python docs/notebooks/run.py

Each runs in a folder of its own, in this process, without a network and without Jupyter.
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
import warnings
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def run_notebook(path: Path, folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of its cells, run in this folder; what fails is raised."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    names: dict[str, Any] = {}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        printed = io.StringIO()
        with chdir(folder), redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `plt.show` without a window
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
        cell["execution_count"], cell["outputs"] = number, []
        if text := printed.getvalue():
            lines = text.splitlines(keepends=True)
            cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": lines})
        for figure in map(plt.figure, plt.get_fignums()):
            drawn = io.BytesIO()
            figure.savefig(drawn, format="png", dpi=100, bbox_inches="tight")
            image = {"image/png": base64.b64encode(drawn.getvalue()).decode()}
            cell["outputs"].append({"output_type": "display_data", "data": image, "metadata": {}})
        plt.close("all")
    return notebook


def main() -> None:
    for path in sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            made = run_notebook(path, Path(folder))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main()

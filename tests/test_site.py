"""The documentation as a site: every page has its place, every link an end, nothing is fetched."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import clocs
import warm

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
ROOT = Path(__file__).resolve().parent.parent
FETCHED = re.compile(r"""<(?:script|img|iframe|link)[^>]*?(?:src|href)=["']?(?:https?:)?//""")


def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = ("-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path)
    done = warm.run(*command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*.html")}
    assert {"index.html", "commands.html", "api.html", "notebooks/few-labels.html"} <= set(pages)
    assert len(pages.keys() - {"404.html"}) <= 32
    assert {"results/table-1.txt", "models/rhythm-chapman.txt"} <= names_in(tmp_path)
    for name, page in pages.items():
        assert not FETCHED.search(page.read_text("utf-8").replace('rel="canonical"', "")), name
    reference = pages["commands.html"].read_text("utf-8")
    assert "clocs pretrain" in reference and "--temperature" in reference
    assert "&#124;" in reference.replace("|", "&#124;") and "\\|" not in reference
    assert not re.search(r"<td>[^<]*--[a-z]", reference), "an option in a sentence is code"
    python = pages["api.html"].read_text("utf-8")
    names = re.findall(r'<h3 id="clocs\.[\w.]*\.(\w+)"', python)
    assert names[0] == "prepare" and set(clocs.__all__) - {"__version__"} <= set(names)
    assert 'id="more"' not in python, "every name has its task"
    assert python.count("Counts and examples") == 1 and "<td>accuracy, calibration" not in python
    assert not re.search(r"patience,(?:(?!</tr>).)*required", python, flags=re.DOTALL)
    index = json.loads((tmp_path / "search/search_index.json").read_text("utf-8"))
    boost = {one["location"]: one.get("boost", 1) for one in index["docs"]}
    assert boost["evaluation.html"] > boost["commands.html"] > boost["results/index.html"]


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}

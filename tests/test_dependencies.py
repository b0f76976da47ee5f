"""The package declares what it imports, and imports what it declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

OPTIONAL = "optional-dependencies"
ROOT = Path(__file__).resolve().parent.parent
CALLED = {
    "faiss": "faiss-cpu",
    "prometheus_client": "prometheus-client",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
}
COMES_WITH = {"triton": "torch", "starlette": "fastapi", "pydantic": "fastapi"}
FOR_TESTS = ("dev", "docs", "kernels-test")
# imported by FastAPI to read uploads, by polars to read Excel, by fsspec to reach s3://, and by a
# recipe of docs/python.md
UNIMPORTED = {"datasets", "fastexcel", "python-multipart", "s3fs"}


def imported() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    others = found - set(sys.stdlib_module_names) - {"clocs", "__future__"}
    return {COMES_WITH.get(name, CALLED.get(name, name)) for name in others}


def declared(project: dict[str, Any], *extras: str) -> set[str]:
    listed = [*project["dependencies"], *(n for e in extras for n in project[OPTIONAL][e])]
    return {re.split(r"[<>=\[ ]", name)[0] for name in listed}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for name in project[OPTIONAL] if name not in FOR_TESTS]
    assert declared(project, *extras) - UNIMPORTED == imported()


def test_every_extra_is_installed_for_development() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for name in project[OPTIONAL] if name not in FOR_TESTS]
    assert declared(project, *extras) <= declared(project, "dev")

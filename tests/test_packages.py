"""The order of the packages, and what keeps it: no import points upwards, none runs in a circle."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"
# From bottom to top. "root" are the modules directly in src/clocs, "clocs" is its public surface.
ORDER = (
    *("root", "formats", "measurements", "datasets", "store", "frames", "kernels", "encoders"),
    *("training", "pretraining", "evaluation", "patients", "models", "figures", "experiments"),
    *("web", "service", "explorer", "clocs", "cli", "__main__"),
)
MAX_ROOT_MODULES = 14
MAX_LINES = 600


@cache
def imports() -> dict[str, set[str]]:
    """Of every module those that it imports: anywhere in it, for types as well."""
    files = {}
    for path in SRC.rglob("*.py"):
        parts = path.relative_to(SRC).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names} & files.keys()
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name} has a relative import"
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                outer = {node.module or ""} if inner - files.keys() else set()
                found[name] |= (inner | outer) & files.keys()
    return found


def package(module: str) -> str:
    """The package of a module, by its full name."""
    first = module.split(".")[1] if "." in module else ""
    if first in ("", "__main__"):
        return first or "clocs"
    return first if (SRC / "clocs" / first).is_dir() else "root"


def test_every_package_has_its_place_in_the_order() -> None:
    assert {package(module) for module in imports()} == set(ORDER)


def test_no_import_points_upwards() -> None:
    height = {name: number for number, name in enumerate(ORDER)}
    upwards = [
        f"{module} -> {other}"
        for module, others in imports().items()
        for other in others
        if height[package(other)] > height[package(module)]
    ]
    assert not upwards


def test_no_imports_run_in_a_circle() -> None:
    TopologicalSorter(imports()).prepare()  # names the circle where there is one


def test_few_modules_lie_loose_and_no_file_is_long() -> None:
    loose = [path for path in (SRC / "clocs").glob("*.py") if not path.name.startswith("__")]
    assert len(loose) <= MAX_ROOT_MODULES
    kinds = (".py", ".c", ".h", ".js", ".css")
    sources = [path for path in SRC.rglob("*.*") if path.suffix in kinds]
    assert not [path for path in sources if path.read_text("utf-8").count("\n") > MAX_LINES]


def test_no_class_name_exists_twice() -> None:
    """A private class may have the name of one elsewhere."""
    found: dict[str, list[str]] = {}
    for path in SRC.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path.name)
    assert not {name: files for name, files in found.items() if len(files) > 1}


def test_modules_that_scripts_name_exist() -> None:
    scripts = [path for path in (SRC.parent / "script").iterdir() if path.is_file()]
    text = "\n".join(path.read_text(encoding="utf-8") for path in scripts)
    named = set(re.findall(r"(?:import|from|,) (clocs(?:\.[a-z_]+)+)", text))
    assert named and named <= imports().keys()

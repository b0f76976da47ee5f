"""Rows are found by putting a module into a package."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clocs.errors import SettingError
from clocs.registry import Option, chosen_options, rows_in


@dataclass(frozen=True)
class Row:
    name: str


def package(folder: Path, name: str, **modules: str) -> str:
    (folder / name).mkdir()
    for module in ("__init__", *modules):
        text = f"from {__name__} import Row\n" + modules.get(module, "")
        (folder / name / f"{module}.py").write_text(text)
    return name


@pytest.fixture(autouse=True)
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def test_every_module_of_a_package_adds_its_rows(tmp_path: Path) -> None:
    made = package(tmp_path, "rows_a", second="c = Row('c')", first="a = Row('a')\nb = Row('b')")
    assert list(rows_in(made, Row)) == ["a", "b", "c"]


def test_an_imported_row_counts_once(tmp_path: Path) -> None:
    made = package(tmp_path, "rows_b", first="a = Row('a')", second="from rows_b.first import a")
    assert list(rows_in(made, Row)) == ["a"]


def test_two_rows_of_one_name_are_refused(tmp_path: Path) -> None:
    made = package(tmp_path, "rows_c", first="a = Row('a')", second="b = Row('a')\nc = b.name")
    # equal rows declared twice are two rows all the same
    with pytest.raises(ValueError, match="two rows of rows_c are called 'a'"):
        rows_in(made, Row)


@dataclass(frozen=True)
class Knn:
    name: str = "knn"
    options: tuple[Option, ...] = (
        Option("k", 20, "Neighbors", minimum=1),
        Option("scale", 0.5, "Scale"),
        Option("vote", "equal", "How neighbors vote", choices=("equal", "by distance")),
        Option("names", None, "Names for names", kind=dict),
        Option("classes", (), "Names of classes"),
    )


def test_options_that_are_not_given_have_their_defaults() -> None:
    chosen = chosen_options(Knn(), {"scale": 2})
    assert chosen == {"k": 20, "scale": 2.0, "vote": "equal", "names": None, "classes": ()}


def test_pairs_and_lists_are_given_as_text_or_as_what_they_are() -> None:
    text = {"names": "ECG 1=II, ch2 = V5", "classes": "sinus rhythm, AF"}
    plain = {"names": {"ECG 1": "II", "ch2": "V5"}, "classes": ("sinus rhythm", "AF")}
    assert chosen_options(Knn(), text) == chosen_options(Knn(), plain)
    assert chosen_options(Knn(), text).items() >= plain.items()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"margin": 1}, "knn does not take `margin`; it has `k`, `scale`"),
        ({"k": 0}, "`k` must be a whole number at least 1, not 0"),
        ({"k": 1.5}, "`k` must be a whole number at least 1, not 1.5"),
        ({"scale": "x"}, "`scale` must be a number, not 'x'"),
        ({"names": "II"}, "`names` must be pairs such as 'a=b,c=d', not {'II': ''}"),
        ({"names": 3}, "`names` must be pairs such as 'a=b,c=d', not 3"),
        ({"vote": "all"}, "`vote` must be equal or by distance, not 'all'"),
    ],
)
def test_an_option_without_meaning_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        chosen_options(Knn(), given)

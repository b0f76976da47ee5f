"""Nothing public is without words, and no command is too much: commands, options, Python names."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import pytest

import clocs
from clocs.cli.main import MOVED, TABLE, Command, root_command
from clocs.cli.signatures import read_function, read_options
from clocs.datasets.base import datasets
from clocs.evaluation.protocols import PROTOCOLS
from clocs.experiments.grid import NAMES
from clocs.pretraining.methods import METHODS
from clocs.registry import Option

ROOT = Path(__file__).resolve().parents[2]
DOCS = Path(__file__).parents[2] / "docs"
FRAGMENT = re.compile(r"(Of|That|Whose|With it|Its|By name|One a|As for)\b")
FUNCTIONS = [name for name in clocs.__all__ if inspect.isfunction(getattr(clocs, name))]
COMMANDS: dict[str, Command] = {
    name: one for name, one in root_command().commands.items() if isinstance(one, Command)
}


def options(command: Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option)]


def test_commands_and_options_are_few() -> None:
    assert len(COMMANDS) <= 18
    assert sum(len(options(command)) for command in COMMANDS.values()) <= 240


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_few_options(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert (command.epilog or "").startswith(f"Example: clocs {name} ")
    assert len([one for one in options(command) if one.name not in command.row.rare]) <= 25


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_names_parameters_that_exist(name: str) -> None:
    row = TABLE[name]
    module, _, function = row.calls.rpartition(".")
    module, function = (module, function) if module else (clocs.MODULES[function], function)
    known = {*read_function(module, function, spread=row.spread).parameters}
    known |= read_options(row.rows).keys() if row.rows else set()
    known |= {str(one.name) for one in COMMANDS[name].params}
    assert {*row.rare, *row.python, *row.called, *row.environment} <= known
    assert not {*row.rare} & {*row.python}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_option_is_a_phrase(name: str) -> None:
    for parameter in COMMANDS[name].params:
        words = getattr(parameter, "help", None) or ""
        assert len(words.split()) >= 3, f"{parameter.name}: {words!r}"
        assert not FRAGMENT.match(words), f"{parameter.name}: {words!r}"


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_is_cut_and_every_option_has_its_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = COMMANDS[name].help_page(everything=True).splitlines()
    for one in options(COMMANDS[name]):
        assert [line for line in shown if re.match(rf"  {one.opts[0]}(\s|,|$)", line)]
    assert all(len(line) <= 80 for line in shown if not line.startswith(("  --", "Usage", "Ex")))


@pytest.mark.parametrize(
    ("command", "parameter", "names"),
    [
        ("prepare", "name", datasets()),
        ("pretrain", "method", METHODS),
        ("evaluate", "protocol", PROTOCOLS),
        ("reproduce", "names", NAMES),
    ],
)
def test_the_help_names_all_that_can_be_chosen(
    command: str, parameter: str, names: dict[str, object]
) -> None:
    (one,) = [one for one in COMMANDS[command].params if one.name == parameter]
    words = re.findall(r"[\w-]+", getattr(one, "help", ""))
    assert not [name for name in names if name not in words]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_shown_in_a_page_of_the_documentation(name: str) -> None:
    pages = [page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")]
    assert any(re.search(rf"\bclocs {name}\b", page) for page in pages)


def test_what_a_removed_command_is_replaced_by_exists() -> None:
    for words in MOVED.values():
        for name in re.findall(r"`clocs (\w+)", words):
            assert name in TABLE


@pytest.mark.parametrize(
    ("package", "rows"),
    [
        ("clocs.datasets", datasets()),
        ("clocs.pretraining", METHODS),
        ("clocs.evaluation", PROTOCOLS),
    ],
)
def test_options_that_are_read_are_those_that_are_declared(
    package: str, rows: dict[str, object]
) -> None:
    declared: dict[str, list[Option]] = {}
    for row in rows.values():
        for one in row.options:  # type: ignore[attr-defined]
            declared.setdefault(one.name, []).append(one)
    found = read_options(package)
    assert found.keys() == declared.keys()
    kinds = {int: "int", float: "float", bool: "flag"}
    for name, several in declared.items():
        assert found[name].kind == kinds.get(several[0].value_type, "text"), name
        assert all(one.help.rstrip(".") in found[name].text for one in several), name
        if found[name].choices:
            assert {*found[name].choices} == {word for one in several for word in one.choices}


@pytest.mark.parametrize("name", sorted(set(clocs.__all__) - {"__version__"}))
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(clocs, name))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_docstring_of_every_public_function_covers_its_parameters(name: str) -> None:
    function = getattr(clocs, name)
    words = inspect.getdoc(function) or ""
    arguments = re.findall(r"^    ([*\w, ]+):", words.partition("Args:")[2], re.MULTILINE)
    described = {part.strip(" *") for names in arguments for part in names.split(",")}
    assert set(inspect.signature(function).parameters) <= described

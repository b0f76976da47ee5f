"""Nothing public is without words: commands, options and Python names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import clocs
from clocs.cli.main import PANELS, root_command

README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
FRAGMENT = re.compile(r"(Of|That|Whose|With it|Its|By name|One a)\b")
FUNCTIONS = [name for name in clocs.__all__ if inspect.isfunction(getattr(clocs, name))]


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    """All commands below a group, with their names as they are typed."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, *path, name)
    else:
        yield " ".join(path), command


COMMANDS = dict(commands(root_command()))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert (command.epilog or "").startswith(f"Example: clocs {name} ")


def test_every_command_is_in_one_panel_of_the_help() -> None:
    placed = [name for names in PANELS.values() for name in names]
    assert sorted(placed) == sorted({name.split()[0] for name in COMMANDS})


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_option_is_a_phrase(name: str) -> None:
    for parameter in COMMANDS[name].params:
        words = getattr(parameter, "help", None) or ""
        assert len(words.split()) >= 3, f"{parameter.name}: {words!r}"
        assert not FRAGMENT.match(words), f"{parameter.name}: {words!r}"


@pytest.mark.parametrize("name", sorted({name.split()[0] for name in COMMANDS}))
def test_every_command_is_in_the_table_of_the_readme(name: str) -> None:
    rows = [line for line in README.splitlines() if line.startswith("| `clocs ")]
    assert any(f"`clocs {name}`" in row.split(" | ")[0] for row in rows)


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

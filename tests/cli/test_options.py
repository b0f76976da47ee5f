"""Options that several rows declare under one name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from clocs.cli.options import with_options_of
from clocs.registry import Option


def command_of(*rows: tuple[str, Option]) -> typer.Typer:
    """A command with the options of these rows that prints what it was given."""

    def show(**given: Any) -> None:
        """Print."""
        typer.echo(given)

    app = typer.Typer()
    each = [SimpleNamespace(name=name, options=(option,)) for name, option in rows]
    app.command()(with_options_of(each, show, panel="Options"))
    return app


@pytest.mark.parametrize(("value", "code"), [("x", 0), ("z", 0), ("q", 2)])
def test_an_option_of_two_rows_takes_the_choices_of_both(value: str, code: int) -> None:
    app = command_of(
        ("one", Option("kind", "x", "Kind of it", choices=("x", "y"))),
        ("two", Option("kind", "z", "Kind of that", choices=("z",))),
    )
    assert CliRunner().invoke(app, ["--kind", value]).exit_code == code


def test_an_option_that_is_free_in_one_row_takes_any_text() -> None:
    app = command_of(
        ("one", Option("kind", "x", "Kind of it", choices=("x", "y"))),
        ("two", Option("kind", "z", "Kind of that")),
    )
    assert "'kind': 'anything'" in CliRunner().invoke(app, ["--kind", "anything"]).output

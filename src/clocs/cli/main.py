"""The command line: parse, call, print. Everything it does can be done from Python.

Commands are made from the table and from the signatures of the functions that they call, each when
it is needed; nothing here imports torch, polars or rich.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import clocs
from clocs._version import __version__
from clocs.cli.messages import (
    accept_all_characters,
    in_one_sentence,
    in_options,
    say,
    show_warning,
)
from clocs.cli.signatures import Parameter, first_line, read_function, read_options
from clocs.errors import SettingError, suggestion

SUMMARY = "Learning from unlabeled ECGs: contrastive learning across time, leads and patients."
ACTIONS = "clocs.cli.commands"  # with one function per command
_METAVARS = {"int": "N", "float": "NUMBER", "path": "PATH", "names": "A,B", "pairs": "A=B,C=D"}
_WIDEST = 100  # columns of a help page


@dataclass(frozen=True)
class Row:
    """A command; `commands.toml` explains each field."""

    name: str
    panel: str
    calls: str
    arguments: str
    example: str
    rows: str = ""
    spread: tuple[str, ...] = ()
    called: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    rare: tuple[str, ...] = ()
    python: tuple[str, ...] = ()

    def parameter_of(self, word: str) -> str:
        """The parameter of an argument."""
        return next((name for name, other in self.called.items() if other == word), word)


_TOML = tomllib.loads(Path(__file__).with_name("commands.toml").read_text("utf-8"))
MOVED: dict[str, str] = _TOML.pop("moved")
TABLE = {name: Row(name, **fields) for name, fields in _TOML.items()}


class Words(click.ParamType):
    """'II,V2' -> ['II', 'V2'], or 'ECG1=II,ch2=V5' -> {'ECG1': 'II', 'ch2': 'V5'}."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from clocs.recording import canonical_lead  # as numpy is imported for it
        from clocs.registry import Option

        name = str(param.name if param else self.name)
        if self.name == "pairs":
            return Option(name, None, "", kind=dict).checked(value)
        words = [word.strip() for word in value.split(",") if word.strip()]
        if not words or len({canonical_lead(word) for word in words}) != len(words):
            raise SettingError(f"`{name}` is {value!r}; it must be distinct names such as II,V2")
        return words


class OneOf(click.Choice[str]):
    """One of several words; of another, the one that was most likely meant is named."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices and param is not None:
            name = heading(param).split()[0]
            raise click.UsageError(f"{name} is {value!r}; {suggestion(value, self.choices)}", ctx)
        return super().convert(value, param, ctx)


class Command(click.Command):
    """A row of the table with the options that its function has."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.function = _where(row)
        own = read_function(*self.function, spread=row.spread)
        action = read_function(ACTIONS, row.name)
        known = own.parameters | (read_options(row.rows) if row.rows else {}) | action.parameters
        typed = row.arguments.split()
        names = [word.strip("[].").lower() for word in typed]
        arguments = [
            _argument(known.pop(row.parameter_of(name)), word)
            for name, word in zip(names, typed, strict=True)
        ]
        options = [_option(row, one) for one in known.values() if one.name not in row.python]
        self.description = own.description
        super().__init__(
            row.name,
            params=[*arguments, *options],
            help=own.summary,
            epilog=f"Example: clocs {row.name} {row.example}",
            callback=self._called,
            add_help_option=False,
        )

    def _called(self, **values: Any) -> None:
        from clocs.cli.commands import execute

        context = click.get_current_context()
        sources = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
        given = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if context.get_parameter_source(name) in sources
        }
        as_json = bool(given.pop("as_json", False))
        code = execute(self, given, as_json=as_json)
        if code:
            context.exit(code)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*self.params, JSON, HELP_ALL, HELP]

    def help_page(self, *, everything: bool = False) -> str:
        """What `--help` prints, or `--help-all`; no line is wider than the terminal."""
        arguments = [one for one in self.params if isinstance(one, click.Argument)]
        options = [one for one in self.params if isinstance(one, click.Option)]
        rare = [one for one in options if one.name in self.row.rare]
        shown = [one for one in options if everything or one not in rare]
        lines = [f"Usage: clocs {self.name} {self.row.arguments} [OPTIONS]".replace("  ", " "), ""]
        for part in (self.help, *self.description.split("\n\n")):
            lines += [*_wrapped(in_options(part or "", self), "  "), ""] if part else []
        for title, several in (("Arguments", arguments), ("Options", shown)):
            lines += [f"{title}:"] if several else []
            for one in several:
                lines += [f"  {heading(one)}", *_wrapped(in_options(text_of(one), self), "      ")]
            lines += [""] if several else []
        last = f"{len(rare)} more options: clocs {self.name} --help-all. " if rare else ""
        lines += _wrapped(f"{'' if everything else last}Every command takes --json.", "")
        return "\n".join([*lines, "", *_wrapped(self.epilog or "", "")])


class Root(click.Group):
    """All commands; each is made when it is needed."""

    def __init__(self) -> None:
        version = click.Option(
            ["--version"], is_flag=True, is_eager=True, expose_value=False,
            help="Print the version and exit.", callback=_print_version,
        )  # fmt: skip
        params: list[click.Parameter] = [version, HELP]
        super().__init__("clocs", params=params, no_args_is_help=True, add_help_option=False)

    def list_commands(self, ctx: click.Context | None = None) -> list[str]:
        return list(TABLE)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        if cmd_name in TABLE and cmd_name not in self.commands:
            self.commands[cmd_name] = Command(TABLE[cmd_name])
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and args[0][:1] != "-":
            ctx.fail(_no_command(args[0], args[1:]))
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context | None = None) -> str:
        lines = ["Usage: clocs COMMAND [ARGUMENTS] [OPTIONS]", "", *_wrapped(SUMMARY, "  "), ""]
        for panel, rows in groupby(TABLE.values(), lambda row: row.panel):
            lines.append(f"{panel}:")
            for row in rows:
                text = first_line(*_where(row)).replace("`", "")
                lines += [f"  {row.name}", *_wrapped(text, "      ")]
            lines.append("")
        return "\n".join([*lines, "Options of one: clocs COMMAND --help"])


def _where(row: Row) -> tuple[str, str]:
    """The module and the name of the function that a command calls."""
    module, _, name = row.calls.rpartition(".")
    return (module, name) if module else (clocs.MODULES[name], name)


def complaint(error: click.UsageError, command: click.Command) -> str:
    """What is wrong with what was typed, in one sentence."""
    if isinstance(error, click.NoSuchOption):
        option = error.option_name
        moved = MOVED.get(f"{command.name} {option}")
        if moved:
            return f"{command.name} has no {option} any more; {moved}"
        known = [name for one in command.params for name in (*one.opts, *one.secondary_opts)]
        known = [name for name in known if name.startswith("-")] + ["--json", "--help"]
        close = get_close_matches(option, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"see clocs {command.name} --help"
        return f"{command.name} has no option {option}; {hint}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        usage = f"clocs {command.name} {getattr(command, 'row', TABLE['info']).arguments}"
        typed = heading(error.param)
        if isinstance(error.param, click.Option):
            return f"{typed.split()[0]} is missing: {usage} {typed}"
        return f"{typed.strip('[].')} is missing: {usage}"
    return error.format_message()


def _no_command(name: str, rest: Sequence[str]) -> str:
    moved = MOVED.get(f"{name} {rest[0]}" if rest else name) or MOVED.get(name)
    if moved:
        return f"there is no command {name} any more; {moved}"
    close = get_close_matches(name, TABLE, n=1)
    hint = f"did you mean {close[0]}?" if close else "clocs --help lists all"
    return f"there is no command {name!r}; {hint}"


def _argument(one: Parameter, word: str) -> click.Argument:
    many = "..." in word
    made = click.Argument(
        [one.name],
        required=not word.startswith("["),
        nargs=-1 if many else 1,
        metavar=word,
        type=_type(one),
        shell_complete=None if one.choices else _complete,
    )
    made.help = one.text  # type: ignore[attr-defined]
    return made


def _option(row: Row, one: Parameter) -> click.Option:
    flag = row.called.get(one.name) or f"--{one.name.replace('_', '-')}"
    flag = f"-{one.name}" if len(one.name) == 1 else flag
    kind: dict[str, Any] = {"type": _type(one), "metavar": _METAVARS.get(one.kind, "TEXT")}
    if one.choices:
        kind["metavar"] = "|".join(one.choices)
    if one.kind == "flag":
        kind = {"is_flag": True, "default": None}
        flag = f"{flag}/--no-{flag[2:]}" if one.default is True else flag
    text = one.text
    if one.kind != "flag" and one.default not in (None, "", ()) and "default" not in text:
        default = f"{one.default:g}" if isinstance(one.default, float) else one.default
        text = f"{text} Default: {default}."
    return click.Option(
        [flag, one.name],
        required=one.required,
        multiple=one.several,
        help=text,
        envvar=row.environment.get(one.name),
        shell_complete=_complete if kind.get("type") is click.STRING else None,
        **kind,
    )


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
    from clocs.cli.completion import complete  # as few need it

    return complete(ctx, param, incomplete)


def _type(one: Parameter) -> click.ParamType:
    if one.choices:
        return OneOf(one.choices)
    if one.kind in ("names", "pairs"):
        return Words(one.kind)
    ranges = {"int": click.IntRange(min=0), "float": click.FloatRange(min=0)}
    return ranges.get(one.kind, click.STRING)


def heading(one: click.Parameter) -> str:
    """An option as it is typed, with what follows it, on one line."""
    if not isinstance(one, click.Option):
        return str(one.metavar)
    names = ", ".join([*one.opts, *one.secondary_opts])
    return names if one.is_flag else f"{names} {one.metavar}"


def text_of(one: click.Parameter) -> str:
    """What an option is, and whether it must be given."""
    text = str(getattr(one, "help", ""))
    if isinstance(one, click.Option):
        text += " Repeatable." if one.multiple else ""
        text += " Required." if one.required else ""
    return text


def _wrapped(text: str, indent: str) -> Iterator[str]:
    width = max(60, min(_WIDEST, shutil.get_terminal_size().columns))
    yield from textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        sys.stdout.write(f"{__version__}\n")
        ctx.exit()


def _print_help(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value:
        own = ctx.command
        everything = option.name == "help_all"
        page = (
            own.help_page(everything=everything) if isinstance(own, Command) else own.get_help(ctx)
        )
        sys.stdout.write(f"{page}\n")
        ctx.exit()


# of every command, as `--help` is
JSON = click.Option(
    ["--json", "as_json"], is_flag=True, help="Print JSON and nothing else to standard output."
)
HELP, HELP_ALL = (
    click.Option(
        [name], is_flag=True, is_eager=True, expose_value=False, help=text, callback=_print_help
    )
    for name, text in (("--help", "Show this and exit."), ("--help-all", "Show all options."))
)


def root_command() -> Root:
    """All commands with their options."""
    root = Root()
    for name in TABLE:
        root.get_command(None, name)
    return root


def running_command(root: Root, arguments: Sequence[str]) -> click.Command:
    """The command that these arguments call."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    return root.get_command(None, name) or root


def run() -> int:
    """What `sys.argv` says, with errors in one sentence; returns the exit code."""
    accept_all_characters()
    root = Root()
    if (wanted := os.environ.get("_CLOCS_COMPLETE")) is not None:
        from click.shell_completion import shell_complete

        return shell_complete(root, {}, "clocs", "_CLOCS_COMPLETE", wanted)
    command = running_command(root, sys.argv[1:])
    warnings.showwarning = partial(show_warning, command)
    try:
        with in_one_sentence(command):
            try:
                with root.make_context("clocs", sys.argv[1:]) as context:
                    root.invoke(context)
            except click.exceptions.NoArgsIsHelpError:
                sys.stdout.write(f"{root.get_help()}\n")
                return 0
            except click.UsageError as error:
                say("red", complaint(error, command))
                return error.exit_code
            finally:
                sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def main() -> None:
    """Run the command line."""
    # On ARM, torch's allocator returns memory after 10 ms: page faults are a tenth of encoding.
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")
    code = run()
    sys.stderr.flush()
    atexit._run_exitfuncs()  # which remove temporary folders
    os._exit(code)  # all files are closed: taking modules apart one by one would take 0.1 s more

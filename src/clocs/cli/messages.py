"""Errors, warnings and interruptions in one sentence, in the words of the command line."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click
from rich.text import Text

from clocs.cli.console import err
from clocs.errors import ClocsError, ClocsWarning, printable
from clocs.files import file_error

INTERRUPTED = 130
_AFTER_INTERRUPTION = {
    **dict.fromkeys(
        ("prepare", "download", "reproduce", "demo", "explore"),
        "what is done is kept; run the same command again to continue",
    ),
    # These write several files, each whole or not at all.
    **dict.fromkeys(
        ("evaluate", "report", "frames", "index"),
        "the output may be incomplete; run the same command again for all of it",
    ),
}
_NOTHING = "nothing was written; run the same command again to start over"
_PARAMETER = re.compile(r"`([a-z]\w*)(?:=([^`]*))?`")


def running_command(root: click.Command, arguments: list[str]) -> click.Command:
    """The command that these arguments call."""
    command = root
    for word in arguments:
        if not isinstance(command, click.Group):
            break
        command = command.commands.get(word, command)
    return command


def in_options(message: str, command: click.Command) -> str:
    """A message such as "give another folder as `out`" with this command's options spelled out."""
    spelled: dict[str, tuple[str, bool]] = {}  # name -> how to type it, and whether it is a flag
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            option = max(parameter.opts, key=len)
            names = {str(parameter.name), option.lstrip("-").replace("-", "_")}
            spelled |= dict.fromkeys(names, (option, parameter.is_flag))
        else:
            typed = parameter.human_readable_name.strip("[].").upper()
            spelled[str(parameter.name)] = (typed, False)

    def replaced(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in spelled:
            return found.group()
        option, flag = spelled[name]
        return option if value is None or flag else f"{option} {_typed(value.strip(chr(34)))}"

    return _PARAMETER.sub(replaced, message)


def _typed(value: str) -> str:
    """As it is typed: quoted where it has spaces."""
    return f'"{value}"' if " " in value else value


@contextmanager
def in_one_sentence(command: click.Command) -> Iterator[None]:
    """Turn errors on purpose and those of the system into a sentence and exit code 1."""
    try:
        yield
    except ClocsError as error:
        if _is_the_one_to_say_why():
            _say("red", in_options(str(error), command))
        sys.exit(1)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        sys.exit(1)
    except OSError as error:
        _say("red", _about_file(error))
        sys.exit(1)
    except (SystemExit, KeyboardInterrupt) as stop:  # typer turns a Ctrl-C into the former
        if isinstance(stop, KeyboardInterrupt) or stop.code == INTERRUPTED:
            err.print(f"clocs: interrupted; {_after_interruption(str(command.name))}", markup=False)
            sys.exit(INTERRUPTED)
        raise


def _is_the_one_to_say_why() -> bool:
    """Of several processes of one training the first that fails; else this one."""
    if "WORLD_SIZE" not in os.environ:
        return True
    from clocs.training.ranks import may_say_why

    says = may_say_why()
    err.quiet = err.quiet and not says
    return says


def _after_interruption(command: str) -> str:
    """What is kept of this command's work, and how to go on."""
    if command not in ("pretrain", "finetune"):
        return _AFTER_INTERRUPTION.get(command, _NOTHING)
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return f"to continue, run: {shlex.join(['clocs', *words, '--resume'])}"


def _about_file(error: OSError) -> str:
    """A full disk, a missing permission or a missing file, each in its own sentence."""
    full = error.errno == errno.ENOSPC
    if error.filename is None:
        return str(file_error(error, "the output", doing="written")) if full else str(error)
    reading = error.errno == errno.ENOENT or (not full and os.access(error.filename, os.F_OK))
    return str(file_error(error, error.filename, doing="read" if reading else "written"))


def show_warning(
    command: click.Command,
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print our own warnings in one sentence, others with their origin; see `warnings`."""
    if issubclass(category, ClocsWarning):
        _say("yellow", in_options(str(message), command))
    else:
        _say("yellow", f"{filename}:{lineno}: {category.__name__}: {message}")


def print_problems(problems: Iterable[tuple[str, str]]) -> None:
    """What is wrong with some recordings: name and reason of each."""
    command = click.get_current_context().command
    for name, reason in problems:
        line = reason if reason.startswith(name) else f"{name}: {reason}"
        _say("yellow", in_options(line, command))


def _say(color: str, words: str) -> None:
    err.print(Text.assemble(("clocs:", color), " ", printable(words)))

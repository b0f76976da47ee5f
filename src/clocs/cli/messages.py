"""Errors, warnings and interruptions in one sentence, in the words of the command line.

Nothing here imports rich: an answer to a mistyped word must not wait for it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from clocs.errors import ClocsError, ClocsWarning, printable

INTERRUPTED = 130
_CONTINUES = ("prepare", "download", "reproduce", "demo", "explore")
_SEVERAL_FILES = ("evaluate", "export", "index")  # each is written whole or not at all
_PARAMETER = re.compile(r"`([a-z]\w*)(?:=([^`]*))?`")
_MAX_PROBLEMS = 40  # that are printed
_COLORS = {"red": "\x1b[31m", "yellow": "\x1b[33m"}


def in_options(message: str, command: click.Command | None) -> str:
    """A message such as "give another folder as `out`" with this command's options spelled out."""
    spelled: dict[str, tuple[str, bool]] = {}  # name -> how to type it, and whether it is a flag
    for parameter in command.params if command else ():
        if isinstance(parameter, click.Option):
            option = max(parameter.opts, key=len)
            names = {str(parameter.name), option.lstrip("-").replace("-", "_")}
            spelled |= dict.fromkeys(names, (option, parameter.is_flag))
        else:
            typed = str(parameter.metavar).strip("[].").upper()
            spelled[str(parameter.name)] = (typed, False)

    def replaced(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in spelled:
            return found.group()
        option, flag = spelled[name]
        if value is None or flag:
            return option
        typed = value.strip('"')
        return f'{option} "{typed}"' if " " in typed else f"{option} {typed}"

    return _PARAMETER.sub(replaced, message)


@contextmanager
def in_one_sentence(command: click.Command) -> Iterator[None]:
    """Turn errors on purpose and those of the system into a sentence and exit code 1."""
    try:
        yield
    except ClocsError as error:
        if _is_the_one_to_say_why():
            say("red", in_options(str(error), command), always=True)
        sys.exit(1)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        sys.exit(1)
    except OSError as error:
        say("red", _about_file(error))
        sys.exit(1)
    except KeyboardInterrupt:
        say("", f"interrupted; {_after_interruption(str(command.name))}")
        sys.exit(INTERRUPTED)


def _is_the_one_to_say_why() -> bool:
    """Of several processes of one training the first that fails; else this one."""
    if "WORLD_SIZE" not in os.environ:
        return True
    from clocs.kernels.ranks import may_say_why

    return may_say_why()


def _after_interruption(command: str) -> str:
    """What is kept of this command's work, and how to go on."""
    if command in _CONTINUES:
        return "what is done is kept; run the same command again to continue"
    if command in _SEVERAL_FILES:
        return "the output may be incomplete; run the same command again for all of it"
    if command not in ("pretrain", "finetune"):
        return "nothing was written; run the same command again to start over"
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return f"to continue, run: {shlex.join(['clocs', *words, '--resume'])}"


def _about_file(error: OSError) -> str:
    """A full disk, a missing permission or a missing file, each in its own sentence."""
    from clocs.files import file_error

    full = error.errno == errno.ENOSPC
    if error.filename is None:
        return str(file_error(error, "the output", doing="written")) if full else str(error)
    reading = error.errno in (errno.ENOENT, errno.ENAMETOOLONG)
    reading |= not full and os.access(error.filename, os.F_OK)
    return str(file_error(error, error.filename, doing="read" if reading else "written"))


def show_warning(
    command: click.Command, message: Warning | str, category: type[Warning], *where: Any
) -> None:
    """Print our own warnings in one sentence, others with their origin; see `warnings`."""
    if issubclass(category, ClocsWarning):
        say("yellow", in_options(str(message), command))
    else:
        say("yellow", f"{where[0]}:{where[1]}: {category.__name__}: {message}")


def print_problems(problems: Sequence[tuple[str, str]], command: click.Command) -> None:
    """What is wrong with some recordings: name and reason of each, and how many more there are."""
    for name, reason in problems[:_MAX_PROBLEMS]:
        line = reason if reason.startswith(name) else f"{name}: {reason}"
        say("yellow", in_options(line, command))
    if more := len(problems[_MAX_PROBLEMS:]):  # of which a table of vectors has no row
        say("yellow", f"not shown: {more:,} more with a problem; --json lists all of them")


def silent() -> bool:
    """Whether this is not the first of several processes of one training, which alone speaks."""
    return os.environ.get("RANK", "0") != "0"


def say(color: str, words: str, *, always: bool = False) -> None:
    """One sentence to standard error."""
    if silent() and not always:
        return
    colored = _COLORS.get(color) if sys.stderr.isatty() and "NO_COLOR" not in os.environ else None
    name = f"{colored}clocs:\x1b[0m" if colored else "clocs:"
    sys.stderr.write(f"{name} {printable(words)}\n")


def plain(text: str, encoding: str) -> str:
    """The text as a terminal with this encoding can show it, and nothing but show it."""
    return printable(text, lines=True).encode(encoding, "backslashreplace").decode(encoding)


def accept_all_characters() -> None:
    """Let both streams replace what they cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def print_json(value: Any) -> None:
    """JSON alone to standard output, in ASCII, which steers no terminal."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")

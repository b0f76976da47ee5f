"""Standard output and standard error, in plain characters where the terminal knows no others."""

from __future__ import annotations

import codecs
import json
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from clocs.errors import STEERING, printable

_PLAIN = str.maketrans(
    {"…": "...", "×": "x", "±": "+/-", "–": "-", "−": "-", "→": "->", "τ": "tau", "²": "^2"}
)


class PlainConsole(Console):
    """The console for everything clocs prints: text from files cannot control the terminal.

    Characters that would steer the terminal, or that its encoding lacks, are replaced before tables
    are laid out, and square brackets are no markup. Only clocs itself styles text (`rich.text`).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, soft_wrap=True, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(text, self.encoding), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for one in super().render(renderable, options):
            shown = one.text if one.control else plain(one.text, self.encoding)
            yield one if shown is one.text else one._replace(text=shown)


out = PlainConsole()
err = PlainConsole(stderr=True)


def plain(text: str, encoding: str) -> str:
    """The text as a terminal with this encoding can show it, and nothing but show it."""
    text = printable(text, lines=True)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, "clocs-plain").decode(encoding)
    return text


def _replacement(error: UnicodeError) -> tuple[str, int]:
    """For `codecs`: plain spellings, letters without accents, odd file names byte by byte."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = []
    for character in error.object[error.start : error.end]:
        if "\udc80" <= character <= "\udcff":  # a byte of a file name that is not UTF-8
            found.append(f"\\x{ord(character) - 0xDC00:02x}")
            continue
        simple = unicodedata.normalize("NFKD", character.translate(_PLAIN))
        found.append(simple.encode("ascii", "ignore").decode() or "?")
    return "".join(found), error.end


codecs.register_error("clocs-plain", _replacement)


def accept_all_characters() -> None:
    """Let both streams replace what they cannot encode, whoever writes to them."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="clocs-plain")


def print_json(value: Any, stream: TextIO | None = None) -> None:
    """JSON alone to standard output, with escapes where the encoding needs them."""
    stream = stream or sys.stdout
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    if not text.replace("\n", "").isprintable():
        text = STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, allow_nan=False)
    stream.write(text + "\n")

"""Pages: HTML from this package's templates, and generated parts of hand-written Markdown.

Such a part stands between `<!-- clocs:NAME -->` and `<!-- /clocs -->`. HTML needs jinja2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clocs._version import __version__
from clocs.errors import SettingError
from clocs.files import PUBLIC, file_error, write_atomic

_PART = re.compile(r"(<!-- clocs:([a-z0-9-]+) -->\n).*?(<!-- /clocs -->)", re.DOTALL)


def write_page(path: Path, template: str, **values: Any) -> None:
    """Fill a template and write it; what is not marked as safe is escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("clocs.experiments"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(template).render(version=__version__, **values)
    write_atomic(path, page.encode(), mode=PUBLIC)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A Markdown table, whose columns after the first `words` are numbers."""
    lines = [heads, ["---"] * words + ["---:"] * (len(heads) - words), *rows]
    return "\n".join(
        "|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in lines
    )


def filled(text: str, parts: Mapping[str, str], *, where: str) -> str:
    """The text with each marked part replaced by the one of its name."""

    def replaced(match: re.Match[str]) -> str:
        if match[2] not in parts:
            raise SettingError(
                f"{where} marks a part {match[2]!r}, which is not generated; use one of "
                f"{', '.join(parts)}"
            )
        return f"{match[1]}\n{parts[match[2]].strip()}\n\n{match[3]}"

    return _PART.sub(replaced, text)


def fill(path: Path, parts: Mapping[str, str]) -> None:
    """Replace the marked parts of a file; one without any is not written."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise file_error(error, path, doing="read") from error
    now = filled(text, parts, where=str(path))
    if now != text:
        write_atomic(path, now.encode(), mode=PUBLIC)

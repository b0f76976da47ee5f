"""Generated parts of hand-written Markdown, between `<!-- clocs:NAME -->` and `<!-- /clocs -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from clocs.errors import SettingError
from clocs.files import PUBLIC, file_error, write_atomic

_PART = re.compile(r"(<!-- clocs:([a-z0-9-]+) -->\n).*?(<!-- /clocs -->)", re.DOTALL)


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
    """Replace the marked parts of a file; one without any is left as it is."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise file_error(error, path, doing="read") from error
    now = filled(text, parts, where=str(path))
    if now != text:
        write_atomic(path, now.encode(), mode=PUBLIC)

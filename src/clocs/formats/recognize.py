"""The format of a file: by what it begins with, and by its name."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from clocs.formats.base import HEAD_BYTES, FileFormat
from clocs.formats.source import Source


def recognize(name: str, head: bytes, formats: Collection[FileFormat]) -> FileFormat | None:
    """The format of a file with this name that begins with these bytes; None where it has none.

    A file whose content speaks for itself is what it says, whatever its suffix; one with the
    suffix of a format, but damaged content, is of that format, so that reading says what is wrong.
    """
    low = name.lower()
    named = [one for one in formats if low.endswith(one.suffixes)]
    if named and not head.strip():
        return named[0]  # which says that it is empty
    specific = [one for one in formats if not one.generic]
    for one in (*named, *specific):
        if one.recognize is not None and one.recognize(head):
            return one
    if by_name := next((one for one in named if one.recognize is None), None):
        return by_name  # more than a generic format's content tells
    for one in formats:
        if one.recognize is not None and one.recognize(head):
            return one
    return next((one for one in named if not one.generic), None)


def recording_files(
    source: Source, formats: Collection[FileFormat]
) -> Iterator[tuple[str, FileFormat]]:
    """The files of a source that represent recordings, in order, with their formats.

    Signal files of a header beside them, and segments of a recording, represent none.
    """
    beside = {
        one: {name.lower()[: -len(one.suffix)] for name in source.names if _ends(name, one.suffix)}
        for one in formats
        if one.companions
    }
    found: dict[str, FileFormat] = {}
    segments: set[str] = set()
    alone = [
        name
        for name, low in ((name, name.lower()) for name in source.names)
        if not any(
            low.endswith(one.companions) and low[: low.rfind(".")] in stems
            for one, stems in beside.items()
        )
    ]
    for name, head in source.heads(alone, HEAD_BYTES):
        if (own := recognize(name, head, formats)) is not None:
            found[name] = own
            segments |= own.segments(source, name, head)
    yield from ((name, own) for name, own in found.items() if name not in segments)


def _ends(name: str, suffix: str) -> bool:
    return name.lower().endswith(suffix)

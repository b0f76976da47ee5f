"""Reading of files of arrays, one recording after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from clocs.formats.array_file import Place, Tree, find_places, parts_of, read_place
from clocs.formats.base import Part, ReadOptions
from clocs.formats.samples import decoding
from clocs.formats.source import Source, stem
from clocs.recording import Recording


class ArrayReader:
    """Reads files of arrays; the last one of several recordings stays open for the next of them.

    Args:
        what: The format, for messages.
        open_tree: Opens a file of a source.
    """

    def __init__(self, what: str, open_tree: Callable[[Source, str], Tree]) -> None:
        self._what = what
        self._open = open_tree
        self._key: tuple[Any, ...] | None = None
        self._held: tuple[Tree, dict[str, Place]] | None = None

    def read(self, source: Source, path: str, options: ReadOptions) -> Recording:
        """The recording of a part."""
        with self._opened(source, path, options) as (tree, places):
            return read_place(tree, places, options, name=stem(path))

    def parts(self, source: Source, path: str, options: ReadOptions) -> list[Part]:
        """All recordings of a file."""
        with self._opened(source, path, options) as (tree, places):
            return parts_of(tree, places, options)

    @contextmanager
    def _opened(
        self, source: Source, path: str, options: ReadOptions
    ) -> Iterator[tuple[Tree, dict[str, Place]]]:
        named = (options.leads, tuple(options.lead_names.items()))
        key = (os.getpid(), named, *_identity(source, path))
        with decoding(stem(path), self._what):
            if key == self._key and self._held is not None:
                yield self._held
                return
            tree = self._open(source, path)
            try:
                places = find_places(tree, options, name=stem(path))
                yield tree, places
            except BaseException:
                tree.close()
                raise
            if len(places) == 1:
                tree.close()
                return
            if self._held is not None and self._key is not None and self._key[0] == os.getpid():
                self._held[0].close()
            self._key, self._held = key, (tree, places)


def _identity(source: Source, path: str) -> tuple[Any, ...]:
    """What changes when the file does."""
    disk = source.on_disk(path)
    if disk is None:
        return source, path
    state = os.stat(disk)  # noqa: PTH116
    return disk, state.st_mtime_ns, state.st_size

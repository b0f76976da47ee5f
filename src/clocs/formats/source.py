r"""Source: files by name, below a folder, in a zip, in zips inside a folder, or at an address.

Reads without unpacking to disk, from many threads at once. Names are printable: bytes of a file
name that are no UTF-8 appear as `\xe9`.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import TypeAlias

from clocs.errors import ClocsWarning, SourceError, UnusableError, first_of, printable
from clocs.formats.addresses import (
    Address,
    MissingError,
    RemoteFile,
    each,
    files_at,
    list_address,
    place_of,
    remote_file,
)
from clocs.formats.zips import JUNK, Member, Zip, is_junk
from clocs.limits import MAX_BYTES, check_size

_TOGETHER = 256  # heads of files at an address that are held at a time
_LONG = 200  # characters of a path in a message
OPTIONS_FILE = "clocs.toml"  # holds options of reading; no part of the fingerprint


@dataclass(frozen=True, slots=True)
class _File:
    """A plain file on disk."""

    path: str

    def __reduce__(self) -> tuple[type[_File], tuple[str]]:
        return _File, (self.path,)

    def read(self, most: int) -> bytes:
        with open(self.path, "rb", buffering=0) as file:  # noqa: PTH123 (`Path` is slower)
            size = os.fstat(file.fileno()).st_size
            if size > most:
                check_size(size, packed=size, name=self.path, most=most)
            return file.read()

    def piece(self, start: int, count: int) -> bytes:
        with open(self.path, "rb") as file:  # noqa: PTH123
            file.seek(start)
            return file.read(count)

    @property
    def size(self) -> int:
        return os.stat(self.path).st_size  # noqa: PTH116


@dataclass(frozen=True, slots=True)
class _Held:
    """A file in memory."""

    data: bytes

    def read(self, most: int) -> bytes:
        return self.data

    def piece(self, start: int, count: int) -> bytes:
        return self.data[start : start + count]

    @property
    def size(self) -> int:
        return len(self.data)


_AnyFile: TypeAlias = _File | Member | _Held | RemoteFile


class Source:
    """Files by name; see `open_source`.

    Attributes:
        path: The folder or zip that was opened, or its address.
        names: Sorted, with forward slashes; a member of a zip inside a folder is named
            `folder/archive.zip/member`.
        fingerprint: Changes when a file's name, size or time changes, or a zip's members do.
    """

    def __init__(
        self,
        path: Path | Address,
        files: Mapping[str, _AnyFile],
        zips: list[Zip],
        fingerprint: str,
    ) -> None:
        self.path = path
        self.names = tuple(sorted(files))
        self.fingerprint = fingerprint
        self._files = files
        self._zips = zips

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Source({str(self.path)!r}, {len(self)} files)"

    def __reduce__(self) -> tuple[object, ...]:
        return Source, (self.path, self._files, self._zips, self.fingerprint)

    def only(self, names: Iterable[str]) -> Source:
        """The same source with these files alone, for a process that needs no others."""
        files = {name: self._files[name] for name in names}
        return Source(self.path, files, self._zips, self.fingerprint)

    def read(self, name: str, most: int = MAX_BYTES) -> bytes:
        """The bytes of one file. Thread-safe.

        Args:
            name: One of `names`.
            most: Bytes; a larger file is refused before it is read or unpacked.

        Raises:
            SourceError: There is no such file, or it can no longer be reached.
            UnusableError: It is a damaged member of a zip, or too large.
        """
        try:
            return self._file(name).read(most)
        except OSError as error:
            raise self._gone(name, error) from None

    def head(self, name: str, count: int) -> bytes:
        """The first `count` bytes of a file, or all where it has fewer; as `piece`."""
        return self.piece(name, 0, count)

    def heads(self, names: Sequence[str], count: int) -> Iterator[tuple[str, bytes]]:
        """The first bytes of these files, in order; none of a damaged member of a zip."""

        def head(name: str) -> bytes:
            try:
                return self.head(name, count)
            except UnusableError:  # reading says so
                return b""

        if not isinstance(self.path, Address):
            yield from ((name, head(name)) for name in names)
            return
        for start in range(0, len(names), _TOGETHER):
            some = names[start : start + _TOGETHER]
            yield from zip(some, each(some, head), strict=True)

    def piece(self, name: str, start: int, count: int) -> bytes:
        """A stretch of a file without reading all of it. Thread-safe.

        Pieces of a packed member of a zip are unpacked on the way: read them from front to end.

        Args:
            name: One of `names`.
            start: First byte.
            count: Bytes; fewer are returned where the file ends.

        Raises:
            SourceError: There is no such file, or it can no longer be reached.
            UnusableError: It is a damaged member of a zip.
        """
        try:
            return self._file(name).piece(start, count)
        except OSError as error:
            raise self._gone(name, error) from None

    def size(self, name: str) -> int:
        """Bytes of one file, unpacked; a member of a zip has as many as the zip claims.

        Raises:
            SourceError: There is no such file, or it can no longer be reached.
        """
        try:
            return self._file(name).size
        except OSError as error:
            raise self._gone(name, error) from None

    def on_disk(self, name: str) -> str | None:
        """The path of a plain file; None for one in a zip, in memory or at an address."""
        file = self._file(name)
        return file.path if isinstance(file, _File) else None

    def _file(self, name: str) -> _AnyFile:
        file = self._files.get(name)
        if file is None:
            raise SourceError(f"{self.path} holds no file {name}; check what was given")
        return file

    def _gone(self, name: str, error: OSError) -> SourceError:
        detail = error.strerror or type(error).__name__
        return SourceError(
            f"{name} of {self.path} can no longer be read ({detail}); is it still there?"
        )

    def beside(self, name: str, most: int = MAX_BYTES) -> bytes | None:
        """The bytes of a file in the folder that holds the opened zip, or None.

        Raises:
            UnusableError: It has more than `most` bytes.
        """
        if self.is_folder:
            return None
        file = self._beside(name)
        if isinstance(file, Address):
            try:
                return remote_file(file).read(most)
            except MissingError:
                return None
        return file.read(most) if Path(file.path).is_file() else None

    def not_own(self, name: str) -> str:
        """Why a file inside, or beside the opened zip, may be a stranger's; '' where it is not.

        It is the user's own where the user owns it on this machine's disk.
        """
        file = self._files.get(name, None if self.is_folder else self._beside(name))
        if isinstance(file, Member):
            return "it is inside a zip"
        if isinstance(file, RemoteFile | Address):
            return "it is at an address"
        if isinstance(file, _File) and hasattr(os, "getuid"):
            owner = os.stat(file.path).st_uid  # noqa: PTH116
            return "" if owner == os.getuid() else "it belongs to another user"
        return ""

    def _beside(self, name: str) -> _File | Address:
        """A file in the folder that holds the opened zip, if there is one."""
        place = self.path.parent / name
        return place if isinstance(place, Address) else _File(str(place))

    @property
    def is_folder(self) -> bool:
        """Whether a folder was opened, not a zip."""
        if isinstance(self.path, Address):
            return not (len(self._zips) == 1 and str(self._zips[0].path) == str(self.path))
        return self.path.is_dir()

    def check_unchanged(self) -> None:
        """Compare the files at an address with those of when it was opened.

        Raises:
            SourceError: Some are others: what was read of them may be of no single moment.
        """
        if isinstance(self.path, Address) and open_source(self.path).fingerprint != (
            self.fingerprint
        ):
            raise SourceError(
                f"files of {self.path} have changed while they were read; wait until nobody writes "
                "them, delete what was made and start again"
            )

    def close(self) -> None:
        for archive in self._zips:
            archive.close()


def open_source(path: str | os.PathLike[str] | Address, *, follow_links: bool = False) -> Source:
    """Open a folder, a zip, or a folder with zips in it, here or at an address.

    Args:
        path: A path, or an address such as 's3://bucket/folder'.
        follow_links: Read also what links in the folder lead to outside of it. Without it, a
            warning names them.

    Raises:
        SourceError: The path is missing, or a zip is cut short, damaged or encrypted.
    """
    root = place_of(path)
    if isinstance(root, Path) and not os.path.exists(root):  # noqa: PTH110 (a path may be too long)
        raise SourceError(f"{_shown(root)} does not exist; give a folder or the zip as downloaded")
    files: dict[str, _AnyFile] = {}
    zips: list[Zip] = []
    marks = hashlib.sha256()
    walked = _walk_address(root) if isinstance(root, Address) else _walk(root, follow_links)
    for name, found, mark in walked:
        if name != OPTIONS_FILE:
            marks.update(f"{name}\0{mark}\n".encode(errors="replace"))
        if name and not name.lower().endswith(".zip"):
            files[name] = found
            continue
        archive = Zip(Path(found.path) if isinstance(found, _File) else found)
        zips.append(archive)
        prefix = f"{name}/" if name else ""
        for member in archive.members():
            files[prefix + printable(member.name)] = member
            marks.update(f"{member.name}\0{member.size}\0{member.crc}\n".encode(errors="replace"))
    return Source(root, files, zips, marks.hexdigest()[:32])


def open_files(
    folder: str | os.PathLike[str] | Address, names: Iterable[str] | None = None
) -> Source:
    """Files directly in one folder (only `names`, if given), without opening zips among them."""
    root = place_of(folder)
    if isinstance(root, Address):
        return Source(root, files_at(root, names), [], "")
    wanted = os.listdir(root) if names is None else names  # noqa: PTH208 (names are all we need)
    files = {}
    for name in wanted:  # text: `Path` objects would take as long as reading the files
        try:
            state = os.stat(f"{root}/{name}")  # noqa: PTH116
        except OSError:
            continue
        if S_ISREG(state.st_mode):
            files[printable(name)] = _File(f"{root}/{name}")
    return Source(root, files, [], "")


def hold_files(files: Mapping[str, bytes]) -> Source:
    """A source of files that are already in memory."""
    return Source(Path(), {name: _Held(data) for name, data in files.items()}, [], "")


def _walk_address(root: Address) -> Iterator[tuple[str, RemoteFile, str]]:
    """As `_walk`, at an address."""
    found = list_address(root)
    if not found:
        raise SourceError(f"{root} holds no files; check its bucket or host, and its path")
    for name, file in found:
        if not is_junk(name):
            yield name, file, f"{file.size}\0{file.mark}"


def _walk(root: Path, follow_links: bool) -> Iterator[tuple[str, _File, str]]:
    """Name, file and mark of all files below a folder, by name; for a file, itself, nameless."""
    if root.is_dir():
        found, left = _collect(str(root), follow_links)
    else:
        found, left = [("", str(root), root.stat())], []
    if left:
        warnings.warn(
            f"links in {root} that lead out of it or nowhere are not followed ({len(left):,}: "
            f"{first_of(sorted(left), 3)}); `follow_links` reads what they lead to",
            ClocsWarning,
            stacklevel=3,
        )
    for name, path, state in sorted(found):
        yield name, _File(path), f"{state.st_size}\0{state.st_mtime_ns}"


def _collect(
    root: str, follow_links: bool
) -> tuple[list[tuple[str, str, os.stat_result]], list[str]]:
    """Name, path and state of the files below a folder, and the links that are not followed.

    `Path` objects would take four times as long.
    """
    found: list[tuple[str, str, os.stat_result]] = []
    left: list[str] = []
    top = os.path.realpath(root)
    seen = {top}  # what links lead to
    waiting = [(root, "")]
    while waiting:
        folder, prefix = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name in JUNK or entry.name.startswith("."):
                        continue
                    name = prefix + printable(entry.name)
                    if entry.is_symlink():
                        real = os.path.realpath(entry.path)
                        inside = Path(real).is_relative_to(top)
                        if not os.path.exists(real) or not (inside or follow_links):  # noqa: PTH110
                            left.append(name)
                            continue
                        if os.path.isdir(real):  # noqa: PTH112
                            own = os.path.relpath(real, top)
                            # Folders inside are listed by their own names, unless they are hidden.
                            if real in seen or (inside and not is_junk(own)):
                                continue
                            seen.add(real)
                    if entry.is_dir():
                        waiting.append((entry.path, f"{name}/"))
                    elif entry.is_file():
                        found.append((name, entry.path, entry.stat()))
        except OSError as error:
            raise SourceError(
                f"{_shown(error.filename)} cannot be listed ({error.strerror}); check its rights "
                "and the length of its path"
            ) from None
    return found, left


def _shown(path: object) -> str:
    text = printable(str(path))
    return text if len(text) < _LONG else f"{text[:_LONG]}…"


def stem(path: str) -> str:
    """A file's name without its folder and suffix."""
    name = path[path.rfind("/") + 1 :]
    dot = name.rfind(".")
    return name[:dot] if dot > 0 else name

r"""Source: files by name, below a folder, in a zip, in zips inside a folder, or at an address.

Reads without unpacking to disk, from many threads at once. Names are printable: bytes of a file
name that are no UTF-8 appear as `\xe9`.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import IO, Any, TypeAlias, TypeVar

from clocs.errors import ClocsError, SourceError, UnusableError, first_of, printable, warn
from clocs.files import MAX_BYTES, check_size
from clocs.formats.addresses import (
    Address,
    MissingError,
    RemoteFile,
    each,
    files_at,
    list_address,
    parse_path_or_url,
    remote_file,
)

T = TypeVar("T")

OPTIONS_FILE = "clocs.toml"  # holds options of reading; no part of the fingerprint
_JUNK = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini"})  # of operating systems
_TOGETHER = 256  # heads of files at an address that are held at a time
_LONG = 200  # characters of a path in a message
# Of a `ZipInfo`, in the order of the fields of `_Member`.
_STATED = attrgetter(
    "filename", "header_offset", "compress_type", "compress_size", "file_size", "CRC"
)
_EXTRA_GUESS = 64  # local headers have an extra field whose length only they give
_STEP = 4096  # packed bytes at a time: bzip2 makes 80 MB of as many
_BLOCK = 1 << 20  # bytes at a time, of a stretch and on the way to it
_MAX_WHOLE = 64 << 10  # bytes of a member that is unpacked whole for a part of it
_MAX_STREAMS = 4  # kept for the next stretch


@dataclass(frozen=True, slots=True)
class _File:
    """A plain file on disk."""

    path: str

    def read(self, most: int) -> bytes:
        file = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))  # `open` is slower
        try:
            size = os.fstat(file).st_size
            if size > most:
                check_size(size, packed=size, name=self.path, most=most)
            data = os.read(file, size)
        finally:
            os.close(file)
        return data if len(data) == size else self.piece(0, size)  # one call reads at most 2 GiB

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


@dataclass(frozen=True, slots=True)
class _Member:
    """A file inside a zip."""

    zip: _Zip
    name: str
    offset: int
    method: int
    packed: int
    size: int
    crc: int

    def read(self, most: int) -> bytes:
        """All of it, read at its offset: through zipfile this takes three times as long."""
        name = f"{self.name} in {self.zip.path}"
        check_size(self.size, packed=self.packed, name=name, most=most)
        data = self._unpacked() if self._is_common else self.zip.stretch(self, 0, self.size)
        if len(data) != self.size or zlib.crc32(data) != self.crc:
            raise self.damaged()
        return data

    @property
    def _is_common(self) -> bool:
        return self.method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

    def _unpacked(self) -> bytes:
        if not 0 <= self.offset < self.zip.size or self.packed > self.zip.size:
            raise self.damaged()
        block = self.zip.pread(30 + len(self.name) + _EXTRA_GUESS + self.packed, self.offset)
        if len(block) < 30 or block[:4] != b"PK\x03\x04":
            raise self.damaged()
        start = 30 + sum(struct.unpack_from("<HH", block, 26))  # lengths of name and extra field
        packed = block[start : start + self.packed]
        if len(packed) < self.packed:
            packed = self.zip.pread(self.packed, self.offset + start)
        if self.method == zipfile.ZIP_STORED:
            return packed
        try:
            # No more than the size that is stated, which may be a lie.
            return zlib.decompressobj(-15).decompress(packed, self.size + 1)
        except zlib.error:
            raise self.damaged() from None

    def piece(self, start: int, count: int) -> bytes:
        """At most `count` unpacked bytes from `start` on."""
        count = max(min(count, self.size - start), 0)
        if self.size <= _MAX_WHOLE and self._is_common:
            return self.read(_MAX_WHOLE)[start : start + count]
        return self.zip.stretch(self, start, count) if count else b""

    def damaged(self, why: object = "its checksum does not fit") -> UnusableError:
        where = f"{self.name} in {self.zip.path}"
        return UnusableError("unreadable", f"{where} is damaged ({why}); download the zip again")


class _Zip:
    """An open zip whose members can be read from any thread."""

    def __init__(self, path: Path | RemoteFile) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._streams: dict[str, IO[bytes]] = {}
        self._owner = os.getpid()
        try:
            self._file = _opened(path)
            self._archive = zipfile.ZipFile(self._file)
        except zipfile.BadZipFile:
            with _opened(path) as file:
                cut = file.read(2) == b"PK"
            why = "is a zip that is cut short or damaged; download it again"
            other = "is neither a folder nor a zip; give a folder or the zip as downloaded"
            raise SourceError(f"{path} {why if cut else other}") from None
        except (OSError, ValueError, LookupError, NotImplementedError, struct.error) as error:
            raise SourceError(f"{path} cannot be read as a zip: {error}; check the file") from None
        self.size = path.size if isinstance(path, RemoteFile) else path.stat().st_size

    def __reduce__(self) -> tuple[type[_Zip], tuple[Path | RemoteFile]]:
        return _Zip, (self.path,)  # another process opens its own

    def members(self) -> Iterator[_Member]:
        for info in self._archive.infolist():
            if not info.filename or info.is_dir() or _is_junk(info.filename):
                continue
            if info.flag_bits & 1:
                raise SourceError(
                    f"{info.filename} in {self.path} is encrypted; "
                    "unpack the zip with its password and give the folder instead"
                )
            yield _Member(self, *_STATED(info))

    def pread(self, size: int, offset: int) -> bytes:
        if isinstance(self.path, RemoteFile):
            return self.path.piece(offset, size)
        if hasattr(os, "pread"):
            return os.pread(self._file.fileno(), size, offset)
        with self._lock:  # Windows has no pread
            self._file.seek(offset)
            return self._file.read(size)

    def stretch(self, member: _Member, start: int, count: int) -> bytes:
        """A stretch of a member; the stream stays for the next one, as files are read in order."""
        with self._lock:  # a stream is for one thread alone
            if self._owner != os.getpid():  # forked processes share a file's position
                self._archive, self._streams = zipfile.ZipFile(_opened(self.path)), {}
                self._owner = os.getpid()
            stream = self._streams.pop(member.name, None)
        step = _STEP if member.method > zipfile.ZIP_DEFLATED else _BLOCK
        parts: list[bytes] = []
        try:
            if stream is None or stream.tell() > start:
                stream = self._archive.open(member.name)
            while (left := start + count - stream.tell()) > 0:
                before = start - stream.tell()
                part = stream.read(min(before if before > 0 else left, step))
                if not part:
                    break
                if before <= 0:
                    parts.append(part)
        except (ImportError, MemoryError, ClocsError):
            raise
        except Exception as error:  # each method raises errors of its own library
            raise member.damaged(error) from None
        if sum(map(len, parts)) < count:
            raise member.damaged()
        with self._lock:
            while len(self._streams) >= _MAX_STREAMS:
                self._streams.pop(next(iter(self._streams)))
            self._streams[member.name] = stream
        return b"".join(parts)

    def close(self) -> None:
        self._archive.close()
        self._file.close()


class PieceReader(io.RawIOBase):
    """A file as libraries want it, read from any place by its pieces.

    What goes wrong is kept as `error`: a library may call this from C, where nothing can be raised.
    """

    def __init__(self, piece: Callable[[int, int], bytes], size: int) -> None:
        self._piece, self._size, self._at = piece, size, 0
        self.error: ClocsError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError("before the beginning")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._piece(self._at, len(buffer))
        except ClocsError as error:
            self.error = error
            raise
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _opened(path: Path | RemoteFile) -> IO[bytes]:
    if isinstance(path, Path):
        return path.open("rb", buffering=0)
    return io.BufferedReader(PieceReader(path.piece, path.size), _BLOCK)


def _is_junk(name: str) -> bool:
    """Whether a file is hidden, or one of an operating system's."""
    return any(part in _JUNK or part.startswith(".") for part in PurePosixPath(name).parts)


_AnyFile: TypeAlias = _File | _Member | _Held | RemoteFile


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
        zips: list[_Zip],
        fingerprint: str,
    ) -> None:
        self.path = path
        self.names = tuple(sorted(files))
        self.fingerprint = fingerprint
        self._files = files
        self._zips = zips

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __repr__(self) -> str:
        return f"Source({str(self.path)!r}, {len(self.names)} files)"

    def __reduce__(self) -> tuple[object, ...]:
        return Source, (self.path, self._files, self._zips, self.fingerprint)

    def only(self, names: Iterable[str]) -> Source:
        """The same source with these files alone, for a process that needs no others."""
        files = {name: self._files[name] for name in names}
        return Source(self.path, files, self._zips, self.fingerprint)

    def read(self, name: str, most: int = MAX_BYTES) -> bytes:
        """The bytes of one file; one of more than `most` is refused before it is read. Thread-safe.

        Raises:
            SourceError: There is no such file, or it can no longer be reached.
            UnusableError: It is a damaged member of a zip, or too large.
        """
        return self._do(name, lambda file: file.read(most))

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

        remote = isinstance(self.path, Address)
        for start in range(0, len(names), _TOGETHER):
            some = names[start : start + _TOGETHER]
            yield from zip(some, each(some, head) if remote else map(head, some), strict=True)

    def piece(self, name: str, start: int, count: int) -> bytes:
        """A stretch of a file without reading all of it. Thread-safe.

        Pieces of a packed member of a zip are unpacked on the way: read them from front to end.
        Fewer bytes are returned where the file ends. Raises as `read`.
        """
        return self._do(name, lambda file: file.piece(start, count))

    def size(self, name: str) -> int:
        """Bytes of one file, unpacked; a member of a zip has as many as the zip claims."""
        return self._do(name, lambda file: file.size)

    def on_disk(self, name: str) -> str | None:
        """The path of a plain file; None for one in a zip, in memory or at an address."""
        return self._do(name, lambda file: file.path if isinstance(file, _File) else None)

    def _do(self, name: str, act: Callable[[_AnyFile], T]) -> T:
        file = self._files.get(name)
        if file is None:
            raise SourceError(f"{self.path} holds no file {name}; check what was given")
        try:
            return act(file)
        except OSError as error:
            detail = error.strerror or type(error).__name__
            raise SourceError(
                f"{name} of {self.path} can no longer be read ({detail}); is it still there?"
            ) from None

    def read_sibling(self, name: str, most: int = MAX_BYTES) -> bytes | None:
        """The bytes of a file beside the opened zip, or None; at most `most`."""
        if self.is_folder:
            return None
        place = self.path.parent / name
        if isinstance(place, Path):
            return _File(str(place)).read(most) if place.is_file() else None
        try:
            return remote_file(place).read(most)
        except MissingError:
            return None

    @property
    def is_folder(self) -> bool:
        """Whether a folder was opened, not a zip."""
        if isinstance(self.path, Path):
            return self.path.is_dir()
        return [str(one.path) for one in self._zips] != [str(self.path)]

    def check_unchanged(self) -> None:
        """Compare the files at an address with those of when it was opened.

        Raises:
            SourceError: Some are others: what was read of them may be of no single moment.
        """
        if isinstance(self.path, Path):
            return
        if open_source(self.path).fingerprint != self.fingerprint:
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
    root = parse_path_or_url(path)
    if isinstance(root, Path) and not os.path.exists(root):  # noqa: PTH110 (a path may be too long)
        raise SourceError(f"{_shown(root)} does not exist; give a folder or the zip as downloaded")
    files: dict[str, _AnyFile] = {}
    zips: list[_Zip] = []
    marks = hashlib.sha256()
    for name, found, mark in _walk(root, follow_links):
        if name != OPTIONS_FILE:
            marks.update(f"{name}\0{mark}\n".encode(errors="replace"))
        if name and not name.lower().endswith(".zip"):
            files[name] = found
            continue
        archive = _Zip(Path(found.path) if isinstance(found, _File) else found)
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
    root = parse_path_or_url(folder)
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


def _walk(
    root: Path | Address, follow_links: bool
) -> Iterator[tuple[str, _File | RemoteFile, str]]:
    """Name, file and mark of all files below a folder, by name; for a file, itself, nameless."""
    if isinstance(root, Address):
        listed = list_address(root)
        if not listed:
            raise SourceError(f"{root} holds no files; check its bucket or host, and its path")
        for name, file in listed:
            if not _is_junk(name):
                yield name, file, f"{file.size}\0{file.mark}"
        return
    if root.is_dir():
        found, left = _collect(str(root), follow_links)
    else:
        found, left = [("", str(root), root.stat())], []
    if left:
        warn(
            f"links in {root} that lead out of it or nowhere are not followed ({len(left):,}: "
            f"{first_of(sorted(left), 3)}); `follow_links` reads what they lead to"
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
                    if entry.name in _JUNK or entry.name.startswith("."):
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
                            if real in seen or (inside and not _is_junk(own)):
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

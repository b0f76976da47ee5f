r"""Source: files by name, below a folder, in a zip, or in zips inside a folder.

Reads without unpacking to disk, from many threads at once. Names are printable: bytes of a file
name that are no UTF-8 appear as `\xe9`.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from stat import S_ISREG

from clocs.errors import SourceError, UnusableError, printable
from clocs.limits import MOST_BYTES, check_size

_JUNK = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini"})
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_EXTRA_GUESS = 64  # local headers have an extra field whose length only they give
_TIGHTEST = 1032  # times smaller: deflate packs no tighter
_SMALL = 256 << 20  # bytes that a member may unpack to before its size is known to be true
_STEP = 4096  # packed bytes at a time: bzip2 makes 80 MB of as many


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


@dataclass(frozen=True, slots=True)
class _Member:
    """A file inside a zip, read at its offset so that threads need not wait for each other."""

    zip: _Zip
    name: str
    offset: int
    method: int
    packed: int
    size: int
    crc: int

    def read(self, most: int) -> bytes:
        name = f"{self.name} in {self.zip.path}"
        check_size(self.size, packed=self.packed, name=name, most=most)
        if self.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            data = self.zip.read_slowly(self.name, self.size)
        else:
            data = self._read_fast()
        if len(data) != self.size or zlib.crc32(data) != self.crc:
            raise self._damaged()
        return data

    def _read_fast(self) -> bytes:
        if not 0 <= self.offset < self.zip.size or self.packed > self.zip.size:
            raise self._damaged()
        guess = 30 + len(self.name) + _EXTRA_GUESS + self.packed
        block = self.zip.pread(guess, self.offset)
        if len(block) < 30 or block[:4] != b"PK\x03\x04":
            raise self._damaged()
        _, name_length, extra_length = _LOCAL_HEADER.unpack_from(block)
        start = 30 + name_length + extra_length
        packed = block[start : start + self.packed]
        if len(packed) < self.packed:
            packed = self.zip.pread(self.packed, self.offset + start)
        if self.method == zipfile.ZIP_STORED:
            return packed
        try:
            most = self.packed * _TIGHTEST + 64
            if most <= _SMALL:
                return zlib.decompress(packed, -15, min(self.size, most) or 1)
            return zlib.decompressobj(-15).decompress(
                packed, self.size + 1
            )  # its size may be a lie
        except zlib.error:
            raise self._damaged() from None

    def _damaged(self) -> UnusableError:
        return UnusableError(
            "unreadable",
            f"{self.name} in {self.zip.path} is damaged (its checksum does not fit); "
            "download the zip again",
        )


@dataclass(frozen=True, slots=True)
class _Held:
    """A file in memory."""

    data: bytes

    def read(self, most: int) -> bytes:
        return self.data


class _Zip:
    """An open zip whose members can be read by offset from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._owner = os.getpid()
        try:
            self._file = path.open("rb", buffering=0)
            self._archive = zipfile.ZipFile(self._file)
        except zipfile.BadZipFile:
            raise SourceError(_not_a_zip(path)) from None
        except (OSError, ValueError, LookupError, NotImplementedError, struct.error) as error:
            raise SourceError(f"{path} cannot be read as a zip: {error}; check the file") from None
        self._fd = self._file.fileno()
        self.size = path.stat().st_size

    def __reduce__(self) -> tuple[type[_Zip], tuple[Path]]:
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
            yield _Member(
                zip=self,
                name=info.filename,
                offset=info.header_offset,
                method=info.compress_type,
                packed=info.compress_size,
                size=info.file_size,
                crc=info.CRC,
            )

    def pread(self, size: int, offset: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._fd, size, offset)
        with self._lock:  # Windows has no pread
            self._file.seek(offset)
            return self._file.read(size)

    def read_slowly(self, name: str, size: int) -> bytes:
        """A member packed by a rarer method (bzip2, LZMA), through zipfile; no more than `size`."""
        try:
            with self._lock:
                if self._owner != os.getpid():  # forked processes share a file's position
                    self._archive = zipfile.ZipFile(self.path)
                    self._owner = os.getpid()
                with self._archive.open(name) as member:
                    parts = iter(lambda: member.read(min(_STEP, size)), b"")
                    return b"".join(parts)  # zipfile itself ends at the size that it was told
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # each method raises errors of its own library
            detail = f"{name} in {self.path} cannot be unpacked: {error}"
            raise UnusableError("unreadable", detail) from None

    def close(self) -> None:
        self._archive.close()
        self._file.close()


class Source:
    """Files by name; see `open_source`.

    Attributes:
        path: The folder or zip that was opened.
        names: Sorted, with forward slashes; a member of a zip inside a folder is named
            `folder/archive.zip/member`.
        fingerprint: Changes when a file's name, size or time changes, or a zip's members do.
    """

    def __init__(
        self,
        path: Path,
        files: Mapping[str, _File | _Member | _Held],
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

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Source({str(self.path)!r}, {len(self)} files)"

    def __reduce__(self) -> tuple[object, ...]:
        return Source, (self.path, self._files, self._zips, self.fingerprint)

    def read(self, name: str, most: int = MOST_BYTES) -> bytes:
        """The bytes of one file. Thread-safe.

        Args:
            name: One of `names`.
            most: Bytes; a larger file is refused before it is read or unpacked.

        Raises:
            SourceError: There is no such file, or it can no longer be reached.
            UnusableError: It is a damaged member of a zip, or too large.
        """
        file = self._files.get(name)
        if file is None:
            raise SourceError(f"{self.path} holds no file {name}; check what was given")
        try:
            return file.read(most)
        except OSError as error:
            detail = error.strerror or type(error).__name__
            raise SourceError(
                f"{name} of {self.path} can no longer be read ({detail}); is it still there?"
            ) from None

    def beside(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        """The bytes of a file in the folder that holds the opened zip, or None.

        Raises:
            UnusableError: It has more than `most` bytes.
        """
        file = self.path.parent / name
        if self.path.is_dir() or not file.is_file():
            return None
        return _File(str(file)).read(most)

    def close(self) -> None:
        for archive in self._zips:
            archive.close()


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a folder, a zip, or a folder with zips in it.

    Raises:
        SourceError: The path is missing, or a zip is cut short, damaged or encrypted.
    """
    root = Path(path)
    if not root.exists():
        raise SourceError(f"{root} does not exist; give a folder or the zip as downloaded")
    files: dict[str, _File | _Member] = {}
    zips: list[_Zip] = []
    marks = hashlib.sha256()
    for name, found, stat in _walk(root):
        marks.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="replace"))
        if name and not name.lower().endswith(".zip"):
            files[name] = _File(found)
            continue
        archive = _Zip(Path(found))
        zips.append(archive)
        prefix = f"{name}/" if name else ""
        for member in archive.members():
            files[prefix + member.name] = member
            marks.update(f"{member.name}\0{member.size}\0{member.crc}\n".encode(errors="replace"))
    return Source(root, files, zips, marks.hexdigest()[:32])


def open_files(folder: str | os.PathLike[str], names: Iterable[str] | None = None) -> Source:
    """Files directly in one folder (only `names`, if given), without opening zips among them."""
    root = Path(folder)
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


def _walk(root: Path) -> Iterator[tuple[str, str, os.stat_result]]:
    """Name, path and state of all files below a folder, by name; for a file, itself, nameless."""
    if not root.is_dir():
        yield "", str(root), root.stat()
        return
    found: list[tuple[str, str, os.stat_result]] = []
    _collect(str(root), "", found, set())
    yield from sorted(found)


def _collect(
    folder: str, prefix: str, found: list[tuple[str, str, os.stat_result]], seen: set[str]
) -> None:
    """Add the files below one folder; `Path` objects would take four times as long."""
    real = os.path.realpath(folder)
    if real in seen:  # a link to a parent
        return
    seen.add(real)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in _JUNK or entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    _collect(entry.path, f"{prefix}{printable(entry.name)}/", found, seen)
                elif entry.is_file():
                    name = f"{prefix}{printable(entry.name)}"
                    found.append((name, entry.path, entry.stat()))
    except OSError as error:
        raise SourceError(
            f"{error.filename} cannot be listed ({error.strerror}); check its rights"
        ) from None


def stem(path: str) -> str:
    """A file's name without its folder and suffix."""
    name = path[path.rfind("/") + 1 :]
    dot = name.rfind(".")
    return name[:dot] if dot > 0 else name


def _is_junk(name: str) -> bool:
    return any(part in _JUNK or part.startswith(".") for part in PurePosixPath(name).parts)


def _not_a_zip(path: Path) -> str:
    with path.open("rb") as file:
        started_well = file.read(2) == b"PK"
    if started_well:
        return f"{path} is a zip that is cut short or damaged; download it again"
    return f"{path} is neither a folder nor a zip; give a folder or the zip as downloaded"

"""Zips whose members are read at their offsets, from many threads at once."""

from __future__ import annotations

import io
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from clocs.errors import SourceError, UnusableError
from clocs.formats.addresses import RemoteFile
from clocs.limits import check_size

JUNK = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini"})  # of operating systems
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_EXTRA_GUESS = 64  # local headers have an extra field whose length only they give
_TIGHTEST = 1032  # times smaller: deflate packs no tighter
_SMALL = 256 << 20  # bytes that a member may unpack to before its size is known to be true
_STEP = 4096  # packed bytes at a time: bzip2 makes 80 MB of as many
_BLOCK = 1 << 20  # bytes at a time, of a stretch and on the way to it
_MAX_STREAMS = 4  # kept for the next stretch


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside a zip, read at its offset so that threads need not wait for each other."""

    zip: Zip
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

    def piece(self, start: int, count: int) -> bytes:
        """At most `count` unpacked bytes from `start` on; their checksum is not compared."""
        count = max(min(count, self.size - start), 0)
        if not count:
            return b""
        if self.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return self.zip.read_slowly(self.name, count, start)
        block = self.zip.pread(30, self.offset) if 0 <= self.offset < self.zip.size else b""
        if len(block) < 30 or block[:4] != b"PK\x03\x04":
            raise self._damaged()
        _, name_length, extra_length = _LOCAL_HEADER.unpack_from(block)
        begin = self.offset + 30 + name_length + extra_length
        if self.method == zipfile.ZIP_STORED:
            return self.zip.pread(min(count, max(self.packed - start, 0)), begin + start)
        stream = self.zip.resume(self.name, start) or _Inflating(self.zip, begin, self.packed)
        try:
            while stream.position < start:
                if not stream.read(min(start - stream.position, _BLOCK)):
                    raise self._damaged()
            data = stream.read(count)
        except zlib.error:
            raise self._damaged() from None
        if len(data) < count:
            raise self._damaged()
        self.zip.keep(self.name, stream)
        return data

    def _damaged(self) -> UnusableError:
        return UnusableError(
            "unreadable",
            f"{self.name} in {self.zip.path} is damaged (its checksum does not fit); "
            "download the zip again",
        )


class _Inflating:
    """A deflated member on the way through it."""

    def __init__(self, archive: Zip, begin: int, packed: int) -> None:
        self._zip, self._at, self._end = archive, begin, begin + packed
        self._inflate = zlib.decompressobj(-15)
        self.position = 0  # in the unpacked member

    def read(self, count: int) -> bytes:
        """The next `count` bytes; fewer only where the member ends."""
        parts: list[bytes] = []
        wanted = count
        size = min(max(count, _STEP), _BLOCK)
        while wanted and not self._inflate.eof:
            packed = self._inflate.unconsumed_tail
            if not packed:
                packed = self._zip.pread(min(size, self._end - self._at), self._at)
                self._at += len(packed)
            part = self._inflate.decompress(packed, wanted)
            if not part and not packed:
                break
            parts.append(part)
            wanted -= len(part)
        self.position += count - wanted
        return b"".join(parts)


class Zip:
    """An open zip whose members can be read by offset from any thread."""

    def __init__(self, path: Path | RemoteFile) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._streams: dict[str, _Inflating] = {}
        self._owner = os.getpid()
        try:
            self._file = _opened(path)
            self._archive = zipfile.ZipFile(self._file)
        except zipfile.BadZipFile:
            raise SourceError(_not_a_zip(path)) from None
        except (OSError, ValueError, LookupError, NotImplementedError, struct.error) as error:
            raise SourceError(f"{path} cannot be read as a zip: {error}; check the file") from None
        self.size = path.size if isinstance(path, RemoteFile) else path.stat().st_size

    def __reduce__(self) -> tuple[type[Zip], tuple[Path | RemoteFile]]:
        return Zip, (self.path,)  # another process opens its own

    def members(self) -> Iterator[Member]:
        for info in self._archive.infolist():
            if not info.filename or info.is_dir() or is_junk(info.filename):
                continue
            if info.flag_bits & 1:
                raise SourceError(
                    f"{info.filename} in {self.path} is encrypted; "
                    "unpack the zip with its password and give the folder instead"
                )
            yield Member(
                zip=self,
                name=info.filename,
                offset=info.header_offset,
                method=info.compress_type,
                packed=info.compress_size,
                size=info.file_size,
                crc=info.CRC,
            )

    def pread(self, size: int, offset: int) -> bytes:
        if isinstance(self.path, RemoteFile):
            return self.path.piece(offset, size)
        if hasattr(os, "pread"):
            return os.pread(self._file.fileno(), size, offset)
        with self._lock:  # Windows has no pread
            self._file.seek(offset)
            return self._file.read(size)

    def resume(self, name: str, start: int) -> _Inflating | None:
        """The stream of a member where a stretch before `start` ended, for one thread alone."""
        with self._lock:
            stream = self._streams.pop(name, None)
        return stream if stream is not None and stream.position <= start else None

    def keep(self, name: str, stream: _Inflating) -> None:
        """Keep a stream for the stretch that follows; long files are read from front to end."""
        with self._lock:
            while len(self._streams) >= _MAX_STREAMS:
                self._streams.pop(next(iter(self._streams)))
            self._streams[name] = stream

    def read_slowly(self, name: str, size: int, start: int = 0) -> bytes:
        """From a member packed by a rarer method (bzip2, LZMA), through zipfile; at most `size`."""
        try:
            with self._lock:
                if self._owner != os.getpid():  # forked processes share a file's position
                    self._archive = zipfile.ZipFile(_opened(self.path))
                    self._owner = os.getpid()
                with self._archive.open(name) as member:
                    for passed in range(0, start, _STEP):
                        member.read(min(_STEP, start - passed))
                    return _read_steps(member, size)
        except (ImportError, MemoryError, SourceError):
            raise
        except Exception as error:  # each method raises errors of its own library
            detail = f"{name} in {self.path} cannot be unpacked: {error}"
            raise UnusableError("unreadable", detail) from None

    def close(self) -> None:
        self._archive.close()
        self._file.close()


def _read_steps(member: IO[bytes], size: int) -> bytes:
    """Up to `size` bytes, a little at a time: zipfile's own `read` may unpack far more."""
    parts: list[bytes] = []
    while size > 0 and (part := member.read(min(_STEP, size))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class _Pieces(io.RawIOBase):
    """A file at an address, read piece by piece."""

    def __init__(self, file: RemoteFile) -> None:
        self._remote, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._remote.size}[whence]
        if base + offset < 0:
            raise OSError("before the beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._remote.piece(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _opened(path: Path | RemoteFile) -> IO[bytes]:
    if isinstance(path, Path):
        return path.open("rb", buffering=0)
    return io.BufferedReader(_Pieces(path), _BLOCK)


def is_junk(name: str) -> bool:
    """Whether a file is hidden, or one of an operating system's."""
    return any(part in JUNK or part.startswith(".") for part in PurePosixPath(name).parts)


def _not_a_zip(path: Path | RemoteFile) -> str:
    with _opened(path) as file:
        started_well = file.read(2) == b"PK"
    if started_well:
        return f"{path} is a zip that is cut short or damaged; download it again"
    return f"{path} is neither a folder nor a zip; give a folder or the zip as downloaded"

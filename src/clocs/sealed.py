"""Files that carry a digest of their content, which is compared whenever they are read.

Facts in JSON hash themselves (`own_hash`). Arrays are kept in safetensors files, with a checksum
among their facts (`ArrayFile`). A parquet file has a digest in front of its footer, where no other
reader looks (`seal_parquet`).

These notice damage; they are no protection against someone who changes a file on purpose.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clocs.errors import StoreError
from clocs.files import PRIVATE, file_error, write_atomic

_SEAL = 16  # bytes of the digest in a parquet file
_END = 8  # bytes after a parquet file's footer: its length, and "PAR1"
# names that files spell as earlier versions did, so that what is written keeps its hash
_SPELLED = {
    "optimizer": "optimiser",
    "normalization": "normalisation",
    "normalized_first": "normalised_first",
    "license": "licence",
    "labeled": "labelled",
    "unlabeled_recordings": "unlabelled_recordings",
    "keep_unlabeled": "keep_unlabelled",
}
_NOT_SO = (ValueError, TypeError, AttributeError)  # of facts that are other than expected
_NESTED = ("training", "settings", "views")  # objects within them that have such names
_READ = {stored: name for name, stored in _SPELLED.items()}


def spelled_for_files(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The same JSON object with names as files spell them."""
    return _renamed(facts, _SPELLED)


def spelled_in_code(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of a file with names as the code spells them."""
    return _renamed(facts, _READ)


def _renamed(facts: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {
        names.get(name, name): _renamed(value, names)
        if name in _NESTED and isinstance(value, dict)
        else value
        for name, value in facts.items()
    }


def own_hash(fields: Mapping[str, Any]) -> str:
    """The sha256 of all fields of a JSON object, however they are ordered."""
    canonical = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class ArrayFile:
    """One kind of safetensors file: facts in JSON, and arrays.

    Attributes:
        what: The kind in words, such as "a readable Frames file".
        key: Where the facts are in the file's metadata.
        format: Version of the kind; files of other versions are refused.
        remedy: How to make such a file again.
    """

    what: str
    key: str
    format: int
    remedy: str

    def write(
        self,
        path: Path,
        facts: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        *,
        keep: Path | None = None,
        mode: int = PRIVATE,
    ) -> None:
        """Write a file, complete or not at all; `keep` and `mode` as for `write_atomic`."""
        plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        full = {**facts, "format": self.format, "checksum": _checksum(plain)}
        full["sha256"] = own_hash(full)
        write_atomic(path, save(plain, {self.key: json.dumps(full)}), keep=keep, mode=mode)

    def read_facts(self, path: Path) -> dict[str, Any]:
        """The facts alone, compared with their hash."""
        with self._opened(path) as file:
            return self._facts(path, file)[0]

    def read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Facts and arrays, compared with their hashes; StoreError where they differ."""
        with self._opened(path) as file:
            facts, checksum = self._facts(path, file)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if _checksum(arrays) != checksum:
                raise ValueError("it is damaged: its arrays differ from their checksum")
        return facts, arrays

    def is_kind_of(self, path: Path) -> bool:
        """Whether the file is of this kind, of whatever version and however damaged."""
        try:
            with safe_open(path, framework="numpy") as file:
                return self.key in (file.metadata() or {})
        except (OSError, SafetensorError):
            return False

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        try:
            with safe_open(path, framework="numpy") as file:
                yield file
        except OSError as error:
            raise file_error(error, path, doing="read") from error
        except (SafetensorError, LookupError, RecursionError, *_NOT_SO) as error:
            why = " ".join(str(error).split())  # in one line, whatever the file made of it
            raise StoreError(f"{path} is not {self.what} ({why}); {self.remedy}") from error

    def _facts(self, path: Path, file: Any) -> tuple[dict[str, Any], int]:
        header = file.metadata() or {}
        if self.key not in header:
            raise ValueError("its header is of another kind")
        facts: dict[str, Any] = json.loads(header[self.key])
        if (version := facts["format"]) != self.format:
            raise StoreError(
                f"{path} has format {version!r}, but this version of clocs reads format "
                f"{self.format}, which has checksums; {self.remedy}"
            )
        if facts.pop("sha256") != own_hash(facts):
            raise ValueError("it is damaged: its facts differ from their own hash")
        del facts["format"]
        return facts, facts.pop("checksum")


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> int:
    """CRC-32 of names, types, shapes and values: a third of zlib's time, and always installed."""
    total = 0
    for name, array in sorted(arrays.items()):
        total = zlib.crc32(f"{name} {array.dtype.str} {array.shape}\n".encode(), total)
        total = zlib.crc32(array.data, total)
    return total


def seal_parquet(path: Path) -> None:
    """Add a digest of the whole file in front of its footer, which other readers skip."""
    with path.open("r+b") as file:
        at = _footer(file)
        footer = file.read()
        digest = _xxh3(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        file.seek(at)
        file.write(digest + footer)


def is_sealed(file: BinaryIO) -> bool:
    """Whether an open parquet file is as `seal_parquet` left it."""
    try:
        at = _footer(file)
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):  # too short
        return False
    file.seek(0)
    return _xxh3(content[: at - _SEAL], content[at:]) == content[max(0, at - _SEAL) : at]


def footer_of(file: BinaryIO) -> bytes:
    """The footer of an open parquet file, with its metadata; empty where it has none."""
    try:
        _footer(file)
        return file.read()
    except (OSError, ValueError):
        return b""


def _footer(file: BinaryIO) -> int:
    """Go to where the footer begins."""
    file.seek(-_END, os.SEEK_END)
    return file.seek(-_END - int.from_bytes(file.read(4), "little"), os.SEEK_END)


def _xxh3(*parts: mmap.mmap | memoryview) -> bytes:
    import xxhash  # where there is polars; arrays do without

    total = xxhash.xxh3_128()
    for part in parts:
        total.update(part)
    return total.digest()

"""Writing files so that each is whole or absent, and hashing. Knows nothing about ECGs."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clocs.errors import CheckpointError


def write_atomic(path: Path, content: bytes | memoryview, *, keep: Path | None = None) -> None:
    """Write `content` to `path`: on any interruption the file is the old one or the new one.

    Args:
        path: The file.
        content: All of it.
        keep: Where the old file stays; for a moment it is then the only one.
    """
    with replacing(path, keep=keep) as temporary, temporary.open("wb") as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, keep: Path | None = None) -> Iterator[Path]:
    """Where to write what becomes `path` when the `with` ends; see `write_atomic`.

    An error in it leaves `path` as it was, and nothing else.
    """
    temporary = partial_path(path)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            path.replace(keep)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def partial_path(path: Path) -> Path:
    """Where `write_atomic` collects a file before it gets its name."""
    return path.with_name(f".{path.name}.partial")


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut, where the system allows it."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_folder() -> Path:
    """Where computed things are kept: $CLOCS_CACHE, or the system's place for such."""
    if own := os.environ.get("CLOCS_CACHE"):
        return Path(own)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "clocs"


def seed_files(path: Path) -> list[Path]:
    """A checkpoint's file itself; of a folder, those of its seeds in order of their numbers."""
    if not path.is_dir():
        return [path]
    found = [p for p in path.glob("seed-*.safetensors") if p.stem[5:].isdigit()]
    if not found:
        raise CheckpointError(
            f"{path} holds no checkpoint (seed-0.safetensors …); make some with `clocs pretrain`"
        )
    return sorted(found, key=lambda p: int(p.stem[5:]))


def sha256_of(path: Path) -> str:
    """The hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(samples: NDArray[np.int16]) -> int:
    """A content key: XXH3 (64 bits) of the little-endian samples.

    It tells recordings apart and finds damage, at eight times the speed of sha256; it is no guard
    against someone who wants two recordings to look equal.
    """
    import xxhash  # where stores are made and checked, not where saved frames are used

    plain = np.ascontiguousarray(samples, dtype="<i2")
    return xxhash.xxh3_64_intdigest(plain.data)

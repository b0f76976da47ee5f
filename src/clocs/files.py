"""Atomic writes, file errors in words, the cache folder, and hashes."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clocs.errors import CheckpointError, FileError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def file_error(
    error: BaseException, path: str | os.PathLike[str], *, doing: Literal["read", "written"]
) -> FileError:
    """What the system says about a file, in one sentence with a remedy.

    Also takes the errors of libraries that only quote the system ("… (os error 28)"), such as those
    of polars. None of these is damage, so none advises to delete anything.
    """
    code = getattr(error, "errno", None)
    if code is None and (quoted := re.search(r"os error (\d+)", str(error))):
        code = int(quoted[1])
    where = getattr(error, "filename", None) or path
    if code in _FULL:
        reason = "the disk is full; free some space, then run the same command again"
    elif code in _FORBIDDEN:
        reason = "permission is missing; change the permissions or use another folder"
    elif code == errno.ENOENT:
        reason = "it does not exist; check the path"
    else:
        reason = f"{getattr(error, 'strerror', None) or error}; check the disk and the path"
    return FileError(f"{os.fspath(where)} cannot be {doing}: {reason}")


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the system's errors inside the `with` into a `FileError` about `path`."""
    try:
        yield
    except OSError as error:
        raise file_error(error, path, doing="written") from error


def write_atomic(path: Path, content: bytes | memoryview, *, keep: Path | None = None) -> None:
    """Write `content` to `path`: on any interruption the file is the old one or the new one.

    Args:
        path: The file.
        content: The whole new content.
        keep: Where to keep the old file; for a moment it is the only one.

    Raises:
        FileError: The disk is full, or permission is missing.
    """
    with (
        writing(path),
        replacing(path, keep=keep) as temporary,
        temporary.open("wb") as file,
    ):
        file.write(content)


@contextmanager
def replacing(path: Path, *, keep: Path | None = None) -> Iterator[Path]:
    """A path to write to that becomes `path` when the `with` ends; see `write_atomic`.

    An error inside leaves `path` as it was, and no other file.
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
    """The name of a file while `write_atomic` writes it."""
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
    """Where compiled code and saved frames are kept: $CLOCS_CACHE, or the user's cache folder."""
    if own := os.environ.get("CLOCS_CACHE"):
        return Path(own)
    from platformdirs import user_cache_path

    return user_cache_path("clocs", appauthor=False)


def seed_files(path: Path) -> list[Path]:
    """The checkpoint itself if it is a file; for a folder, its seeds' files in numerical order."""
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

    It identifies recordings and detects damage, eight times as fast as sha256, but is no protection
    against someone who wants two recordings to look equal.
    """
    import xxhash  # needed to make and check stores, not to use saved frames

    plain = np.ascontiguousarray(samples, dtype="<i2")
    return xxhash.xxh3_64_intdigest(plain.data)

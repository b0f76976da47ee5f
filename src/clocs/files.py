"""Files: atomic writes, locks, limits of reading and reading ahead, errors, CSV, cache, hashes.

No real recording meets the limits: 24 hours of twelve leads at 1000 Hz are 2 GB of int16.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import math
import os
import re
import secrets
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from clocs.errors import (
    BusyError,
    CheckpointError,
    ClocsError,
    FileError,
    SettingError,
    UnusableError,
)

T = TypeVar("T")
R = TypeVar("R")

MAX_BYTES = 4 << 30  # of one file, unpacked, and of one recording's int16 samples
MAX_HEADER_BYTES = 1 << 20  # of a WFDB header
MAX_TABLE_BYTES = 64 << 20  # of a table of labels or a list of episodes
MAX_LINE = 1000  # characters of a line that is parsed
# Files that unpack to more than this must have been packed at most so many times smaller: ECGs are
# packed 2 to 10 times smaller, and only constants 100 times.
UNPACKED_FREELY = 64 << 20
MAX_TIMES_SMALLER = 100


def check_size(size: int, *, packed: int, name: str, most: int = MAX_BYTES) -> None:
    """Refuse what is too large to be a recording, or was packed as only constants can be.

    Args:
        size: Bytes, unpacked.
        packed: Bytes as they lie on disk.
        name: For the message.
        most: Bytes that are too many.

    Raises:
        UnusableError: exceeds limits.
    """
    if size > most:
        detail = f"{name} has {_readable(size)} of data; at most {_readable(most)} are read"
        raise UnusableError("exceeds limits", detail)
    if size > UNPACKED_FREELY and size > MAX_TIMES_SMALLER * packed:
        raise UnusableError(
            "exceeds limits",
            f"{name} claims {_readable(size)} of data in {packed:,} bytes, which no ECG does",
        )


def _readable(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:,.1f} MiB"


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """Of a process that reads files.

    Attributes:
        memory: Bytes that it may take to read one recording.
        seconds: Of processor time, for one recording.
        wall_seconds: That may pass until the result, if there is a limit.
        scratch: Folder for its temporary files; the system's where None.
    """

    memory: int
    seconds: float
    wall_seconds: float | None = None
    scratch: str | None = None


def default_processes() -> int:
    """One per core that this process may use, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, 16)


def reading_limits() -> ReadingLimits:
    """8 GiB and 120 s; `CLOCS_READ_GIB` and `CLOCS_READ_SECONDS` in the environment change them.

    Raises:
        SettingError: One of them is no number, or too small.
    """
    memory = from_environment("CLOCS_READ_GIB", 8.0)
    return ReadingLimits(int(memory * 2**30), from_environment("CLOCS_READ_SECONDS", 120.0))


def prefetch(
    act: Callable[[T], R], items: Iterable[T], most: int, *, threads: int | None = None
) -> Iterator[R]:
    """`act` of each item, in order; up to `most` of them are done before they are needed.

    Items are taken in the caller's thread; an error is raised where its result would have come.
    """
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(act, item))
            if len(waiting) >= most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def kept(make: Callable[[Path], R], path: Path) -> R:
    """What `make` reads from a file and the card beside it, kept until one of them changes."""
    both = [one.stat() for one in (path, path.with_suffix(".json")) if one.exists()]
    return cast("R", _made(make, path, *((one.st_ino, one.st_mtime_ns) for one in both)))


@lru_cache(maxsize=4)
def _made(make: Callable[[Path], object], path: Path, *_: tuple[int, int]) -> object:
    return make(path)


def group_runs(items: Iterable[T], key: Callable[[T], object], most: int) -> Iterator[list[T]]:
    """Runs of consecutive items with equal keys, at most so many together."""
    run: list[T] = []
    for item in items:
        if run and (len(run) == most or key(item) != key(run[0])):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def from_environment(name: str, default: float) -> float:
    """A number in the environment, or the default; SettingError where it is none or too small."""
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not 0.1 <= value < 1e6:
        raise SettingError(f"{name} is {text!r} in the environment; give a number from 0.1 on")
    return value


LOCK = ".lock"
_ENDING = 300.0  # seconds in which a process that was lost must have ended
_AGAIN = 0.2  # seconds between two attempts
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_INT16 = np.dtype("<i2")
_PARTIAL = ".partial"  # how the name of an unfinished file ends
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")

PRIVATE, PUBLIC = 0o600, 0o666  # permissions of new files, less the umask
# how the names of all files in a cache folder begin
_CACHED = ("native", "demo", "pseudonyms", "vectors", "map-", "rates-", "stores")


def file_error(
    error: BaseException, path: str | os.PathLike[str], *, doing: Literal["read", "written"]
) -> FileError:
    """What the system says about a file, in one sentence with a remedy.

    Also takes the errors of libraries that only quote the system ("… (os error 28)"), such as those
    of polars. None of these is damage, so none advises to delete anything.
    """
    code = _system_code(error)
    where = getattr(error, "filename", None) or path
    if os.fspath(where).endswith(_PARTIAL):  # a name that says nothing to the user
        where = path
    if code in _FULL:
        reason = "the disk is full; free some space, then run the same command again"
    elif code in _FORBIDDEN:
        reason = "permission is missing; change the permissions or use another folder"
    elif code == errno.ENOENT:
        reason = "it does not exist; check the path"
    else:
        reason = f"{getattr(error, 'strerror', None) or error}; check the disk and the path"
    return FileError(f"{os.fspath(where)} cannot be {doing}: {reason}")


def _system_code(error: BaseException) -> int | None:
    """The system's number of an error, also where a library only quotes it; None where it does not.

    polars and safetensors end with "(os error 28)", FAISS with "No space left on device", and
    SQLite says "database or disk is full".
    """
    code, text = getattr(error, "errno", None), str(error)
    if isinstance(code, int):
        return code
    if isinstance(error, FileNotFoundError):  # of safetensors
        return errno.ENOENT
    if quoted := re.search(r"os error (\d+)", text):
        return int(quoted[1])
    full = "disk is full" in text or any(os.strerror(code) in text for code in _FULL)
    return errno.ENOSPC if full else None


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the system's errors inside the `with` into a `FileError` about `path`.

    Also those of libraries that report a full disk as an error of their own.
    """
    try:
        yield
    except ClocsError:
        raise
    except Exception as error:
        if isinstance(error, OSError) or _system_code(error) is not None:
            raise file_error(error, path, doing="written") from error
        raise


def write_atomic(
    path: Path, content: bytes | memoryview, *, keep: Path | None = None, mode: int = PRIVATE
) -> None:
    """Write `content` to `path`: on any interruption the file is the old one or the new one.

    Args:
        path: The file.
        content: The whole new content.
        keep: Where to keep the old file; for a moment it is the only one.
        mode: Permissions of a new file, less the umask; one that exists keeps its own.

    Raises:
        FileError: The disk is full, or permission is missing.
    """
    with (
        writing(path),
        replacing(path, keep=keep, mode=mode) as temporary,
        temporary.open("wb") as file,
    ):
        file.write(content)


@contextmanager
def replacing(path: Path, *, keep: Path | None = None, mode: int = PRIVATE) -> Iterator[Path]:
    """A path to write to that becomes `path` when the `with` ends; see `write_atomic`.

    Each writer has a path of its own, so that two of them at once both write a whole file, and the
    later one counts. An error inside leaves `path` as it was, and no other file. What a killed
    process left behind, the next writer of the same path removes.
    """
    remove_leftovers(path)
    temporary, handle = _new_partial(path, mode)
    try:
        with suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            path.replace(keep)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        if handle is not None:
            os.close(handle)
    sync_folder(path.parent)


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """CSV of cells as `csv_cell` gives them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([csv_cell(one) for one in row] for row in (columns, *rows))
    return text.getvalue()


def csv_cell(value: object) -> object:
    """A cell of a CSV file: all that clocs writes go through here.

    Text that a spreadsheet would run as a formula, and that is no number, gets an apostrophe in
    front; lists are joined by semicolons.
    """
    if isinstance(value, list | tuple):
        value = ";".join(map(str, value))
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return "" if value is None else value


def csv_value(text: str) -> str:
    """What a cell stood for."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def packaged_table(package: str, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of a package."""
    from importlib import resources  # it takes some milliseconds

    text = (resources.files(package) / name).read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def leftovers(path: Path) -> list[Path]:
    """Unfinished versions of a file, of writers that are at work or were killed."""
    name = re.compile(rf"\.{re.escape(path.name)}(\.[0-9a-f]{{8}})?{re.escape(_PARTIAL)}")
    with suppress(OSError), os.scandir(path.parent) as found:
        return [path.with_name(one.name) for one in found if name.fullmatch(one.name)]
    return []


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of a file."""
    for leftover in leftovers(path):
        _remove_if_abandoned(leftover)


def _new_partial(path: Path, mode: int) -> tuple[Path, int | None]:
    """A new file beside `path`, locked as long as the handle is open; None without such locks."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_PARTIAL}")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            if not flock(handle):
                os.close(handle)
                return temporary, None
            if is_file_of(temporary, handle):
                return temporary, handle
        except BlockingIOError:
            pass
        os.close(handle)  # taken for a leftover between creating and locking it: once more


def _remove_if_abandoned(partial: Path) -> None:
    """Remove an unfinished file unless its writer is alive, which then holds its lock."""
    with suppress(OSError):
        handle = os.open(partial, os.O_RDWR)
        try:
            if flock(handle):
                partial.unlink()
        finally:
            os.close(handle)


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut, where the system allows it."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder`, made for its owner alone where it does not exist, for this `with`.

    The system keeps the lock and drops it with the process, so that none is ever stale; the file is
    only what the lock is on. Where there are no such locks (Windows, some network disks), nothing
    is guarded. Take it after forking: a child that inherits the lock holds it, too.

    Raises:
        BusyError: Another process, or another thread of this one, holds it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # stores hold patient IDs
    path = folder / LOCK
    handle = _take(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # first: nobody may take a lock on a file without a name
        os.close(handle)


def once_free(act: Callable[[], T]) -> T:
    """`act()`, tried again while another process, perhaps of a lost worker, is in the way.

    Raises:
        BusyError: It still is after five minutes.
    """
    give_up = time.monotonic() + _ENDING
    while True:
        try:
            return act()
        except BusyError:
            if time.monotonic() > give_up:
                raise
        time.sleep(_AGAIN)


def _take(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            flock(handle)
            if is_file_of(path, handle):
                with suppress(OSError):  # a full disk: the lock holds without its holder's number
                    os.ftruncate(handle, 0)
                    os.write(handle, str(os.getpid()).encode())
                return handle
        except BlockingIOError:
            holder = os.read(handle, 20).decode(errors="replace")
            os.close(handle)
            who = f"another process ({holder})" if holder else "another process"
            raise BusyError(
                f"{path.parent} is being written by {who}; wait for it to end, or give another "
                "folder as `out`"
            ) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # released and removed between our opening it and locking it: once more


def flock(handle: int) -> bool:
    """Lock an open file; BlockingIOError where another holds it, False where there are no locks."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False  # a disk without locks
    return True


def is_file_of(path: Path, handle: int) -> bool:
    """Whether this path still is the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def private_folder(path: Path) -> None:
    """Make a folder, where there is none, that only its owner can look into."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_beside(folders: Iterable[Path], write: Callable[[Path], None]) -> None:
    """Write into the first folder that takes it: of a store that is still there, or of the cache.

    What is written there can be made again: where no folder takes it, it is not kept.
    """
    for folder in folders:
        with suppress(OSError, ClocsError):
            if folder.parent == cache_folder():
                private_cache(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            write(folder)
            return


def private_cache(path: Path) -> None:
    """Make a cache folder private, also one that exists, unless it holds others' files, too."""
    private_folder(path)
    if os.name != "posix" or not stat.S_IMODE(path.stat().st_mode) & 0o077:
        return
    if all(one.name.lstrip(".").startswith(_CACHED) for one in path.iterdir()):
        with suppress(PermissionError):  # it is another user's
            path.chmod(0o700)


def cache_folder() -> Path:
    """Where compiled code and saved frames are kept: $CLOCS_CACHE, or the user's cache folder."""
    if own := os.environ.get("CLOCS_CACHE"):
        return Path(own)
    try:
        from platformdirs import user_cache_path
    except ModuleNotFoundError:  # where only torch, numpy, scipy and safetensors are installed
        return Path.home() / ".cache" / "clocs"
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

    if samples.dtype != _INT16 or not samples.flags.c_contiguous:  # asking is cheaper than copying
        samples = np.ascontiguousarray(samples, _INT16)
    return xxhash.xxh3_64_intdigest(samples.data)


def folder_sizes(folder: Path) -> dict[Path, int]:
    """Bytes of each folder in it, the one not used for longest first."""
    found: list[tuple[float, Path, int]] = []
    with suppress(OSError):
        for inner in (one for one in folder.iterdir() if one.is_dir()):
            with suppress(OSError):  # another process deletes it
                size = sum(file.stat().st_size for file in inner.iterdir())
                found.append((inner.stat().st_mtime, inner, size))
    return {inner: size for _, inner, size in sorted(found)}

"""Files at addresses (`s3://bucket/folder`, `https://…`), reached through fsspec.

fsspec and what it needs for a kind of address are imported when the first one is used. They take
credentials from the environment and their own settings; none are kept or shown here. Every process
makes its own connections: they do not survive a fork.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from clocs.errors import ClocsError, SettingError, SourceError, UnusableError, printable, with_extra
from clocs.files import check_size

T = TypeVar("T")
R = TypeVar("R")

# One slash is what a `Path` leaves of two.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/{1,3}(?=[^/])", re.IGNORECASE)
_WEB = ("http", "https")
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), f"s3fs; {with_extra('s3')}"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs; run pip install gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "adlfs; run pip install adlfs"),
    **dict.fromkeys(_WEB, f"aiohttp; {with_extra('s3')}"),
}
# fsspec knows others that read further addresses from what they fetch, or run what it says.
SCHEMES = (*_PACKAGES, "file", "local", "memory")
# What changes with a file, in the words of different servers.
_MARKS = (
    *("ETag", "etag", "md5Hash", "Content-MD5", "generation", "mtime", "created"),
    *("LastModified", "last_modified", "Last-Modified", "updated"),
)
_DENIED = {"PermissionError", "NoCredentialsError", "ProfileNotFound", "CredentialRetrievalError"}
_UNREACHED = {"ConnectionError", "TimeoutError", "ClientConnectionError", "HTTPClientError"}
_AT_ONCE = 16  # requests
_WHOLE = 1 << 20  # bytes of a file that may be sent whole where a part was asked for


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """Where a file or folder is, in the manner of a `Path`; as text, without credentials.

    Attributes:
        scheme: 's3', 'https' …
        rest: Host or bucket, and path.
        query: What follows the path of a web address, such as a signature.
    """

    scheme: str
    rest: str
    query: str = ""

    @property
    def url(self) -> str:
        """The whole address, with credentials where some were given in it."""
        return f"{self.scheme}://{self.rest}{self.query}"

    def __str__(self) -> str:
        host, slash, path = self.rest.partition("/")
        if "@" in host and (self.scheme in _WEB or ":" in host[: host.rindex("@")]):
            host = host[host.rindex("@") + 1 :]
        return printable(f"{self.scheme}://{host}{slash}{path}")

    __repr__ = __str__

    @property
    def name(self) -> str:
        own = self.rest.rpartition("/")[2]
        return unquote(own) if self.scheme in _WEB else own

    @property
    def suffix(self) -> str:
        dot = self.name.rfind(".")
        return self.name[dot:] if dot > 0 else ""

    @property
    def parent(self) -> Address:
        return replace(self, rest=self.rest.rpartition("/")[0])

    def __truediv__(self, name: str) -> Address:
        return replace(self, rest=f"{self.rest}/{name}")

    def with_name(self, name: str) -> Address:
        return self.parent / name

    def inside(self, folder: Address) -> str:
        """Its name in a folder, with slashes; '' where it is not in it."""
        outer = f"{folder.rest}/"
        same = self.scheme == folder.scheme and self.rest.startswith(outer)
        return self.rest.removeprefix(outer) if same else ""

    def exists(self) -> bool:
        return bool(self._kind())

    def is_dir(self) -> bool:
        """Whether it is a folder; of a web server, a page, which may list files."""
        return self._kind() in ("directory", "text/html")

    def is_file(self) -> bool:
        return self._kind() not in ("", "directory", "text/html")

    def _kind(self) -> str:
        """'directory', or the type of a file; '' where there is nothing."""
        try:
            info = self.info()
        except MissingError:
            return ""
        page = info.get("mimetype") == "text/html"
        return "text/html" if page else str(info.get("type") or "file")

    def info(self) -> dict[str, Any]:
        """What fsspec says about the file or folder; MissingError where there is nothing."""
        with translate_fsspec_errors(self):
            system, path = self.system()
            return dict(system.info(path))

    def system(self) -> tuple[Any, str]:
        """The file system of fsspec and the path in it; within `translate_fsspec_errors`."""
        from fsspec.core import url_to_fs

        system, path = url_to_fs(self.url)
        return system, path


class MissingError(SourceError):
    """There is nothing at an address."""


def parse_path_or_url(given: str | os.PathLike[str] | Address) -> Path | Address:
    """An `Address`, also where its text went through a `Path`; otherwise the `Path`.

    Raises:
        SettingError: It is an address of a kind that is not read, or several in one ('::').
    """
    if isinstance(given, Address):
        return given
    text = os.fspath(given)
    found = _ADDRESS.match(text)
    if found is None:
        return Path(text)
    scheme = found[1].lower()
    rest, mark, query = text[found.end() :], "", ""
    if scheme in _WEB:
        rest, mark, query = rest.partition("?")
    rest = rest.rstrip("/")
    made = Address(scheme, f"/{rest}" if scheme in ("file", "local") else rest, mark + query)
    if scheme not in SCHEMES:
        kinds = ", ".join(f"{one}://" for one in SCHEMES)
        raise SettingError(f"{made} is not an address that clocs can read; use one of {kinds}")
    if "::" in text:
        raise SettingError(f"{made} joins several addresses with '::'; give a single one")
    return made


def last_name(given: str) -> str:
    """The last part of a path or an address, without what may be a secret."""
    place = parse_path_or_url(given)
    own = given.replace("\\", "/").rpartition("/")[2]
    return place.name if isinstance(place, Address) else own


@contextmanager
def translate_fsspec_errors(address: Address) -> Iterator[None]:
    """Turn the errors of file systems into a sentence about this address.

    Raises:
        MissingError: There is nothing.
        SourceError: Access is denied, or the server cannot be reached.
        SettingError: There is no such kind of address, or its package is missing.
    """
    try:
        yield
    except (ClocsError, MemoryError):
        raise
    except ImportError as error:
        needed = _PACKAGES.get(address.scheme, f"a package that is not installed ({error})")
        raise SettingError(f"{address.scheme}:// addresses need {needed}") from None
    except Exception as error:  # every file system raises those of its own library
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):  # of the disk here
            raise
        causes = [one for one in (error, error.__cause__) if one is not None]
        kinds = {kind.__name__ for one in causes for kind in type(one).__mro__}
        status = next((one.status for one in causes if hasattr(one, "status")), None)
        if status in (401, 403) or kinds & _DENIED:
            said = (
                f"access to {address} is denied; give credentials in the environment, such as "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE for s3://"
            )
        elif kinds & _UNREACHED:
            said = f"the server of {address} cannot be reached; check the address"
        elif "FileNotFoundError" in kinds:
            raise MissingError(
                f"{address} does not exist; check its bucket or host, and its path"
            ) from None
        else:  # texts of libraries may quote the whole address, with its credentials
            text = re.sub(r"\S+://\S+", str(address), (str(error).splitlines() or [""])[0])
            kind = type(error).__name__
            said = f"{address} cannot be reached ({kind}: {text:.200}); try again later"
        raise SourceError(said) from None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at an address, as it was listed.

    Attributes:
        address: Of the file.
        size: Bytes.
        mark: Changes with its content.
    """

    address: Address
    size: int
    mark: str = ""

    def __reduce__(self) -> tuple[type[RemoteFile], tuple[Address, int, str]]:
        if self.address.scheme == "memory":
            raise pickle.PicklingError("another process has another memory")
        return RemoteFile, (self.address, self.size, self.mark)

    def __str__(self) -> str:
        return str(self.address)

    def read(self, most: int) -> bytes:
        """All of it; UnusableError where it has more than `most` bytes."""
        check_size(self.size, packed=self.size, name=str(self), most=most)
        data = self._bytes(0, self.size + 1) if self.size else b""  # one more, if it has grown
        if len(data) != self.size:
            raise self._changed()
        return data

    def piece(self, start: int, count: int) -> bytes:
        """At most `count` bytes from `start` on."""
        count = max(min(count, self.size - start), 0)
        if not count:
            return b""
        data = self._bytes(start, start + count)
        if len(data) > count:
            if self.size > _WHOLE:
                raise SourceError(
                    f"the server of {self} sends whole files only, of which parts are needed; "
                    "download it and give its path"
                )
            data = data[start : start + count]
        if len(data) < count:
            raise self._changed()
        return data

    def _bytes(self, start: int, stop: int) -> bytes:
        with translate_fsspec_errors(self.address):
            system, path = self.address.system()
            data: bytes = system.cat_file(path, start=start, end=stop)
            return data

    def _changed(self) -> SourceError:
        return SourceError(
            f"{self} has changed since it was listed; wait until nobody writes it, then start again"
        )


def remote_file(address: Address) -> RemoteFile:
    """The file at an address.

    Raises:
        MissingError: There is none.
    """
    return _listed(address, address.info())


def files_at(folder: Address, names: Iterable[str] | None) -> dict[str, RemoteFile]:
    """Files directly in one folder by name; only those of `names`, if given, that exist."""
    if names is None:
        return dict(list_address(folder, depth=1))
    files = {}
    for name in names:
        with suppress(MissingError):
            files[printable(name)] = remote_file(folder / name)
    return files


def list_address(address: Address, depth: int | None = None) -> list[tuple[str, RemoteFile]]:
    """Every file below an address by its name there, sorted; of a file, itself, nameless.

    Args:
        address: Of a folder or a file.
        depth: 1 for the files directly in it.

    Raises:
        SourceError: There is nothing, or it cannot be listed.
    """
    if address.suffix.lower() == ".zip":
        return [("", remote_file(address))]
    with translate_fsspec_errors(address):
        system, root = address.system()
        system.invalidate_cache()
        found: dict[str, dict[str, Any]] = system.find(root, maxdepth=depth, detail=True)
    root = root.rstrip("/")
    if root in found:
        return [("", remote_file(address))]
    # A page may link to other places of its server, which are not below the address, and to
    # itself sorted otherwise ("?C=N").
    inner = {
        path[len(root) :].lstrip("/"): info
        for path, info in found.items()
        if path.startswith(f"{root}/") and info.get("type", "file") == "file"
    }
    names = [name for name in inner if name and not name.endswith("/") and "?" not in name]
    if address.scheme in _WEB:  # its pages give no sizes
        files = each([address / name for name in names], remote_file)
        names = [unquote(name) for name in names]
    else:
        files = [_listed(address / name, inner[name]) for name in names]
    return sorted(zip(map(printable, names), files, strict=True), key=lambda one: one[0])


def each(items: Iterable[T], act: Callable[[T], R]) -> list[R]:
    """The results for all items, many at a time: servers answer slowly, but several at once."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch") as pool:
        try:
            return list(pool.map(act, items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _listed(address: Address, info: Mapping[str, Any]) -> RemoteFile:
    size = info.get("size")
    if not isinstance(size, int):
        raise UnusableError(
            "unreadable", f"the server of {address} does not say how large it is; download it"
        )
    return RemoteFile(address, size, " ".join(str(info[key]) for key in _MARKS if key in info))

"""Downloading a published dataset: its files in parallel, resumed, verified, named when whole.

Nothing that the server says is trusted: lengths are counted, ranges compared with what was asked
for, redirections kept to HTTP, and the content compared with a checksum before it gets its name.
What the web needs is imported with the first request: every dataset's module is imported early.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import tempfile
import threading
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, urlsplit

from clocs._version import __version__
from clocs.errors import FileError, SettingError, SourceError, UnusableError, find_row
from clocs.files import (
    MAX_TABLE_BYTES,
    PUBLIC,
    check_size,
    locked,
    sha256_of,
    sync_folder,
    write_atomic,
    writing,
)

CONNECTIONS = 8
ATTEMPTS = 6  # in a row that a server may fail without sending anything of use
WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # before the second attempt, doubled each time; at most
TIMEOUT_S = 60.0  # without a byte after which a connection has failed
PARTIAL = ".partial"  # a folder; names with a dot are no recordings
_SPARE = 64 << 20  # bytes of the disk that are left to others
_BLOCK = 256 << 10
_WORTH = 64 << 10  # bytes received that make an attempt more than a failure
_MAX_BYTES = 1 << 40  # of a file, and of what a zip unpacks to
_MAX_FAILURES = 20  # files
_RETRY = (408, 425, 429, 500, 502, 503, 504)
_LINE = re.compile(r"([0-9a-fA-F]{64}) +\*?(.+)")  # PhysioNet has one space, sha256sum two
_PART = re.compile(r"(?!\.\.?$)[^/\\:\x00-\x1f\x7f]{1,200}(?<! )")  # of a name


@dataclass(frozen=True, slots=True)
class Publication:
    """One published dataset; `publications.toml` has all of them.

    Attributes:
        name: Of the dataset in clocs.
        title: As published; what it is, where it has no title.
        page: For people.
        citation: Of the paper or the publication that describes it.
        version: As published; '' where there is none.
        license: '' where the publisher names none.
        archives: Addresses of the files to fetch, by their names here.
        folder: Address of a folder whose files `sums` lists; '' where there is none.
        sums: Name of the list of sha256 there.
        only: What to fetch of the folder: files, or folders with '/' at the end; all where empty.
        size: Bytes of the archives (of the folder, where there are none); 0 where unknown.
    """

    name: str
    title: str
    page: str
    citation: str
    version: str = ""
    license: str = ""
    archives: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    sums: str = "SHA256SUMS.txt"
    only: Sequence[str] = ()
    size: int = 0


_TABLE = tomllib.loads((files("clocs.datasets") / "publications.toml").read_text("utf-8"))
PUBLICATIONS: Final = MappingProxyType(
    {name: Publication(name, **facts) for name, facts in _TABLE.items()}
)


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file of a dataset: its name below the folder, address, and sha256 where published."""

    name: str
    url: str
    sha256: str = ""


@dataclass(frozen=True)
class DownloadPlan:
    """What a download will fetch.

    Attributes:
        publication: The dataset.
        files: All of them, whether they are here already or not.
        size: Bytes of all, as published; 0 where unknown.
        sums: The list of sha256 that they are compared with; b'' where there is none.
    """

    publication: Publication
    files: tuple[PublishedFile, ...]
    size: int
    sums: bytes = b""


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What a download did.

    Attributes:
        folder: Where the files are.
        files: How many there are.
        fetched: How many of them were not there before.
        received: Bytes that came over the network.
    """

    folder: Path
    files: int
    fetched: int
    received: int


def download(
    name: str,
    *,
    out: Path | str,
    url: str | None = None,
    only: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Downloaded:
    """Download a dataset, or what is missing of it; interrupted, the same call continues.

    Every file is compared with its published sha256, or, where there is none, all members of a zip
    with their checksums, before it gets its name.

    Args:
        name: Of the dataset: 'ptbxl', 'mitbih' …; `PUBLICATIONS` has all of them.
        out: The folder for its files, made where it does not exist.
        url: Address of a folder with the same files, instead of the publisher's.
        only: Files, or folders with '/' at the end, of a dataset that is published file by file;
            they are fetched singly where there is a zip, too.
        progress: Called with (done, total): files, or MB of archives (total 0 where unknown).

    Raises:
        SettingError: No such dataset, or nothing of it is chosen.
        SourceError: The server does not have a file, or sends something else.
        FileError: The disk is full, or permission is missing.
        BusyError: Another process is downloading into `out`.
    """
    plan, folder = plan_download(name, url=url, only=only), Path(out)
    partials = folder / PARTIAL
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(partials):
            paths = (*(folder / file.name for file in plan.files), *partials.glob("*.data"))
            held = sum(path.stat().st_size for path in paths if path.is_file())
            _check_space(folder, plan.size - held)
            fetched, received = _fetch(plan, folder, progress or (lambda done, total: None))
            if plan.sums:
                write_atomic(folder / plan.publication.sums, plan.sums, mode=PUBLIC)
        with suppress(OSError):  # what another plan left there
            partials.rmdir()
    return Downloaded(folder, len(plan.files), fetched, received)


def plan_download(name: str, *, url: str | None = None, only: Sequence[str] = ()) -> DownloadPlan:
    """What `download` would fetch; nothing is written. The parameters are those of `download`."""
    publication = find_row(PUBLICATIONS, name, "published dataset")
    if url is not None:
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
            raise SettingError(f"`url` is {url!r:.200}; it must begin with https:// or http://")
        url = url.rstrip("/") + "/"
    if publication.archives and not only:
        archives = tuple(
            PublishedFile(file, url + quote(file) if url else address)
            for file, address in publication.archives.items()
        )
        return DownloadPlan(publication, archives, publication.size)
    if not publication.folder:
        raise SettingError(f"{name} is not published file by file; leave out `only`")
    base = url or publication.folder
    sums = _read(base + quote(publication.sums))
    listed = parse_sums(sums, name=base + publication.sums)
    wanted = tuple(only or publication.only)
    folders = tuple(one for one in wanted if one.endswith("/"))
    chosen = tuple(
        PublishedFile(file, base + quote(file), digest)
        for file, digest in listed.items()
        if not wanted or file in wanted or file.startswith(folders)
    )
    if not chosen:
        raise SettingError(
            f"{base}{publication.sums} lists no file of {', '.join(wanted)}; give other names as "
            "`only`, with '/' at the end of folders"
        )
    return DownloadPlan(publication, chosen, 0 if wanted else publication.size, sums)


def parse_sums(content: bytes, *, name: str) -> dict[str, str]:
    """The sha256 of files by name, from a list as `sha256sum` writes it.

    Raises:
        SourceError: It is no such list, or one of its names could lead out of a folder.
    """
    found: dict[str, str] = {}
    for line in content.decode("utf-8", errors="replace").splitlines():
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        file = match[2].removeprefix("./") if match else ""
        parts = file.split("/")
        if match is None or not all(_PART.fullmatch(part) for part in parts):
            raise SourceError(
                f"{name} is no list of files with their sha256 (a line is {line!r:.100}); "
                "try again later, or give another address as `url`"
            )
        if found.get(file, match[1].lower()) != match[1].lower():
            raise SourceError(f"{name} lists {file:.100} twice; give another address as `url`")
        if not any(part.startswith(".") for part in parts):  # hidden files are no recordings
            found[file] = match[1].lower()
    return found


def _fetch(plan: DownloadPlan, folder: Path, report: Callable[[int, int], None]) -> tuple[int, int]:
    """Fetch in threads; how many files, and bytes."""
    stop, sizes = threading.Event(), [0]  # a list, to which threads may append

    def fetch(file: PublishedFile) -> bool:
        transfer = _Transfer(file, folder / file.name, folder / PARTIAL, sizes.append, stop)
        if stop.is_set() or transfer.is_here():
            return False
        transfer.run()
        return True

    problems: list[SourceError] = []
    fetched = done = received = 0
    left = iter(plan.files)
    pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="download")
    flying: set[Future[bool]] = set()
    try:
        while len(problems) < _MAX_FAILURES:
            while len(flying) < 2 * CONNECTIONS and (file := next(left, None)):
                flying.add(pool.submit(fetch, file))
            if not flying:
                break
            ready, flying = wait(flying, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in ready:
                done += 1
                try:
                    fetched += future.result()
                except SourceError as error:
                    problems.append(error)
            while sizes:
                received += sizes.pop()
            if plan.sums:
                report(done, len(plan.files))
            else:
                report(round(received / 1e6), round(plan.size / 1e6))
    finally:
        stop.set()  # a thread that waits for the server ends with its next block
        pool.shutdown(wait=not flying, cancel_futures=True)
    if problems:
        more = f" (and {len(problems) - 1} more files)" if problems[1:] else ""
        raise SourceError(f"{problems[0]}{more}")
    return fetched, received


def _read(url: str) -> bytes:
    """A small file of a server."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "content")
        _Transfer(PublishedFile("content", url), path, Path(folder), most=MAX_TABLE_BYTES).run()
        return path.read_bytes()


class _RetryError(Exception):
    """Why the server may do better next time, and the seconds that it asks to wait."""


@dataclass(frozen=True)
class _Transfer:
    """One file over HTTP: in pieces, resumed, verified, and named only when it is whole.

    Attributes:
        file: What to fetch.
        path: Where it belongs.
        partials: A folder for what is not whole yet, and a note on what the server said of it.
        received: Called with the number of bytes of each block.
        stop: Set when the file is no longer wanted.
        most: Bytes that are too many for it.
    """

    file: PublishedFile
    path: Path
    partials: Path
    received: Callable[[int], None] = lambda count: None
    stop: threading.Event = field(default_factory=threading.Event)
    most: int = _MAX_BYTES

    @property
    def _data(self) -> Path:
        key = f"{self.file.url}\0{self.file.sha256}\0{self.path.name}"
        return self.partials / f"{sha256(key.encode()).hexdigest()[:24]}.data"

    @property
    def _note(self) -> Path:
        return self._data.with_suffix(".json")

    def is_here(self) -> bool:
        """Whether the file is in its place, as published."""
        return self.path.is_file() and not self._problem(self.path)

    def run(self) -> None:
        """Fetch the file, from where the last attempt ended, and put it into its place.

        Raises:
            SourceError: The server does not have it, or sends something else.
            FileError: It cannot be written.
        """
        url = self.file.url
        failures = mismatches = 0
        reached = self._held()
        while True:
            try:
                self._receive()
            except _RetryError as error:
                # Only what no earlier attempt had is progress.
                failures = 0 if self._held() - reached >= _WORTH else failures + 1
                reached = max(reached, self._held())
                if failures >= ATTEMPTS:
                    raise SourceError(
                        f"{url} cannot be downloaded ({error.args[0]}); what is done is kept: run "
                        "the same command again later to continue"
                    ) from None
                seconds = max(WAIT_S * 2 ** max(failures - 1, 0), error.args[1])
                self.stop.wait(min(seconds, LONGEST_WAIT_S))
                continue
            problem = self._problem(self._data)
            if not problem:
                break
            self._drop()  # perhaps it changed between two attempts: once more, from its start
            mismatches += 1
            if mismatches > 1:
                raise SourceError(
                    f"{url} is not the published file ({problem}); try again later, or give "
                    "another address as `url`"
                )
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._data.open("rb+") as file:
                os.fsync(file.fileno())
            self._data.replace(self.path)
            sync_folder(self.path.parent)
            self._note.unlink(missing_ok=True)

    def _held(self) -> int:
        return self._data.stat().st_size if self._data.exists() else 0

    def _drop(self) -> None:
        self._data.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def _problem(self, path: Path) -> str:
        """What is wrong with the content of a whole file; '' where nothing is."""
        if self.file.sha256:
            return "" if sha256_of(path) == self.file.sha256 else "its sha256 differs"
        return zip_problem(path) if self.path.suffix.lower() in (".zip", ".xlsx") else ""

    def _receive(self) -> None:
        """One attempt: from what is held to the end of the file."""
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import Request

        held, validator = self._held(), self._validator()
        if held and not (validator or self.file.sha256):
            held = 0  # no way to tell whether the rest would be of the same file
        headers = {"User-Agent": f"clocs/{__version__}", "Accept-Encoding": "identity"}
        if held:
            headers |= {"Range": f"bytes={held}-"} | ({"If-Range": validator} if validator else {})
        try:
            request = Request(self.file.url, headers=headers)
            with _opener().open(request, timeout=TIMEOUT_S) as response:
                self._append(response, held)
        except HTTPError as error:
            if error.code == 416 and held:  # there is nothing from here on: another, shorter file?
                self._drop()
            if error.code not in (*_RETRY, 416):
                raise SourceError(
                    f"{self.file.url} cannot be downloaded: the server answers {error.code} "
                    f"({error.reason}); look at the dataset's page, or give another address as "
                    "`url`"
                ) from None
            after = error.headers.get("Retry-After", "").strip()
            seconds = float(after) if after.isdecimal() else 0.0  # a date is not waited for
            raise _RetryError(f"the server answers {error.code}", seconds) from None
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise _RetryError(str(reason) or type(error).__name__, 0.0) from None

    def _validator(self) -> str:
        """What tells whether the server's file is still the one of which a part is held."""
        noted = self._note.read_text("utf-8", "replace") if self._note.is_file() else ""
        return noted if noted.isascii() and noted.isprintable() else ""

    def _append(self, response: Any, held: int) -> None:
        """Append what a successful response brings."""
        headers, length = response.headers, response.length
        if response.status == 206:
            part = re.fullmatch(rf"bytes {held}-\d+/(\d+)", headers.get("Content-Range", ""))
            if part is None:
                self._drop()
                raise _RetryError("the server sent another part than was asked for", 0.0)
            length = int(part[1])
        else:  # all of it: the server knows no ranges, or the file has changed
            self._drop()
            held = 0
            tag = str(headers.get("ETag", ""))
            with writing(self._note):
                strong = tag.startswith('"')
                self._note.write_text(tag if strong else headers.get("Last-Modified", ""), "utf-8")
        self._expect(length or held)
        _check_space(self.partials, (length or held) - held)
        with writing(self.path):
            file = self._data.open("ab", buffering=0)
        with file:
            while block := response.read(_BLOCK):
                with writing(self.path):
                    file.write(block)
                held += len(block)
                self.received(len(block))
                self._expect(held)
        if length is not None and held != length:
            if held > length:
                self._drop()
            raise _RetryError(f"{held:,} of {length:,} bytes came", 0.0)

    def _expect(self, size: int) -> None:
        """Refuse a file that is no longer wanted, or too large for what was expected."""
        if self.stop.is_set():
            raise SourceError(f"the download of {self.file.url} was stopped")
        if size > self.most:
            raise SourceError(
                f"{self.file.url} has {size:,} bytes or more; no more than {self.most:,} were "
                "expected"
            )


def _opener() -> Any:
    """Makes requests, through the proxy that the environment names, if any."""
    from urllib.request import HTTPRedirectHandler, build_opener

    class Checked(HTTPRedirectHandler):
        def redirect_request(
            self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
        ) -> Any:
            check_redirection(req.full_url, newurl)
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    return build_opener(Checked)


def check_redirection(before: str, after: str) -> None:
    """Refuse a redirection to anything but HTTPS, or from HTTP to HTTP.

    Raises:
        SourceError: With both addresses.
    """
    schemes = urlsplit(before).scheme, urlsplit(after).scheme
    if schemes[1] != "https" and schemes != ("http", "http"):
        raise SourceError(
            f"{before} redirects to {after:.200}, which is not followed; "
            "give another address as `url`"
        )


def _check_space(folder: Path, size: int) -> None:
    """Refuse to write more than the disk has room for."""
    free = shutil.disk_usage(folder).free - _SPARE
    if size > free:
        raise FileError(
            f"{folder} has room for {max(free, 0) / 1e9:,.2f} GB, and {size / 1e9:,.2f} GB are to "
            "be written; free some space, or give a folder on another disk as `out`"
        )


def zip_problem(path: Path) -> str:
    """What is wrong with a zip, all of whose members are compared with their checksums."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            size, packed = sum(info.file_size for info in infos), path.stat().st_size
            check_size(size, packed=packed, name="it", most=_MAX_BYTES)
            return "it is no whole zip" if archive.testzip() else ""
    except UnusableError as error:
        return error.detail
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError, struct.error):
        return "it is no whole zip"

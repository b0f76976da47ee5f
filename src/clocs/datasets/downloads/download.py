"""Downloading a named dataset: which files, and all of them in parallel."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from clocs.datasets.downloads.file_checks import check_space
from clocs.datasets.downloads.http_client import WebClient, check_address
from clocs.datasets.downloads.http_file import PARTIAL, HttpFile, Patience
from clocs.datasets.downloads.publications import PUBLICATIONS, Publication
from clocs.errors import SettingError, SourceError
from clocs.files import PUBLIC, locked, write_atomic, writing
from clocs.limits import MAX_TABLE_BYTES

CONNECTIONS = 4
_MAX_FAILURES = 20
_LINE = re.compile(r"([0-9a-fA-F]{64}) +\*?(.+)")  # PhysioNet has one space, sha256sum two
_PART = re.compile(r"(?!\.\.?$)[^/\\:\x00-\x1f\x7f]{1,200}(?<! )")  # of a name


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a dataset: its name below the folder, address, and sha256 where published."""

    name: str
    url: str
    sha256: str = ""


@dataclass(frozen=True)
class DownloadPlan:
    """What a download will fetch.

    Attributes:
        publication: The dataset.
        out: The folder for its files.
        files: All of them, whether they are here already or not.
        size: Bytes of all, as published; 0 where unknown.
        sums: The list of sha256 that they are compared with; b'' where there is none.
    """

    publication: Publication
    out: Path
    files: tuple[RemoteFile, ...]
    size: int
    sums: bytes = b""

    @property
    def unit(self) -> str:
        """What its progress is counted in: files, or MB where there are only a few large ones."""
        return "files" if self.sums else "MB"


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
    as_files: bool = False,
    connections: int = CONNECTIONS,
    progress: Callable[[int, int], None] | None = None,
    patience: Patience | None = None,
) -> Downloaded:
    """Download a dataset, or what is missing of it; interrupted, the same call continues.

    Every file is compared with its published sha256, or, where there is none, all members of a zip
    with their checksums, before it gets its name.

    Args:
        name: Of the dataset: 'ptbxl', 'mitbih' …; `PUBLICATIONS` has all of them.
        out: The folder for its files, made where it does not exist.
        url: Address of a folder with the same files, instead of the publisher's.
        only: Files, or folders with '/' at the end, of a dataset that is published file by file.
        as_files: Fetch single files, compared with the published list, where there is a zip, too.
        connections: How many files to fetch at a time.
        progress: Called with (done, total): files, or MB of archives (total 0 where unknown).
        patience: How long to wait for the server.

    Raises:
        SettingError: No such dataset, or nothing of it is chosen.
        SourceError: The server does not have a file, or sends something else.
        FileError: The disk is full, or permission is missing.
        BusyError: Another process is downloading into `out`.
    """
    plan = plan_download(
        name, out=out, url=url, only=only, as_files=as_files, patience=patience or Patience()
    )
    return fetch_all(plan, connections=connections, progress=progress, patience=patience)


def plan_download(
    name: str,
    *,
    out: Path | str,
    url: str | None = None,
    only: Sequence[str] = (),
    as_files: bool = False,
    patience: Patience | None = None,
) -> DownloadPlan:
    """What `download` would fetch; nothing is written. The parameters are those of `download`."""
    publication = PUBLICATIONS.get(name)
    if publication is None:
        raise SettingError(
            f"there is no published dataset {name!r}; use one of {', '.join(PUBLICATIONS)}"
        )
    if url is not None:
        check_address(url)
        url = url.rstrip("/") + "/"
    if publication.archives and not (as_files or only):
        files = tuple(
            RemoteFile(file, url + quote(file) if url else address)
            for file, address in publication.archives
        )
        return DownloadPlan(publication, Path(out), files, publication.size)
    if not publication.folder:
        raise SettingError(f"{name} is not published file by file; leave out `only` and `as_files`")
    base = url or publication.folder
    sums = _read(base + quote(publication.sums), patience or Patience())
    listed = parse_sums(sums, name=base + publication.sums)
    wanted = tuple(only) or publication.only
    chosen = tuple(
        RemoteFile(file, base + quote(file), digest)
        for file, digest in listed.items()
        if not wanted or any(_is_part(file, one) for one in wanted)
    )
    if not chosen:
        raise SettingError(
            f"{base}{publication.sums} lists no file of {', '.join(wanted)}; give other names as "
            "`only`, with '/' at the end of folders"
        )
    size = publication.size if not (wanted or publication.archives) else 0
    return DownloadPlan(publication, Path(out), chosen, size, sums)


def _is_part(file: str, wanted: str) -> bool:
    return file == wanted or (wanted.endswith("/") and file.startswith(wanted))


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


def _read(url: str, patience: Patience) -> bytes:
    """A small file of a server."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        file = HttpFile(url, here / "content", here, patience=patience, most=MAX_TABLE_BYTES)
        file.fetch(WebClient())
        return (here / "content").read_bytes()


def fetch_all(
    plan: DownloadPlan,
    *,
    connections: int = CONNECTIONS,
    progress: Callable[[int, int], None] | None = None,
    patience: Patience | None = None,
) -> Downloaded:
    """Fetch what is missing of a plan's files; see `download`."""
    if connections < 1:
        raise SettingError(f"`connections` must be at least 1, not {connections}")
    partials = plan.out / PARTIAL
    report = progress or (lambda done, total: None)
    with writing(plan.out):
        plan.out.mkdir(parents=True, exist_ok=True)
        with locked(partials):
            here = sum(path.stat().st_size for path in _files_of(plan))
            here += sum(path.stat().st_size for path in partials.glob("*.data"))
            check_space(plan.out, max(plan.size - here, 0))
            fetched, received = _fetch(plan, partials, connections, report, patience or Patience())
            if plan.sums:
                write_atomic(plan.out / plan.publication.sums, plan.sums, mode=PUBLIC)
        with suppress(OSError):  # what another plan left there
            partials.rmdir()
    return Downloaded(plan.out, len(plan.files), fetched, received)


def _files_of(plan: DownloadPlan) -> Iterator[Path]:
    return (path for file in plan.files if (path := plan.out / file.name).is_file())


def _fetch(
    plan: DownloadPlan,
    partials: Path,
    connections: int,
    report: Callable[[int, int], None],
    patience: Patience,
) -> tuple[int, int]:
    """Fetch in threads; how many files, and bytes."""
    web, stop, lock = WebClient(), threading.Event(), threading.Lock()
    received = 0

    def count(size: int) -> None:
        nonlocal received
        with lock:
            received += max(size, 0)

    def one(file: RemoteFile) -> bool:
        path = plan.out / file.name
        remote = HttpFile(
            file.url, path, partials, file.sha256, patience, received=count, stop=stop
        )
        if stop.is_set() or remote.is_here():
            return False
        remote.fetch(web)
        return True

    def tell() -> None:
        if plan.unit == "files":
            report(done, len(plan.files))
        else:
            report(round(received / 1e6), round(plan.size / 1e6))

    problems: list[SourceError] = []
    fetched = done = 0
    left = iter(plan.files)
    pool = ThreadPoolExecutor(connections, thread_name_prefix="download")
    flying: set[Future[bool]] = set()
    try:
        while len(problems) < _MAX_FAILURES:
            while len(flying) < 2 * connections and (file := next(left, None)):
                flying.add(pool.submit(one, file))
            if not flying:
                break
            ready, flying = wait(flying, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in ready:
                done += 1
                try:
                    fetched += future.result()
                except SourceError as error:
                    problems.append(error)
            tell()
    finally:
        stop.set()  # a thread that waits for the server ends with its next block
        pool.shutdown(wait=not flying, cancel_futures=True)
    if problems:
        more = f" (and {len(problems) - 1} more files)" if problems[1:] else ""
        raise SourceError(f"{problems[0]}{more}")
    return fetched, received

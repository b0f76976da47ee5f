"""One file over HTTP: fetched in stretches, resumed, verified, and named only when it is whole.

Nothing that the server says is trusted: lengths are counted, ranges compared with what was asked
for, redirections kept to HTTP, and the content compared with a checksum before it gets its name.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import HTTPError

from clocs.datasets.downloads.file_checks import check_space, zip_problem
from clocs.datasets.downloads.http_client import WebClient
from clocs.errors import SourceError
from clocs.files import sha256_of, sync_folder, writing

PARTIAL = ".partial"  # a folder; names with a dot are no recordings
_BLOCK = 256 << 10
_WORTH = 64 << 10  # bytes received that make an attempt more than a failure
_ZIPPED = (".zip", ".xlsx")
_AGAIN = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a server.

    Attributes:
        attempts: How often in a row it may fail without sending anything of use.
        wait: Seconds before the second attempt; twice as many before each further one.
        longest: Seconds that are waited at most, also where the server asks for more.
        timeout: Seconds without a byte after which a connection has failed.
    """

    attempts: int = 6
    wait: float = 1.0
    longest: float = 60.0
    timeout: float = 60.0

    MAX: ClassVar = 1000  # attempts in all, of a server that always sends a little


class _AgainError(Exception):
    """The server may do better next time; `after` seconds are what it asks for."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


@dataclass(frozen=True)
class HttpFile:
    """A file to fetch.

    Attributes:
        url: Its address.
        path: Where it belongs.
        partials: A folder for what is not whole yet.
        sha256: Hexadecimal; '' where none is published: then a zip is verified by its members.
        patience: With the server.
        received: Called with the number of bytes of each block, negative where they are dropped.
        most: Bytes that are too many for it.
        stop: Set when the file is no longer wanted.
    """

    url: str
    path: Path
    partials: Path
    sha256: str = ""
    patience: Patience = Patience()
    received: Callable[[int], None] = lambda count: None
    most: int = 1 << 40
    stop: threading.Event = field(default_factory=threading.Event)

    def is_here(self) -> bool:
        """Whether the file is in its place, as published."""
        return self.path.is_file() and not self._problem(self.path)

    def fetch(self, web: WebClient) -> None:
        """Fetch the file, from where the last attempt ended, and put it into its place.

        Raises:
            SourceError: The server does not have it, or sends something else.
            FileError: It cannot be written.
        """
        failures, mismatches = 0, 0
        reached = self._held()
        for _ in range(self.patience.MAX):
            try:
                self._receive(web)
            except _AgainError as error:
                # Only what no earlier attempt had is progress.
                failures = 0 if self._held() - reached >= _WORTH else failures + 1
                reached = max(reached, self._held())
                if failures >= self.patience.attempts:
                    raise SourceError(
                        f"{self.url} cannot be downloaded ({error}); what is done is kept: run the "
                        "same command again later to continue"
                    ) from None
                self._pause(max(self.patience.wait * 2 ** max(failures - 1, 0), error.after))
                continue
            problem = self._problem(self._data)
            if not problem:
                break
            self._drop()  # perhaps it changed between two attempts: once more, from its start
            mismatches += 1
            if mismatches > 1:
                raise SourceError(
                    f"{self.url} is not the published file ({problem}); try again later, or give "
                    "another address as `url`"
                )
        else:
            raise SourceError(f"{self.url} was interrupted too often; run the same command again")
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._data.open("rb+") as file:
                os.fsync(file.fileno())
            self._data.replace(self.path)
            sync_folder(self.path.parent)
            self._state.unlink(missing_ok=True)

    @property
    def _key(self) -> str:
        return sha256(f"{self.url}\0{self.sha256}\0{self.path.name}".encode()).hexdigest()[:24]

    @property
    def _data(self) -> Path:
        return self.partials / f"{self._key}.data"

    @property
    def _state(self) -> Path:
        return self.partials / f"{self._key}.json"

    def _held(self) -> int:
        try:
            return self._data.stat().st_size
        except OSError:
            return 0

    def _drop(self) -> None:
        self.received(-self._held())
        self._data.unlink(missing_ok=True)
        self._state.unlink(missing_ok=True)

    def _problem(self, path: Path) -> str:
        """What is wrong with the content of a whole file; '' where nothing is."""
        if self.sha256:
            return "" if sha256_of(path) == self.sha256 else "its sha256 differs"
        if self.path.suffix.lower() in _ZIPPED:
            return zip_problem(path)
        return ""

    def _pause(self, seconds: float) -> None:
        if self.stop.wait(min(seconds, self.patience.longest)):
            raise SourceError(f"the download of {self.url} was stopped")

    def _receive(self, web: WebClient) -> None:
        """One attempt: from what is held to the end of the file."""
        held, state = self._held(), self._known()
        if held and not (state.get("validator") or self.sha256):
            self._drop()  # no way to tell whether the rest would be of the same file
            held, state = 0, {}
        if held and state.get("length") == held:
            return  # all of it is here, but not verified yet
        headers = {}
        if held:
            headers["Range"] = f"bytes={held}-"
            if state.get("validator"):
                headers["If-Range"] = state["validator"]
        try:
            with web.open(self.url, headers, self.patience.timeout) as response:
                self._take(response, held, state)
        except HTTPError as error:
            self._answer(error, held)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise _AgainError(str(reason) or type(error).__name__) from None

    def _known(self) -> dict[str, Any]:
        """What the server said about the file when its first part came."""
        try:
            state = json.loads(self._state.read_text("utf-8"))
            validator, length = state["validator"], state["length"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        sound = isinstance(validator, str) and isinstance(length, int | None)
        return {"validator": validator, "length": length} if sound else {}

    def _answer(self, error: HTTPError, held: int) -> None:
        """Raise what a status other than success means."""
        if error.code == 416 and held:  # there is nothing from here on: another, shorter file?
            self._drop()
            raise _AgainError("the file has become shorter")
        if error.code in _AGAIN:
            after = _seconds(error.headers.get("Retry-After", ""))
            raise _AgainError(f"the server answers {error.code}", after)
        raise SourceError(
            f"{self.url} cannot be downloaded: the server answers {error.code} "
            f"({error.reason}); look at the dataset's page, or give another address as `url`"
        ) from None

    def _take(self, response: Any, held: int, state: dict[str, Any]) -> None:
        """Append what a successful response brings."""
        headers = response.headers
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise SourceError(f"{self.url} comes in an encoding that was not asked for")
        length = response.length if isinstance(response.length, int) else None
        if response.status == 206:
            start, total = _range(headers.get("Content-Range", ""))
            known = state.get("length")
            if start != held or (known is not None and total != known):
                self._drop()
                raise _AgainError("the server sent another part than was asked for")
            length = total
        elif response.status == 200:
            if held:  # the server knows no ranges, or the file has changed
                self._drop()
            held = 0
            state = {"validator": _validator(headers), "length": length}
            with writing(self._state):
                self._state.write_text(json.dumps(state), "utf-8")
        else:
            raise _AgainError(f"the server answers {response.status}")
        if length is not None:
            self._expect_small(length)
            check_space(self.partials, length - held)
        self._append(response, held, length)

    def _expect_small(self, size: int) -> None:
        if size > self.most:
            raise SourceError(
                f"{self.url} has {size:,} bytes or more; no more than {self.most:,} were expected"
            )

    def _append(self, response: Any, held: int, length: int | None) -> None:
        with writing(self.path), self._data.open("ab") as file:
            while True:
                if self.stop.is_set():
                    raise SourceError(f"the download of {self.url} was stopped")
                try:
                    block = response.read(_BLOCK)
                except (OSError, http.client.HTTPException) as error:
                    raise _AgainError(str(error) or type(error).__name__) from None
                if not block:
                    break
                if length is None:
                    self._expect_small(held + len(block))
                    check_space(self.partials, len(block))
                file.write(block)
                held += len(block)
                self.received(len(block))
                if length is not None and held > length:
                    break
        if length is not None and held != length:
            if held > length:
                self._drop()
            raise _AgainError(f"{held:,} of {length:,} bytes came")


def _validator(headers: Any) -> str:
    """What tells whether a file is still the same: a strong ETag, else its date."""
    tag = str(headers.get("ETag", ""))
    return tag if tag.startswith('"') else str(headers.get("Last-Modified", ""))


def _range(text: str) -> tuple[int | None, int | None]:
    """Start and total of 'bytes 100-199/200'; None where it says something else."""
    unit, _, rest = text.strip().partition(" ")
    span, _, total = rest.partition("/")
    start, _, stop = span.partition("-")
    if unit != "bytes" or not (start.isdecimal() and stop.isdecimal() and total.isdecimal()):
        return None, None
    return int(start), int(total)


def _seconds(retry_after: str) -> float:
    """'120' or a date -> seconds from now; 0 where it is neither."""
    with suppress(ValueError, TypeError, OverflowError):
        if retry_after.strip().isdecimal():
            return float(retry_after)
        return max(parsedate_to_datetime(retry_after).timestamp() - time.time(), 0.0)
    return 0.0

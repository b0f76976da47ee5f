"""GET requests over connections that stay open: a dataset may have a hundred thousand files."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit
from urllib.request import (
    HTTPRedirectHandler,
    Request,
    build_opener,
    getproxies,
    proxy_bypass,
)

from clocs._version import __version__
from clocs.errors import SettingError, SourceError

_MAX_REDIRECTIONS = 10
_REDIRECTIONS = (301, 302, 303, 307, 308)
_HEADERS = {"User-Agent": f"clocs/{__version__}", "Accept-Encoding": "identity"}
_STALE = (ConnectionError, http.client.BadStatusLine, http.client.CannotSendRequest)


def check_address(url: str) -> None:
    """Refuse what is no address of a web server."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or any(ord(character) < 33 for character in url):
        raise SettingError(f"`url` is {url!r:.200}; it must begin with https:// or http://")


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


class _CheckedRedirections(HTTPRedirectHandler):
    """For requests through a proxy, which urllib makes."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        check_redirection(req.full_url, newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class WebClient:
    """Answers of web servers; every thread keeps a connection to each of them.

    Where the environment names a proxy (`https_proxy` …), urllib makes the requests.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._through_proxy = build_opener(_CheckedRedirections)

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str], timeout: float) -> Iterator[Any]:
        """The response to a GET request, its content still to be read.

        Raises:
            HTTPError: The server answers with another status than success.
            SourceError: It redirects to something else than a web server.
        """
        headers = _HEADERS | dict(headers)
        if urlsplit(url).scheme in getproxies() and not proxy_bypass(urlsplit(url).netloc):
            request = Request(url, headers=headers)
            with self._through_proxy.open(request, timeout=timeout) as response:
                yield response
            return
        for _ in range(_MAX_REDIRECTIONS):
            response = self._answer(url, headers, timeout)
            try:
                if response.status in _REDIRECTIONS and response.headers.get("Location"):
                    target = urljoin(url, response.headers["Location"])
                    check_redirection(url, target)
                    url = target
                    continue
                if response.status >= 400:
                    reason, fields = response.reason, response.headers
                    raise HTTPError(url, response.status, reason, fields, None)
                yield response
                return
            finally:
                if not response.isclosed():  # the rest of it would be taken for the next answer
                    self._drop(url)
        raise SourceError(f"{url} redirects too often; give another address as `url`")

    def _answer(
        self, url: str, headers: Mapping[str, str], timeout: float
    ) -> http.client.HTTPResponse:
        connection, is_new = self._connection(url, timeout)
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("GET", path, headers=dict(headers))
            return connection.getresponse()
        except _STALE:  # the server may have closed it since the last request
            self._drop(url)
            if is_new:
                raise
            return self._answer(url, headers, timeout)
        except BaseException:
            self._drop(url)
            raise

    def _connection(self, url: str, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        """This thread's connection to a server, and whether it is new."""
        parts = urlsplit(url)
        kept = self._kept()
        found = kept.get((parts.scheme, parts.netloc))
        if found is not None and found.sock is not None:
            return found, False
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        made = kind(parts.hostname or "", parts.port, timeout=timeout)
        kept[parts.scheme, parts.netloc] = made
        return made, True

    def _drop(self, url: str) -> None:
        parts = urlsplit(url)
        found = self._kept().pop((parts.scheme, parts.netloc), None)
        if found is not None:
            found.close()

    def _kept(self) -> dict[tuple[str, str], http.client.HTTPConnection]:
        if not hasattr(self._local, "kept"):
            self._local.kept = {}
        kept: dict[tuple[str, str], http.client.HTTPConnection] = self._local.kept
        return kept

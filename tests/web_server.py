"""A local web server that does what servers should not: it cuts, lies, ignores and changes."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web:
    """Files by path, and for each path what to do with the next requests before serving it well.

    Attributes:
        files: Content by path, without the leading '/'.
        faults: For a path, functions that answer a request instead; each is used once.
        ranges: Whether ranges are served.
        tags: Whether files have an ETag.
        requests: (path, Range header) of all requests.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: defaultdict[str, list[Callable[[Handler], None]]] = defaultdict(list)
        self.ranges = True
        self.tags = True
        self.requests: list[tuple[str, str]] = []
        self.flying = self.most_flying = 0
        self.url = ""
        self._lock = threading.Lock()

    def asked(self) -> Counter[str]:
        """How often each path was asked for."""
        return Counter(path for path, _ in self.requests)

    def count(self, change: int) -> None:
        with self._lock:
            self.flying += change
            self.most_flying = max(self.most_flying, self.flying)

    def list_sums(self) -> None:
        """Publish SHA256SUMS.txt of all files."""
        pairs = [(hashlib.sha256(data).hexdigest(), name) for name, data in self.files.items()]
        lines = "".join(f"{digest} {name}\n" for digest, name in pairs)  # PhysioNet: one space
        self.files["SHA256SUMS.txt"] = lines.encode()


class Handler(BaseHTTPRequestHandler):
    """Serves a `Web`."""

    web: Web
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        self.web.requests.append((path, self.headers.get("Range", "")))
        self.web.count(1)
        try:
            if self.web.faults[path]:
                self.web.faults[path].pop(0)(self)
            else:
                self.serve()
        finally:
            self.web.count(-1)

    def serve(self, *, most: int | None = None, length: int | None = None) -> None:
        """Send the file, or the part asked for: only `most` bytes, with `length` as its length."""
        data = self.web.files.get(self.path.lstrip("/"))
        if data is None:
            self.answer(404)
            return
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        asked = self.headers.get("Range", "") if self.web.ranges else ""
        if self.headers.get("If-Range", tag) != tag:
            asked = ""
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if asked and start >= len(data):
            self.answer(416)
            return
        body = data[start:]
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if self.web.tags:
            self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body if most is None else body[:most])
        self.close_connection |= most is not None or length is not None

    def answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


class QuietServer(ThreadingHTTPServer):
    """A server for clients that hang up."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing."""


@contextmanager
def serving() -> Iterator[Web]:
    """A server on this machine for the time of the `with`."""
    web = Web()
    handler = type("OwnHandler", (Handler,), {"web": web})
    server = QuietServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    web.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def cut(most: int) -> Callable[[Handler], None]:
    """The connection ends after so many bytes, of more that were promised."""
    return lambda handler: handler.serve(most=most)


def claims(length: int) -> Callable[[Handler], None]:
    """The header gives another length than the file has."""
    return lambda handler: handler.serve(length=length)


def status(code: int, **headers: str) -> Callable[[Handler], None]:
    """Another status than success."""
    return lambda handler: handler.answer(code, **headers)

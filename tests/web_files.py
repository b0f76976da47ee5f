"""Files on a web server of this machine, with pages that list them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote, unquote


class _Server(ThreadingHTTPServer):
    files: Mapping[str, bytes]
    status: int
    ranges: bool
    key: str


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        name = unquote(path.strip("/"))
        inside = {
            one[len(name) :].lstrip("/") for one in self.server.files if self._below(one, name)
        }
        if self.server.status != 200 or self.server.key not in query:
            self._send(b"", status=self.server.status if self.server.status != 200 else 403)
        elif name in self.server.files:
            self._send_file(self.server.files[name])
        elif inside:
            firsts = {one.partition("/")[0] + "/" * ("/" in one) for one in inside}
            page = "".join(f'<a href="{quote(one)}">{one}</a>' for one in sorted(firsts))
            self._send(page.encode(), kind="text/html")
        else:
            self._send(b"", status=404)

    do_HEAD = do_GET  # noqa: N815

    @staticmethod
    def _below(one: str, folder: str) -> bool:
        return not folder or one.startswith(f"{folder}/")

    def _send_file(self, data: bytes) -> None:
        asked = self.headers.get("Range")
        if asked is None or not self.server.ranges:
            self._send(data)
            return
        first, last = (int(one) for one in asked.removeprefix("bytes=").split("-"))
        self._send(data[first : last + 1], status=206)

    def _send(
        self, data: bytes, *, status: int = 200, kind: str = "application/octet-stream"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@contextmanager
def serving(
    files: Mapping[str, bytes], *, status: int = 200, ranges: bool = True, key: str = ""
) -> Iterator[str]:
    """The address of a server of these files, for this `with`.

    Args:
        files: Contents by path.
        status: Other than 200: the answer to everything.
        ranges: Whether parts of files are sent.
        key: What the query of every request must contain.
    """
    server = _Server(("127.0.0.1", 0), _Handler)
    server.files, server.status, server.ranges, server.key = files, status, ranges, key
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

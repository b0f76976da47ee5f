"""A hub on this machine: what `huggingface_hub` asks for to create, upload and download a model."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Models by name, each a dictionary of files; large ones travel as in Git LFS."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, dict[str, bytes]] = {}
        self.objects: dict[str, bytes] = {}  # large files, by their sha256
        self.tokens: set[str | None] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body, path = self._body(), self.path.partition("?")[0]
        self.server.tokens.add(self.headers.get("Authorization"))
        if path == "/api/repos/create":
            facts = json.loads(body)
            name = f"{facts.get('organization') or 'me'}/{facts['name']}"
            self.server.models.setdefault(name, {})
            self._answer({"url": f"{self.server.address}/{name}", "name": name, "id": name})
        elif path == "/api/validate-yaml":
            sound = json.loads(body)["content"].startswith("---\n")
            self._answer({"errors": [] if sound else [{"message": "no front matter"}]})
        elif "/preupload/" in path:
            files = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for one in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            lfs = f"{self.server.address}/lfs"
            objects = [
                one | {"actions": {"upload": {"href": f"{lfs}/{one['oid']}", "header": {}}}}
                for one in json.loads(body)["objects"]
            ]
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            name = path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in body.splitlines():
                self._commit(name, json.loads(line))
            url = f"{self.server.address}/{name}/commit/{COMMIT}"
            self._answer({"commitUrl": url, "commitOid": COMMIT, "commitMessage": "pushed"})
        else:
            self.send_error(404)

    def _commit(self, name: str, line: dict[str, Any]) -> None:
        own = line["value"]
        if line["key"] == "file":
            self.server.models[name][own["path"]] = base64.b64decode(own["content"])
        elif line["key"] == "lfsFile":
            self.server.models[name][own["path"]] = self.server.objects[own["oid"]]

    def do_PUT(self) -> None:
        body = self._body()
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.objects[oid] = body
        self._answer({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        name, found, rest = self.path.lstrip("/").partition("/resolve/")
        content = self.server.models.get(name, {}).get(rest.partition("/")[2])
        if not found or content is None:
            self.send_response(404)
            known = name in self.server.models
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _body(self) -> bytes:
        if length := self.headers.get("Content-Length"):
            return self.rfile.read(int(length))
        chunks = b""
        while size := int(self.rfile.readline(), 16):
            chunks += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return chunks

    def _answer(self, facts: dict[str, Any]) -> None:
        content = json.dumps(facts).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Nothing: the tests read what arrived, not a log."""


@contextmanager
def running_hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()

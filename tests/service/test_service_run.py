"""`clocs serve` as a process and as a function: tokens, loading, shutting down."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import clocs
import unhurried
import warm
from clocs import Checkpoint, Recording
from clocs.cli.main import Root
from clocs.errors import CheckpointError, SettingError
from clocs.service.bodies import Limits, example_body
from clocs.service.service import Computation, Result, Service, open_models
from service.conftest import serving, wait_for

ECG = example_body()


@dataclass(frozen=True)
class Running:
    """`clocs serve` as a process, with a token."""

    process: warm.Process
    url: str
    port: int
    known: dict[str, str]  # headers

    def client(self) -> httpx.Client:
        return unhurried.client(base_url=self.url, headers=self.known)


@contextmanager
def serving_process(*files: str) -> Iterator[Running]:
    command = ("-m", "clocs", "serve", "--json", *files)
    with warm.Process(*command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            facts = json.loads(process.stdout.readline())
            known = {"authorization": f"Bearer {facts['token']}"}
            port = int(facts["url"].rstrip("/").rpartition(":")[2])
            yield Running(process, facts["url"], port, known)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def running(files: list[str]) -> Iterator[Running]:
    """For two tests, as it takes seconds to start; the second one ends it."""
    with serving_process(*files) as made:
        yield made


def request(body: bytes, length: int | None = None, *, more: str = "") -> bytes:
    size = len(body) if length is None else length
    head = "POST /models/plain/embedding HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {size}\r\n{more}\r\n"
    return head.encode() + body


def test_health_is_answered_while_large_bodies_are_read(running: Running) -> None:
    number = b"0.123456789012345,"
    body = b'{"rate": 500, "signal": [[' + number * ((15 << 20) // len(number)) + b"0]]}"
    statuses: list[int] = []
    bodies: list[float] = []  # seconds until each was answered
    stop = threading.Event()

    def ask() -> None:
        kind = {"content-type": "application/json"}
        with running.client() as own:
            while not stop.is_set():
                began = time.perf_counter()
                made = own.post("/models/plain/embedding", content=body, headers=kind)
                bodies.append(time.perf_counter() - began)
                statuses.append(made.status_code)

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for one in asking:
        one.start()
    seconds: list[float] = []
    with running.client() as own:
        while len(seconds) < 40 or len(statuses) < 6:
            began = time.perf_counter()
            assert own.get("/health").status_code == 200
            seconds.append(time.perf_counter() - began)
            time.sleep(0.02)
    stop.set()
    for one in asking:
        one.join(600)
    assert 422 in statuses  # it was read: it lasts too long
    # Where reading a body kept the server from answering, a probe would take as long as a body.
    assert max(seconds) < max(bodies) / 4


def test_terminated_it_finishes_what_it_accepted_and_ends_with_0(
    running: Running, files: list[str]
) -> None:
    folder = Path(files[0]).parent
    before = set(folder.rglob("*"))
    many: dict[str, Any] = {"recordings": [ECG] * 64}
    answers: list[int] = []
    with running.client() as client:

        def ask() -> None:
            answers.append(client.post("/models/plain/embedding", json=many).status_code)

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for one in asking:
            one.start()

        def accepted() -> bool:
            return "clocs_queue_seconds 0.0" not in client.get("/metrics").text

        wait_for(lambda: accepted() or len(answers) == 4)
        running.process.send_signal(signal.SIGTERM)
        for one in asking:
            one.join(600)
    assert 200 in answers and set(answers) <= {200, 429, 503}
    assert running.process.wait(600) == 0
    with pytest.raises(httpx.TransportError):
        unhurried.get(running.url + "/health")
    assert set(folder.rglob("*")) == before  # it holds nothing, so there is nothing to lose


def test_at_sigterm_every_request_that_reached_it_is_answered(files: list[str]) -> None:
    """Sixteen clients, each on one new connection after another, until nobody listens."""
    outcomes: list[str] = []

    def connect(port: int, ask: bytes) -> None:
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", port), 600)
            except ConnectionRefusedError:
                return  # it never reached the service
            with connection:
                try:
                    connection.sendall(ask)
                    answer = connection.makefile("rb").readline()
                    outcomes.append(answer.split()[1].decode() if answer else "closed")
                except OSError as error:
                    outcomes.append(type(error).__name__)

    with serving_process(files[0]) as own:
        token = f"Authorization: {own.known['authorization']}\r\n"
        given = own.port, request(json.dumps(ECG).encode(), more=token)
        asking = [threading.Thread(target=connect, args=given) for _ in range(16)]
        for one in asking:
            one.start()
        wait_for(lambda: len(outcomes) >= 32)
        own.process.send_signal(signal.SIGTERM)
        for one in asking:
            one.join(600)
        assert own.process.wait(600) == 0
    assert set(outcomes) <= {"200", "429", "503"}
    assert "200" in outcomes


def test_idle_bodies_keep_nobody_else_from_sending_large_ones(files: list[str]) -> None:
    limits = Limits(mebibytes=4)
    with serving(lambda service: service.load(files), limits=limits) as served:
        shield: Any = served.server.config.app
        shield.body_seconds = 3600.0  # after which they would end anyway
        port = int(served.url.rpartition(":")[2])
        large = b" " * (3 << 20) + json.dumps(ECG).encode()
        idle = [socket.create_connection(("127.0.0.1", port), 600) for _ in range(20)]
        for one in idle[:10]:  # these announce
            one.sendall(request(b"{", 4 << 20))
        for one in idle[10:]:  # and these hold, as much as one client may
            one.sendall(request(b" " * (3 << 20), 4 << 20))
        kind = {"content-type": "application/json"}

        def answered() -> bool:
            made = served.post("/models/plain/embedding", content=large, headers=kind)
            assert made.status_code in (200, 503)
            return made.status_code == 200

        wait_for(answered)  # once the others have not sent a byte for a second
        told, _, _ = select.select(idle[10:], [], [], 600)
        assert b"HTTP/1.1 408" in {one.recv(12) for one in told}
        for one in idle:
            one.close()


def test_it_is_not_ready_while_it_loads_and_while_it_stops(files: list[str]) -> None:
    loaded: list[Service] = []
    with serving(loaded.append) as served:  # alive, but nothing is loaded
        service = served.service
        service.state = "loading"
        assert unhurried.get(f"{served.url}/health").status_code == 200
        for state, word in (("loading", "is loading its models"), ("stopping", "shutting down")):
            service.state = state  # type: ignore[assignment]
            ready = unhurried.get(f"{served.url}/ready")
            assert (ready.status_code, ready.json()) == (503, {"status": state})
            refused = served.embedding(ECG)
            assert refused.status_code == 503 and word in refused.json()["message"]
            assert int(refused.headers["retry-after"]) > 0


def test_a_full_queue_answers_429_and_recovers(files: list[str]) -> None:
    hold, entered = threading.Event(), threading.Event()

    class Held(Service):
        def compute(self, task: Computation, recordings: list[Recording]) -> list[Result]:
            if self.state == "ready":
                entered.set()
                assert hold.wait(600)
            return super().compute(task, recordings)

    with serving(
        lambda service: service.load(files), limits=Limits(queue=15.0), kind=Held
    ) as served:
        first: list[int] = []
        asking = threading.Thread(target=lambda: first.append(served.embedding(ECG).status_code))
        asking.start()
        assert entered.wait(600)
        refused = served.embedding(ECG)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert unhurried.get(f"{served.url}/health").status_code == 200
        hold.set()
        asking.join(600)
        assert first == [200]
        assert served.embedding(ECG).status_code == 200


def test_the_command_refuses_bad_arguments_with_a_sentence(files: list[str]) -> None:
    for arguments, expected in (
        ([], "nothing to serve"),
        ([*files, "--host", "0.0.0.0", "--token", "none"], "`token`"),
        ([*files, "--token", "short"], "16 to 128"),
        (["nowhere.safetensors"], "nowhere.safetensors does not exist"),
        ([files[0], files[0]], "two models are called plain"),
        ([f"a/b={files[0]}"], "no name for an address"),
        (["--index", files[0]], "is not an index"),
    ):
        result = CliRunner().invoke(Root(), ["serve", *arguments])
        assert result.exit_code != 0
        assert expected in str(result.exception)


def test_models_are_named_by_their_files_or_as_asked(
    files: list[str], checkpoint: Checkpoint
) -> None:
    seed = f"{files[0]}/seed-0.safetensors"
    assert list(open_models([seed, f"other={seed}", files[1]])) == ["plain", "other", "rhythm"]
    assert list(open_models([checkpoint])) == [checkpoint.card.method]


def test_a_model_that_cannot_be_loaded_ends_the_service(tmp_path: Path) -> None:
    broken = tmp_path / "seed-0.safetensors"
    broken.write_bytes(b"x")
    with pytest.raises(CheckpointError):
        clocs.serve(broken, token=None)
    with pytest.raises(SettingError, match="other machines"):
        clocs.serve(broken, token=None, host="0.0.0.0")


def test_what_is_told_to_end_while_it_loads_does_not_become_ready(files: list[str]) -> None:
    service = Service()
    service.state = "stopping"
    service.load(files[:1])
    service.batcher.close()
    assert service.state == "stopping"

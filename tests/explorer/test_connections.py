"""The server under attack: half-sent requests, idle visitors, floods of uploads and log lines."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

import unhurried
from clocs.errors import SourceError
from clocs.explorer import uploads
from clocs.explorer.session import Session
from clocs.web.body_reader import AT_ONCE, BodyReader
from clocs.web.server import ConnectionLimits
from clocs.web.uploads import Posted
from explorer.conftest import Served, serving

MB = 1 << 20
HALF = b"GET /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


@contextlib.contextmanager
def half_sent(served: Served, count: int) -> Iterator[list[socket.socket]]:
    """Connections whose headers never end."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 600))
            with contextlib.suppress(OSError):
                one.sendall(HALF)
            made.append(one)
        yield made


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it holds, at the latest in ten minutes: a busy machine is slow."""
    until = time.monotonic() + 600
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)
    return holds()


def is_closed(one: socket.socket, within: float) -> bool:
    """Whether the server closes a connection without an answer."""
    one.settimeout(within)
    try:
        return one.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_half_sent_headers_neither_lock_the_server_nor_fill_the_log(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving(session, limits=ConnectionLimits(per_address=32)) as served,
        half_sent(served, 300) as slow,
    ):
        for _ in range(20):  # each on a connection of its own
            assert unhurried.get(f"{served.url}/api/session").status_code == 200
        assert len(served.connections) <= 32
        assert eventually(lambda: sum(is_closed(one, 0.01) for one in slow) >= 300 - 32)
    assert len(caplog.records) <= 2


def test_a_header_that_takes_too_long_ends_the_connection(session: Session) -> None:
    with (
        serving(session, limits=ConnectionLimits(header_seconds=0.3)) as served,
        half_sent(served, 1) as (slow,),
    ):
        assert is_closed(slow, 600)
        with socket.create_connection(("127.0.0.1", served.port)) as silent:
            assert is_closed(silent, 600)
        answered = b""
        while not answered:  # nothing if this machine took too long to send it
            with (
                socket.create_connection(("127.0.0.1", served.port), 600) as second,
                contextlib.suppress(ConnectionError),
            ):
                second.sendall(HALF + b"no\r\n\r\n")
                answered = second.recv(12)
                second.sendall(HALF)  # of a further request on the same connection
                while second.recv(MB):
                    pass
        assert answered == b"HTTP/1.1 200"


def test_a_body_after_its_response_is_not_received_for_ever(session: Session) -> None:
    start = b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    answered = b""
    with serving(session, limits=ConnectionLimits(header_seconds=1.0)) as served:
        while not answered:  # nothing if this machine took too long to send it
            with (
                socket.create_connection(("127.0.0.1", served.port), 600) as endless,
                contextlib.suppress(OSError),
            ):
                endless.sendall(start)
                answered = endless.recv(12)
                until = time.monotonic() + 600
                while time.monotonic() < until:
                    endless.sendall(b"1\r\nx\r\n")
                    time.sleep(0.01)
                pytest.fail("the server still receives")
    assert answered == b"HTTP/1.1 405"


def test_a_visitor_who_does_not_read_is_dropped(session: Session) -> None:
    code = session.codes[0]
    ask = f"GET /api/patients/{code}/recordings/0/signal?seconds=600 HTTP/1.1\r\n"
    ask += "Host: 127.0.0.1\r\n\r\n"
    with (
        serving(session, limits=ConnectionLimits(unread_seconds=0.3)) as served,
        socket.socket() as deaf,
    ):
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", served.port))
        with contextlib.suppress(OSError):
            for _ in range(400):  # more than any buffer holds
                deaf.sendall(ask.encode())
        deaf.settimeout(600)
        assert deaf.recv(12) == b"HTTP/1.1 200"  # it was opened; then it is dropped
        assert eventually(lambda: not served.connections)


def test_visitors_beyond_the_limit_are_told_to_come_back_if_all_others_are_busy(
    session: Session,
) -> None:
    start = b"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n"
    start += b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    with (
        serving(session, limits=ConnectionLimits(per_address=3)) as served,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):  # busy: their bodies are awaited
            one = stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            one.sendall(start)
        assert eventually(lambda: sum(not one.is_idle for one in list(served.connections)) == 3)
        answer = unhurried.get(f"{served.url}/api/session")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert "try again" in answer.json()["message"]


def test_connections_are_without_delay(session: Session) -> None:
    with (
        serving(session) as served,
        unhurried.client(base_url=served.url) as client,
    ):
        assert client.get("/api/projection").status_code == 200
        (one,) = served.connections
        own: socket.socket = one.transport.get_extra_info("socket")
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_many_uploads_at_once_are_queued_within_memory_while_the_page_answers(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def waiting(*given: object) -> Posted:
        go.wait(600)
        raise SourceError("it is damaged; give another file")

    monkeypatch.setattr(BodyReader, "read", waiting)
    block = b"1.5,2.5,3.5,4.5\n" * (MB // 16)
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="own.csv"\r\n\r\n'
    end = b"\r\n--x--\r\n"
    length = len(head) + 8 * MB + len(end)
    headers = {"content-type": "multipart/form-data; boundary=x", "content-length": str(length)}

    def body() -> Iterator[bytes]:
        yield head
        for _ in range(8):
            yield block
        yield end

    def upload(_: int) -> httpx.Response:
        return unhurried.post(f"{served.url}/api/uploads", content=body(), headers=headers)

    process = psutil.Process()
    before = peak = process.memory_info().rss
    with ThreadPoolExecutor(40) as pool:
        sent = [pool.submit(upload, i) for i in range(40)]
        while not all(one.done() for one in sent):
            assert unhurried.get(f"{served.url}/api/session").status_code == 200
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.05)
            if sum(one.done() for one in sent) == 40 - AT_ONCE:  # all others were refused
                go.set()
    answers = [one.result() for one in sent]
    refused = [one for one in answers if one.status_code == 503]
    assert len(refused) == 40 - AT_ONCE
    assert all(int(one.headers["retry-after"]) > 0 for one in refused)
    assert all(json.loads(one.text)["message"] for one in answers)
    assert peak - before < 40 * 8 * MB
    assert unhurried.get(f"{served.url}/api/session").status_code == 200


def test_uploads_kept_are_bounded_by_bytes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    store = next(iter(served.session.stores.values()))
    held = uploads.Uploads(served.session)
    one = store.recording(0)
    monkeypatch.setattr(uploads, "KEPT_BYTES", 2 * one.digital.nbytes)
    codes = [held.add(one)["code"] for _ in range(4)]
    assert list(held._held) == codes[-2:]


def test_a_flood_of_bad_requests_leaves_no_log_and_errors_are_logged_without_details(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(session) as served:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", served.port), 600) as bad:
                bad.sendall(b"no HTTP\r\n\r\n")
                assert bad.recv(12) == b"HTTP/1.1 400"
    assert not caplog.records
    try:
        raise ValueError("patient 7")
    except ValueError:
        logging.getLogger("clocs.web").exception("a request failed")
    (line,) = caplog.messages
    assert line.startswith("a request failed (ValueError at test_connections.py:")
    assert "patient 7" not in caplog.text

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import httpx
import pytest
from starlette.testclient import TestClient

import unhurried
from clocs.explorer.server import make_api
from clocs.explorer.session import Session
from clocs.web.shield import RefusedError, Shield
from explorer.conftest import Served

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture
def client(session: Session) -> Iterator[httpx.Client]:
    with TestClient(Shield(make_api(session)), base_url="http://127.0.0.1:8000") as made:
        yield made


def guarded(session: Session, **options: object) -> httpx.Client:
    app = Shield(make_api(session), token=TOKEN, **options)  # type: ignore[arg-type]
    return TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False)


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/session", "/api/nothing", "/report"])
def test_every_answer_carries_the_strict_headers(client: httpx.Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers
    policy = headers["content-security-policy"]
    if path == "/report":  # sandboxed, without an origin
        assert policy.startswith("sandbox allow-scripts; default-src 'none'")
        assert "allow-same-origin" not in policy
    else:
        assert policy.startswith("default-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", "", "evil:127"])
def test_requests_for_another_host_are_refused(client: httpx.Client, host: str) -> None:
    answer = client.get("/api/session", headers={"host": host})
    assert answer.status_code == 421
    assert "message" in answer.json()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8000", "[::1]:8000", "LOCALHOST"])
def test_requests_for_this_machine_are_accepted(client: httpx.Client, host: str) -> None:
    assert client.get("/api/session", headers={"host": host}).status_code == 200


def test_requests_from_another_site_are_refused(client: httpx.Client) -> None:
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ):
        assert client.post("/api/uploads", headers=headers).status_code == 403
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=followed).status_code == 200  # a link in an e-mail
    own = {"origin": "http://127.0.0.1:8000"}
    assert client.post("/api/uploads", headers=own).status_code == 422


def test_nothing_is_served_without_the_token(session: Session) -> None:
    client = guarded(session)
    for path in ("/", "/api/session", "/static/app.js", "/?token=wrong", f"/api/map?token={TOKEN}"):
        answer = client.get(path)
        assert answer.status_code == 401
        assert session.codes[0] not in answer.text
    assert client.get("/api/session", headers={"authorization": "Bearer no"}).status_code == 401
    known = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/api/session", headers=known).status_code == 200


def test_a_person_without_the_token_gets_a_page_that_asks_for_it(session: Session) -> None:
    client = guarded(session)
    answer = client.get("/?patient=0123456789", headers={"accept": "text/html,*/*"})
    assert answer.status_code == 401 and answer.headers["content-type"].startswith("text/html")
    assert 'name="token"' in answer.text and "<script" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    other = client.get("/", headers={"accept": "text/html", "host": "<b>evil</b>"})
    assert other.status_code == 421 and "<b>" not in other.text and "token" not in other.text


def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address(
    session: Session,
) -> None:
    client = guarded(session)
    answer = client.get(f"/?token={TOKEN}&patient=0123456789")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?patient=0123456789"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
    assert client.get("/api/session").status_code == 200  # with the cookie


def test_a_server_for_every_host_cannot_be_made_without_a_token(session: Session) -> None:
    with pytest.raises(ValueError, match="token"):
        Shield(make_api(session), hosts=None)
    client = guarded(session, hosts=None)
    known = {"authorization": f"Bearer {TOKEN}", "host": "ward-7.example"}
    assert client.get("/api/session", headers=known).status_code == 200


def test_no_path_of_a_request_reaches_the_file_system(client: httpx.Client) -> None:
    for path in (
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/app.js%00",
        "/report/../../etc/passwd",
    ):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "message" in answer.json()


def test_no_response_contains_ids_unless_show_ids_is_set(
    session: Session, client: httpx.Client
) -> None:
    code, patient = session.codes[0], session.embeddings.rows["patient"][0]
    store = next(iter(session.stores.values()))
    recordings = store.table["id"].to_list()
    shown = [
        client.get(f"/api/patients/{code}").text,
        client.get(f"/api/patients/{code}/neighbors").text,
        client.get(f"/api/patients/{code}/neighbors.csv").text,
        client.get("/api/names").text,
        client.get("/api/map").content.decode("latin-1"),
    ]
    for text in shown:
        assert f'"{patient}"' not in text
        assert not any(name in text for name in recordings)
    assert client.get("/api/names").json() == []
    session.show_ids = True
    try:
        assert client.get(f"/api/patients/{code}").json()["name"] == patient
        assert client.get("/api/names").json()[0] == patient
    finally:
        session.show_ids = False


def test_an_invalid_content_length_is_refused(session: Session) -> None:
    app = Shield(make_api(session))
    scope = {"method": "POST", "path": "/api/uploads", "query_string": b""}
    for length in ("-1", "1e3", "²", ""):
        with pytest.raises(RefusedError) as refused:
            app.check(scope, {"host": "localhost", "content-length": length})
        assert refused.value.status == 413
    app.check(scope, {"host": "localhost", "content-length": "10"})


def test_large_bodies_are_refused_while_too_many_bytes_are_held(session: Session) -> None:
    app = Shield(make_api(session))
    headers = {"origin": "http://127.0.0.1:8000"}
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        too_large = client.post("/api/uploads", content=bytes(33 << 20), headers=headers)
        assert too_large.status_code == 413 and "32 MiB" in too_large.json()["message"]
        app.bodies.append(Mock(held=4 * app.body_limit - (2 << 20), has_stalled=False))
        refused = client.post("/api/uploads", content=bytes(4 << 20), headers=headers)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        small = client.post("/api/uploads", content=bytes(1 << 20), headers=headers)
        assert small.status_code == 422
        assert len(app.bodies) == 1


def test_a_slow_body_is_refused(session: Session) -> None:
    import asyncio

    async def ask() -> int:
        app = Shield(make_api(session), body_seconds=0.05)
        sent: list[int] = []

        async def receive() -> dict[str, object]:
            await asyncio.sleep(10)
            return {"type": "http.request", "body": b"", "more_body": True}

        async def send(message: object) -> None:
            assert isinstance(message, dict)
            if message["type"] == "http.response.start":
                sent.append(message["status"])

        headers = [
            (b"host", b"localhost"),
            (b"content-type", b"multipart/form-data; boundary=x"),
            (b"transfer-encoding", b"chunked"),
        ]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/uploads",
            "raw_path": b"/api/uploads",
            "query_string": b"",
            "headers": headers,
            "http_version": "1.1",
            "scheme": "http",
            "server": ("localhost", 80),
            "client": ("localhost", 1),
            "root_path": "",
        }
        await app(scope, receive, send)
        return sent[0]

    with ThreadPoolExecutor(1) as another:  # playwright may have left an event loop in this thread
        assert another.submit(lambda: asyncio.run(ask())).result() == 408


def test_responses_reveal_nothing_about_the_server(served: Served) -> None:
    headers = unhurried.get(f"{served.url}/").headers
    assert "no-cache" in headers["cache-control"]
    assert unhurried.get(f"{served.url}/api/map").headers["cache-control"] == "no-store"
    assert "x-powered-by" not in headers

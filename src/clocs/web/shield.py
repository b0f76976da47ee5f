"""The shield: an ASGI application that checks every request and secures every response.

It refuses requests for other host names (DNS rebinding), from other sites or without the token,
and bodies that are too large or too slow, and adds strict security headers to every response.
Refusals are JSON with a message, or a page for a person at a browser.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Collection, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlencode

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from clocs.errors import ClocsError, UnknownRateError
from clocs.web.pages import refusal_page
from clocs.web.uploads import UnitQuestionError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
BODY_LIMIT = 32 << 20  # bytes of an upload
BODY_SECONDS = 30.0  # allowed for an upload to arrive
FREE = 1 << 20  # bytes of each body that count against no limit but its own
BODIES = 4  # times the limit of one: bytes held of all of them
STALLED = 1.0  # seconds without a byte, after which a body gives way to another

CSP = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
# A report is a page with inline styles and scripts: it runs in a sandbox without an origin, so that
# it can neither query this server nor send anything anywhere.
REPORT_CSP = (
    "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; font-src data:; frame-ancestors 'self'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class RefusedError(Exception):
    """A request that is not answered, with its HTTP status and headers."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {"connection": "close"}


class Shield:
    """An ASGI application around another.

    Accepts the given host names, without ports (None: any, which requires a token), and browsers
    that have presented the token once, if there is one.

    Attributes:
        no_token: What a visitor without the token is told.
        too_large: What to do about a request that is too large.
        open_paths: Those that are answered without a token.
    """

    no_token: ClassVar[str] = "this explorer requires a token; open the address that it printed"
    too_large: ClassVar[str] = "upload one recording"
    open_paths: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] | None = LOOPBACK,
        token: str | None = None,
        body_limit: int = BODY_LIMIT,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        if hosts is None and token is None:
            raise ValueError("a server for any host needs a token")
        self.app, self.hosts, self.token = app, hosts, token
        self.body_limit, self.body_seconds = body_limit, body_seconds
        self.bodies: list[_Body] = []  # on their way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # websockets are not used
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                sent = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    sent.setdefault(name, value)
            await send(message)

        body = _Body(self, receive)
        self.bodies.append(body)
        try:
            self.check(scope, headers)
            if self.token is not None and (redirect := self._redirect(scope, headers)):
                raise RefusedError(303, "", redirect)
            body.expect_room(int(headers.get("content-length", "0")))
            await self.app(scope, body.receive, send_safely)
        except RefusedError as error:
            if error.status != 303 and "text/html" in headers.get("accept", ""):
                refusal = refusal_page(error.status, str(error))
            else:
                refusal = JSONResponse({"message": str(error)}, error.status)
            refusal.headers.update(error.headers)
            await refusal(scope, receive, send_safely)
        except Exception:  # the browser got a sentence; the log gets the traceback
            if not started:
                await JSONResponse({"message": "internal error"}, 500)(scope, receive, send_safely)
            logging.getLogger("clocs.web").exception("a request failed")
        finally:
            self.bodies.remove(body)

    def check(self, scope: Scope, headers: dict[str, str]) -> None:
        """Refuse what is for another host, from another site, without the token or too large."""
        host = headers.get("host", "")
        if self.hosts is not None and _name(host) not in self.hosts:
            raise RefusedError(
                421, f"this server is not {host[:80]!r}; open the address that it printed"
            )
        origin = headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2].lower() != host.lower()
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            foreign |= scope["method"] != "GET" or headers.get("sec-fetch-mode") != "navigate"
        if foreign:
            raise RefusedError(403, "requests from other sites are not allowed")
        is_open = self.token is None or scope["path"] in self.open_paths
        if not is_open and not self._is_authorized(scope, headers):
            raise RefusedError(401, self.no_token)
        if not headers.get("content-length", "0").isdecimal():
            raise RefusedError(413, "the length of the request is no number")

    def _is_authorized(self, scope: Scope, headers: dict[str, str]) -> bool:
        presented = [headers.get("authorization", "").removeprefix("Bearer ")]
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(_cookie(headers))
            presented.append(cookie.value if cookie else "")
        except CookieError:
            pass
        if scope["path"] == "/":
            presented += parse_qs(scope["query_string"].decode("latin-1")).get("token", [])[:1]
        token = (self.token or "").encode()
        return any(hmac.compare_digest(token, word.encode()) for word in presented)

    def _redirect(self, scope: Scope, headers: dict[str, str]) -> dict[str, str] | None:
        """Redirect a browser with the token in its URL to the same URL with a cookie instead."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if scope["path"] != "/" or "token" not in query:
            return None
        rest = urlencode({k: v for k, v in query.items() if k != "token"}, doseq=True)
        cookie = f"{_cookie(headers)}={self.token}; HttpOnly; SameSite=Lax; Path=/"
        return {"location": f"/?{rest}" if rest else "/", "set-cookie": cookie}


class _Body:
    """The body of a request on its way to the application, counted until the request is answered.

    A large one is refused while too many bytes of others are held, unless they stopped arriving.
    """

    def __init__(self, shield: Shield, receive: Receive) -> None:
        self.held = 0  # bytes that count
        self._shield, self._receive, self._received = shield, receive, 0
        self._complete, self._since, self._deadline = False, 0.0, 0.0
        self._timeout: asyncio.Timeout | None = None  # while the next part is awaited

    def expect_room(self, size: int) -> None:
        """Refuse a body of this many bytes if it is too large, or if others are."""
        shield, counted = self._shield, max(0, size - FREE)
        if size > shield.body_limit:
            limit = f"the request is larger than {shield.body_limit >> 20} MiB"
            raise RefusedError(413, f"{limit}; {shield.too_large}")
        others = [one for one in shield.bodies if one is not self and one.held]
        stalled = [one for one in others if one.has_stalled]
        while counted and sum(one.held for one in others) + counted > BODIES * shield.body_limit:
            if not stalled:
                raise RefusedError(
                    503,
                    "too many large requests at once; try again in a moment",
                    {"retry-after": "1", "connection": "close"},
                )
            stalled.pop(0).give_way()

    @property
    def has_stalled(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._timeout is not None and now - self._since > STALLED

    def give_way(self) -> None:
        self.held = 0
        if self._timeout is not None:
            self._timeout.reschedule(0.0)

    async def receive(self) -> Message:
        """The next part; once complete, any further one waits for a disconnect."""
        if self._complete:
            return await self._receive()
        seconds = self._shield.body_seconds
        self._since = asyncio.get_running_loop().time()
        self._deadline = self._deadline or self._since + seconds
        try:
            async with asyncio.timeout_at(self._deadline) as self._timeout:
                message = await self._receive()
        except TimeoutError:
            words = f"the request took too long to arrive; send it at once, within {seconds:g} s"
            raise RefusedError(408, words) from None
        finally:
            self._timeout = None
        self._complete = not message.get("more_body", False)
        self._received += len(message.get("body", b""))
        self.expect_room(self._received)
        self.held = max(0, self._received - FREE)
        return message


def _cookie(headers: dict[str, str]) -> str:
    """The cookie's name has the port, because browsers send cookies to all ports of a host."""
    _, _, port = headers.get("host", "").rpartition(":")
    return f"clocs_token_{port}" if port.isdecimal() else "clocs_token"


def _name(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).lower()


class Problem(BaseModel):
    message: str  # one sentence, in the response to every error
    unit_question: dict[str, Any] | None = None  # see `clocs.web.uploads.UnitQuestionError`
    rate_question: bool | None = None  # whether the sampling rate of an upload has to be given


Kinds = type[ClocsError] | tuple[type[ClocsError], ...]


def add_problems(app: FastAPI, *, not_found: Kinds = (), conflict: Kinds = ()) -> None:
    """Answer errors with a `Problem`: 422 for a `ClocsError`.

    It is 404 for those of `not_found`, and 409 for those of `conflict`.
    """

    async def problem(request: Request, error: Exception) -> JSONResponse:
        status, message, headers = 500, "internal error; see the terminal for details", None
        asked: dict[str, Any] = {}
        if isinstance(error, ClocsError):
            status, message = 422, str(error)
            if isinstance(error, UnitQuestionError):
                asked["unit_question"] = error.facts
            elif isinstance(error, UnknownRateError):
                asked["rate_question"] = True
            elif isinstance(error, not_found):
                status = 404
            elif isinstance(error, conflict):
                status = 409
        elif isinstance(error, HTTPException):
            status, message, headers = error.status_code, str(error.detail), error.headers
        elif isinstance(error, RequestValidationError):
            first = error.errors()[0]
            where = " ".join(str(part) for part in first["loc"][1:])
            status, message = 422, f"`{where}`: {first['msg']}"
        elif isinstance(error, ClientDisconnect):  # nobody reads it
            status, message = 400, "the request ended early"
        elif isinstance(error, RefusedError):
            status, message, headers = error.status, str(error), error.headers
        return JSONResponse({"message": message} | asked, status, headers=headers)

    known = (ClocsError, HTTPException, RequestValidationError, ClientDisconnect, RefusedError)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, problem)

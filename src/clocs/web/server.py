"""The server under both pages: its address and token, and what a visitor may use of it.

uvicorn has no time limit on headers, none on visitors who do not read their response, and keeps
accepting until the system has no file handles left.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
import socket
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from clocs.errors import SettingError
from clocs.web.shield import LOOPBACK

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HEADER_BYTES = 16 << 10
_ANY_ADDRESS = ("0.0.0.0", "::")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")
_LOGGERS = ("uvicorn.error", "asyncio", "clocs.explorer", "clocs.web")
_ON_ITS_WAY = 0.5  # seconds that open connections have to send a request, once the server ends
_BUSY = b'{"message": "too many connections; try again in a moment"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 5\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_BUSY), _BUSY)
)


@dataclass(frozen=True)
class ConnectionLimits:
    """What a visitor may use of the server; uploads have limits of their own."""

    connections: int = 512  # in all; fewer where the system allows fewer open files
    per_address: int = 128
    header_seconds: float = 10.0  # from the first byte, or the opening, to the end of the headers
    unread_seconds: float = 30.0  # while nothing of a response is read


class Connection(H11Protocol):
    """One connection. When there are too many, a new one replaces the oldest that is idle.

    So somebody who opens many and sends nothing locks nobody out, not even others at the same
    address. If all are busy with requests, the new one is told to come back.
    """

    limits = ConnectionLimits()
    _header_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def expects_header(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_idle(self) -> bool:
        return self.expects_header and not self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened = self.loop.time()
        others = cast("list[Connection]", [*(self.connections - {self})])
        others.sort(key=lambda one: one.opened)
        mine = [one for one in others if one.address == self.address]
        limits = self.limits
        if _make_room(mine, limits.per_address) and _make_room(others, limits.connections):
            self._watch_header()
        else:
            self.connections.discard(self)
            transport.write(_REFUSAL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_header()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._header_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def drop(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def _watch_header(self) -> None:
        """Start the clock with the first byte of a header; stop it with the last.

        It also runs while a body is received after its response, which nobody reads.
        """
        if not self.expects_header and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        elif self.expects_header and self._header_timer is None:
            self._header_timer = self.loop.call_later(self.limits.header_seconds, self.drop)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.limits.unread_seconds, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()


def _make_room(others: list[Connection], most: int) -> bool:
    """Drop the oldest idle connection if there are too many; False if none is idle."""
    if len(others) < most:
        return True
    idle = next((one for one in others if one.is_idle), None)
    if idle is not None:
        idle.drop()
    return idle is not None


class WithoutDetails(logging.Filter):
    """Leaves out what an error says: its message and its paths may tell patients and machines."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            record.msg, record.args = f"{record.getMessage()} ({_place(record.exc_info[1])})", None
            record.exc_info = record.exc_text = None
        return True


_WITHOUT_DETAILS = WithoutDetails()


def _place(error: BaseException | None) -> str:
    """What an error is and where it was raised, without what it says."""
    steps = traceback.extract_tb(error.__traceback__ if error else None)[-4:]
    places = ", ".join(f"{Path(step.filename).name}:{step.lineno}" for step in steps)
    return f"{type(error).__name__} at {places}"


class GracefulServer(uvicorn.Server):
    """Serves an application within limits; answers every request that has reached it at its end.

    uvicorn resets connections that the system has accepted and it has not, and those whose request
    is on its way.
    """

    def __init__(
        self, app: ASGIApp, limits: ConnectionLimits | None = None, *, grace: float = 5
    ) -> None:
        """Run it with a listening socket.

        Args:
            app: What it serves.
            limits: Of its visitors.
            grace: Seconds that accepted requests have once it is told to end.
        """
        limits = limits or ConnectionLimits()
        most = min(limits.connections, _open_files() // 2)
        own = {"limits": replace(limits, connections=most)}
        self._connection_type: type[Connection] = type("LimitedConnection", (Connection,), own)
        config = uvicorn.Config(
            app,
            http=self._connection_type,
            ws="none",
            log_level="error",  # a line per bad request would let visitors fill the disk
            access_log=False,
            server_header=False,
            backlog=max(1, most // 4),  # asyncio accepts this many before it looks at any of them
            h11_max_incomplete_event_size=HEADER_BYTES,
            timeout_graceful_shutdown=math.ceil(grace),
            loop="asyncio",
        )
        super().__init__(config)
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_WITHOUT_DETAILS)  # once

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Uvicorn's reaction to SIGINT and SIGTERM; the second one ends at once."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        waiting: list[socket.socket] = []
        for listening in sockets or []:
            try:
                loop.remove_reader(listening.fileno())
                await asyncio.sleep(0)  # those that were accepted before become connections
                while True:
                    waiting.append(listening.accept()[0])
            except (OSError, NotImplementedError):  # nobody waits; or Windows
                pass
        for server in self.servers:
            server.close()
        for one in waiting:
            one.setblocking(False)
            await loop.connect_accepted_socket(self._connection, one)
        until = loop.time() + _ON_ITS_WAY
        connections = cast("set[Connection]", self.server_state.connections)
        while loop.time() < until and any(one.is_idle for one in connections):
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    def _connection(self) -> Connection:
        return self._connection_type(self.config, self.server_state, self.lifespan.state)


def _open_files() -> int:
    """How many files this process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return 2048
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


class Listening(NamedTuple):
    """A port that is open, and how to reach it.

    Attributes:
        socket: Bound, but not listening yet.
        url: Of the server for programs on this machine, without a slash at its end.
        hosts: Names under which it may be asked; None for any.
        token: That visitors must present, if any.
    """

    socket: socket.socket
    url: str
    hosts: frozenset[str] | None
    token: str | None


def listen(host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> Listening:
    """Open a port, a free one if it is 0.

    The token is generated for 'new'; it is required unless the host is this machine alone.
    """
    token = secrets.token_urlsafe(24) if token == "new" else token
    name = f"[{host}]" if ":" in host else host
    if name not in LOOPBACK and token is None:
        raise SettingError(
            f"`host` {host} can be reached from other machines, so it needs a `token` ('new' "
            "generates one)"
        )
    if token is not None and _TOKEN.fullmatch(token) is None:
        raise SettingError("`token` must be 16 to 128 letters, digits, '-' or '_', or 'new'")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol's number, for which alone asyncio sets TCP_NODELAY: without that, a response
    # on an open connection waits for the browser's delayed acknowledgement, 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, UnicodeError, OverflowError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or error
        raise SettingError(
            f"cannot listen on {host} port {port} ({why}); choose another `host` or `port`"
        ) from None
    url = f"http://{'127.0.0.1' if host in _ANY_ADDRESS else name}:{listening.getsockname()[1]}"
    hosts = None if host in _ANY_ADDRESS else LOOPBACK | {name.lower()}
    return Listening(listening, url, hosts, token)

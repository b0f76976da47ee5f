"""The server around the endpoints: it loads while it listens, and ends without losing a request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import ClassVar

from clocs.service.api import make_api
from clocs.service.metrics import Metered
from clocs.service.service import Service
from clocs.web.body_reader import SECONDS
from clocs.web.server import ConnectionLimits, GracefulServer
from clocs.web.shield import BODY_SECONDS, LOOPBACK, Shield

_CONNECTIONS = ConnectionLimits(per_address=384)  # many clients may come through one proxy


class ServiceShield(Shield):
    """For programs, not browsers; probes need no token."""

    no_token: ClassVar[str] = (
        "this service requires its token; send it in the header `Authorization: Bearer TOKEN`"
    )
    too_large: ClassVar[str] = "send fewer or shorter recordings"
    open_paths: ClassVar[frozenset[str]] = frozenset({"/health", "/ready"})


def make_app(
    service: Service, *, hosts: Collection[str] | None = LOOPBACK, token: str | None = None
) -> Metered:
    """The endpoints with all that surrounds them."""
    limit = service.limits.mebibytes << 20
    shielded = ServiceShield(make_api(service), hosts=hosts, token=token, body_limit=limit)
    return Metered(shielded, service.metrics)


class Server(GracefulServer):
    """Refuses new work once it is told to end, and ends when the accepted work is done."""

    def __init__(self, app: Metered, service: Service, on_ready: Callable[[], None]) -> None:
        # a body that is being received, read and computed is accepted work
        grace = BODY_SECONDS + 2 * SECONDS + service.limits.timeout
        super().__init__(app, _CONNECTIONS, grace=grace)
        self._service, self._on_ready = service, on_ready
        self._announced = False
        self.problem: Exception | None = None  # why loading failed

    def load(self, load: Callable[[], None]) -> None:
        """Load; the server ends if that fails."""
        try:
            load()
        except Exception as error:
            self.problem = error
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Uvicorn's reaction to SIGINT and SIGTERM; the second one ends at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._service.state = "stopping"

    async def on_tick(self, counter: int) -> bool:
        """Every tenth of a second."""
        if self._service.state == "ready" and not self._announced:
            self._announced = True
            self._on_ready()
        return await super().on_tick(counter)


def run_server(
    service: Service,
    listening: socket.socket,
    *,
    load: Callable[[], None],
    hosts: Collection[str] | None,
    token: str | None,
    on_ready: Callable[[], None],
) -> None:
    """Answer until interrupted.

    Args:
        service: Its models are not loaded yet.
        listening: A bound socket.
        load: Loads them, in a thread: meanwhile the service says that it is not ready.
        hosts: The names under which it may be asked; None for any.
        token: Secret that clients must send.
        on_ready: Called when everything is loaded.
    """
    server = Server(make_app(service, hosts=hosts, token=token), service, on_ready)
    threading.Thread(target=server.load, args=(load,), daemon=True).start()
    server.run(sockets=[listening])
    service.close()
    if server.problem is not None:
        raise server.problem

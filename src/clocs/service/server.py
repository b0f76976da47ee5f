"""The server around the endpoints: it loads while it listens, and ends without losing a request."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

from clocs.service.api import make_api
from clocs.service.service import Metrics, Service
from clocs.web.body_reader import SECONDS
from clocs.web.server import ConnectionLimits, GracefulServer
from clocs.web.shield import BODY_SECONDS, LOOPBACK, Shield

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

_CONNECTIONS = ConnectionLimits(per_address=384)  # many clients may come through one proxy


class ServiceShield(Shield):
    """For programs, not browsers; probes need no token. It counts the requests."""

    no_token: ClassVar[str] = (
        "this service requires its token; send it in the header `Authorization: Bearer TOKEN`"
    )
    too_large: ClassVar[str] = "send fewer or shorter recordings"
    open_paths: ClassVar[frozenset[str]] = frozenset({"/health", "/ready"})
    metrics: Metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = time.perf_counter(), 0

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await super().__call__(scope, receive, send_counted)
        finally:
            if scope["type"] == "http":
                # the path as it was declared: those that clients make up would fill the memory
                endpoint = getattr(scope.get("route"), "path", "none")
                self.metrics.requests.labels(endpoint, str(status)).inc()
                self.metrics.seconds.labels(endpoint).observe(time.perf_counter() - began)


def make_app(
    service: Service, *, hosts: Collection[str] | None = LOOPBACK, token: str | None = None
) -> ServiceShield:
    """The endpoints with all that surrounds them."""
    limit = service.limits.mebibytes << 20
    app = ServiceShield(make_api(service), hosts=hosts, token=token, body_limit=limit)
    app.metrics = service.metrics
    return app


class Server(GracefulServer):
    """Refuses new work once it is told to end, and ends when the accepted work is done."""

    def __init__(self, app: ServiceShield, service: Service, on_ready: Callable[[], None]) -> None:
        # a body that is being received, read and computed is accepted work
        grace = BODY_SECONDS + 2 * SECONDS + service.limits.timeout
        super().__init__(app, _CONNECTIONS, grace=grace)
        self._service, self._on_ready = service, on_ready
        self.problem: Exception | None = None  # why loading failed

    def load(self, load: Callable[[], None]) -> None:
        """Load, and say so once requests are answered; the server ends if that fails."""
        try:
            load()
            while not self.started and not self.should_exit:
                time.sleep(0.01)
            if self._service.state == "ready":
                self._on_ready()
        except Exception as error:
            self.problem = error
            self.should_exit = True

    def answer(self, listening: socket.socket, load: Callable[[], None]) -> None:
        """Answer until interrupted; meanwhile a thread loads the models."""
        threading.Thread(target=self.load, args=(load,), daemon=True).start()
        self.run(sockets=[listening])
        self._service.close()
        if self.problem is not None:
            raise self.problem

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._service.state = "stopping"

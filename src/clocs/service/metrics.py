"""Metrics for Prometheus: requests, recordings, batches and the queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_RECORDINGS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """What is counted; `text` is what Prometheus reads."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.requests = Counter(
            "clocs_requests",
            "Requests by endpoint and status.",
            ("endpoint", "status"),
            registry=self._registry,
        )
        self.seconds = Histogram(
            "clocs_request_seconds",
            "From the headers of a request to the end of its response.",
            ("endpoint",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.recordings = Counter(
            "clocs_recordings",
            "Recordings by endpoint and outcome: answered or unusable.",
            ("endpoint", "outcome"),
            registry=self._registry,
        )
        self.batches = Histogram(
            "clocs_batch_recordings",
            "Recordings computed together.",
            buckets=_RECORDINGS,
            registry=self._registry,
        )
        self.queue = Gauge(
            "clocs_queue_seconds",
            "Seconds of ECG, summed over leads, that wait or are being computed.",
            registry=self._registry,
        )
        self.ready = Gauge(
            "clocs_ready", "1 while requests are accepted, else 0.", registry=self._registry
        )

    def text(self) -> bytes:
        """In Prometheus' format."""
        return generate_latest(self._registry)


class Metered:
    """An ASGI application around another that counts its requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_counted)
        finally:
            # the path as it was declared: those that clients make up would fill the memory
            endpoint = getattr(scope.get("route"), "path", "none")
            self.metrics.requests.labels(endpoint, str(status)).inc()
            self.metrics.seconds.labels(endpoint).observe(time.perf_counter() - began)

"""How both servers end."""

from __future__ import annotations

import signal
from typing import Any

from clocs.web.server import GracefulServer


def test_the_first_signal_lets_requests_finish_and_the_second_ends_at_once() -> None:
    async def app(*given: Any) -> None:
        return None

    server = GracefulServer(app, grace=1.0)
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit and not server.force_exit
    server.handle_exit(signal.SIGTERM, None)
    assert server.force_exit

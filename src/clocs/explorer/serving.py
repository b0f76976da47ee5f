"""Serving: a session and an address -> a running server. Knows nothing about terminals."""

from __future__ import annotations

import re
import secrets
import socket
import threading
from typing import TYPE_CHECKING

from clocs.errors import SettingError

if TYPE_CHECKING:
    from clocs.explorer.session import Session

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANYWHERE = ("0.0.0.0", "::")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")


def checked_token(host: str, token: str | None) -> str | None:
    """The token to use; 'new' makes one, and whoever lets others in needs one."""
    token = secrets.token_urlsafe(24) if token == "new" else token
    if host not in _LOOPBACK and token is None:
        raise SettingError(
            f"--host {host} lets others in; give --token as well (--token new makes one)"
        )
    if token is not None and _TOKEN.fullmatch(token) is None:
        raise SettingError("--token should be 16 to 128 letters, digits, '-' or '_', or 'new'")
    return token


def listen(host: str, port: int) -> socket.socket:
    """A socket bound there; a free port where it is 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        raise SettingError(
            f"{host} port {port} cannot be listened on ({error.strerror}); choose another --port"
        ) from None
    return listening


def open_door(listening: socket.socket, host: str, token: str | None) -> str:
    """Let visitors knock (they are answered once `serve` runs); what a browser here opens."""
    listening.listen(128)
    return address_of(listening, host, token)


def address_of(listening: socket.socket, host: str, token: str | None) -> str:
    """What a browser on this machine opens."""
    name = "127.0.0.1" if host in _ANYWHERE else f"[{host}]" if ":" in host else host
    query = f"?token={token}" if token else ""
    return f"http://{name}:{listening.getsockname()[1]}/{query}"


def serve(
    session: Session, listening: socket.socket, *, host: str, token: str | None, browse: bool
) -> None:
    """Answer until interrupted; the map and the classifiers are made meanwhile."""
    import uvicorn

    from clocs.explorer.server import make_app
    from clocs.explorer.shield import LOOPBACK

    bracketed = f"[{host}]" if ":" in host else host
    hosts = None if host in _ANYWHERE else LOOPBACK | {bracketed.lower()}
    app = make_app(session, hosts=hosts, token=token)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    )
    session.projection.start()
    warming = threading.Timer(2.0, session.warm)  # the map first
    warming.daemon = True
    warming.start()
    if browse:
        import webbrowser

        threading.Timer(0.5, webbrowser.open, [address_of(listening, host, token)]).start()
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        session.projection.stop()

"""Listening: the address of a server, its token, and the names it answers to."""

from __future__ import annotations

import re
import secrets
import socket

from clocs.errors import SettingError
from clocs.web.shield import LOOPBACK

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANY_ADDRESS = ("0.0.0.0", "::")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")


def checked_token(host: str, token: str | None) -> str | None:
    """The token to use, generated for 'new'; required unless the host is this machine alone."""
    token = secrets.token_urlsafe(24) if token == "new" else token
    if host not in _LOOPBACK and token is None:
        raise SettingError(
            f"`host` {host} can be reached from other machines, so it needs a `token` ('new' "
            "generates one)"
        )
    if token is not None and _TOKEN.fullmatch(token) is None:
        raise SettingError("`token` must be 16 to 128 letters, digits, '-' or '_', or 'new'")
    return token


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to this address; to a free port if `port` is 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol's number, for which alone asyncio sets TCP_NODELAY: without that, a response
    # on an open connection waits for the browser's delayed acknowledgement, 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, UnicodeError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or error
        raise SettingError(
            f"cannot listen on {host} port {port} ({why}); choose another `host` or `port`"
        ) from None
    return listening


def address_of(listening: socket.socket, host: str) -> str:
    """The URL of a server for programs on this machine, without a slash at its end."""
    name = "127.0.0.1" if host in _ANY_ADDRESS else f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def names_of(host: str) -> frozenset[str] | None:
    """The names under which a server on `host` may be asked; None for any."""
    bracketed = f"[{host}]" if ":" in host else host
    return None if host in _ANY_ADDRESS else LOOPBACK | {bracketed.lower()}

"""Run the explorer: `clocs.explore`, the address it listens on, and the server behind it."""

from __future__ import annotations

import html
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from clocs.errors import SettingError

if TYPE_CHECKING:
    from clocs.explorer.session import Session
    from clocs.store.store import Store

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANY_ADDRESS = ("0.0.0.0", "::")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")


def explore(
    *stores: Store | Path | str,
    checkpoint: Path | str | None = None,
    embeddings: Path | str | None = None,
    runs: Path | str | None = None,
    cache: Path | str | None = None,
    show_ids: bool = False,
    split_seed: int = 0,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = "new",
    browse: bool = True,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    on_open: Callable[[str, Session], None] | None = None,
) -> None:
    """Serve a page for browsing patients on this machine until interrupted.

    Args:
        stores: Prepared recordings or their folders; the demo's patients if nothing is given.
        checkpoint: The encoder; a folder means its first seed.
        embeddings: A file written by `clocs.embed` at level 'patient', used instead of encoding
            the stores.
        runs: A folder with a report to show.
        cache: Folder for computed embeddings and maps; the system's cache folder by default.
        show_ids: Show patients' own IDs instead of pseudonyms.
        split_seed: Random seed for the patient split.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        token: Secret that visitors must present, in the page's address; 'new' generates one. None
            for no token, which is possible only where the host is this machine alone, and lets
            every user of this machine in.
        browse: Open the page in a browser.
        progress: Called with the current stage, the steps done and their total.
        on_open: Called with the page's address once it accepts connections; by default the
            address is printed to standard error.
    """
    missing = [name for name in ("fastapi", "uvicorn", "multipart") if find_spec(name) is None]
    if missing:
        raise SettingError(
            f"`clocs explore` needs {', '.join(missing)}; install the extra with "
            "pip install 'clocs[web]'"
        )
    token = checked_token(host, token)
    listening = listen(host, port)
    from clocs.explorer.open import open_session

    # Importing the server's libraries takes as long as reading a hundred thousand patients.
    threading.Thread(target=import_module, args=("clocs.explorer.server",), daemon=True).start()
    session = open_session(
        stores=[Path(one) if isinstance(one, str) else one for one in stores],
        checkpoint=Path(checkpoint) if checkpoint else None,
        embeddings=Path(embeddings) if embeddings else None,
        runs=Path(runs) if runs else None,
        cache=Path(cache) if cache else None,
        show_ids=show_ids,
        split_seed=split_seed,
        progress=progress,
    )
    listening.listen(128)  # from here on the browser may connect; `_serve` answers
    url = _address(listening, host, token)
    if on_open is None:
        sys.stderr.write(f"The explorer is running at {url}\n")
    else:
        on_open(url, session)
    with ExitStack() as files:
        if browse:
            import webbrowser

            shown = files.enter_context(opening_file(url)).as_uri() if token else url
            threading.Timer(0.5, webbrowser.open, [shown]).start()
        files.enter_context(_exit_when_terminated())
        _serve(session, listening, host, token)


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
    except OSError as error:
        raise SettingError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another `port`"
        ) from None
    return listening


def _address(listening: socket.socket, host: str, token: str | None) -> str:
    """The URL to open in a browser on this machine."""
    name = "127.0.0.1" if host in _ANY_ADDRESS else f"[{host}]" if ":" in host else host
    query = f"?token={token}" if token else ""
    return f"http://{name}:{listening.getsockname()[1]}/{query}"


@contextmanager
def opening_file(url: str) -> Iterator[Path]:
    """A page that only this user can read and that leads to `url`.

    The browser is started with the name of this file, because other users of this machine can see
    the arguments of programs, and the token must not be among them.
    """
    with tempfile.TemporaryDirectory(prefix="clocs-explorer-") as folder:
        file = Path(folder, "open.html")
        file.write_text(
            f'<!doctype html><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0; url={html.escape(url)}">',
            encoding="utf-8",
        )
        yield file


@contextmanager
def _exit_when_terminated() -> Iterator[None]:
    """SIGTERM ends the program in order, so that temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _serve(session: Session, listening: socket.socket, host: str, token: str | None) -> None:
    """Answer until interrupted; the map and the predictors are computed meanwhile."""
    from clocs.explorer.connections import make_server
    from clocs.explorer.server import make_api
    from clocs.explorer.shield import LOOPBACK, Shield

    bracketed = f"[{host}]" if ":" in host else host
    hosts = None if host in _ANY_ADDRESS else LOOPBACK | {bracketed.lower()}
    app = Shield(make_api(session), hosts=hosts, token=token)
    session.projection.start()
    warming = threading.Timer(2.0, session.warm)  # the map comes first
    warming.daemon = True
    warming.start()
    try:
        make_server(app).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        session.projection.stop()

"""Run the explorer: `clocs.explore`, the address it listens on, and the server behind it."""

from __future__ import annotations

import html
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from clocs.web import expect_installed

if TYPE_CHECKING:
    from clocs.explorer.session import Session
    from clocs.models.classifier import Classifier
    from clocs.store.store import Store
    from clocs.web.server import Listening


def explore(
    *stores: Store | Path | str,
    checkpoint: Path | str | Sequence[Path | str] = (),
    embeddings: Path | str | None = None,
    model: Classifier | Path | str | Sequence[Classifier | Path | str] = (),
    runs: Path | str | None = None,
    show_ids: bool = False,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = "new",
    browse: bool = True,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    on_open: Callable[[str, Session], None] | None = None,
) -> None:
    """Browse patients on a local page: map, ECGs, nearest patients, and your own ECG among them.

    Args:
        stores: Prepared recordings or their folders; the demo's patients if nothing is given.
        checkpoint: The encoder; a folder means its first seed. Further ones map the same patients
            beside it.
        embeddings: A file written by `clocs.embed` at level 'patient', used instead of encoding
            the stores.
        model: Classifiers, their files or the names of shipped ones. They predict the recordings
            and uploads that are shown, and explain it.
        runs: A folder with trainings, whose curves are shown while they train, or a report.
        show_ids: Show patients' own IDs instead of pseudonyms.
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
    expect_installed("explore", "web", ("fastapi", "uvicorn", "multipart"))
    from clocs.web.server import listen

    opened = listen(host, port, token)
    from clocs.explorer.open import open_session

    # Importing the server's libraries takes as long as reading a hundred thousand patients.
    threading.Thread(target=import_module, args=("clocs.explorer.server",), daemon=True).start()
    encoders = [checkpoint] if isinstance(checkpoint, str | Path) else list(checkpoint)
    session = open_session(
        stores=[Path(one) if isinstance(one, str) else one for one in stores],
        checkpoint=Path(encoders[0]) if encoders else None,
        others=[Path(one) for one in encoders[1:]],
        embeddings=Path(embeddings) if embeddings else None,
        models=model if isinstance(model, Sequence) and not isinstance(model, str) else [model],
        runs=Path(runs) if runs else None,
        show_ids=show_ids,
        progress=progress,
    )
    opened.socket.listen(128)  # from here on the browser may connect; `_serve` answers
    url = opened.url + (f"/?token={opened.token}" if opened.token else "/")
    if on_open is None:
        sys.stderr.write(f"The explorer is running at {url}\n")
    else:
        on_open(url, session)
    with ExitStack() as files:
        if browse:
            import webbrowser

            shown = files.enter_context(opening_file(url)).as_uri() if opened.token else url
            threading.Timer(0.5, webbrowser.open, [shown]).start()
        _serve(session, opened)


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


def _serve(session: Session, port: Listening) -> None:
    """Answer until interrupted; the map and the index are computed meanwhile."""
    from clocs.explorer.server import make_api
    from clocs.web.server import GracefulServer
    from clocs.web.shield import Shield

    app = Shield(make_api(session), hosts=port.hosts, token=port.token)
    projections = [session.projection, *(one.projection for one in session.others)]
    for one in projections:
        one.start()
    warming = threading.Timer(2.0, lambda: session.index)  # the map comes first
    warming.daemon = True
    warming.start()
    try:
        GracefulServer(app).run(sockets=[port.socket])
    finally:
        for one in projections:
            one.stop()

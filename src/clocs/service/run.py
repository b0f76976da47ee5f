"""Run the service: `clocs.serve`, from the address to the end of the last request."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from clocs.errors import SettingError
from clocs.web import expect_installed

if TYPE_CHECKING:
    from clocs.models.classifier import Classifier
    from clocs.training.checkpoint import Checkpoint

_NEEDED = ("fastapi", "uvicorn", "multipart", "msgspec", "prometheus_client")


def serve(
    *models: Path | str | Checkpoint | Classifier,
    index: Path | str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = "new",
    show_ids: bool = False,
    on_ready: Callable[[str, str | None], None] | None = None,
) -> None:
    """Serve embeddings, predictions and neighbors of ECGs over HTTP, until interrupted.

    A first interrupt or SIGTERM lets accepted requests finish and refuses new ones; a second one
    ends at once.

    Args:
        models: Encoders and classifiers: files, folders (then their first seed), or NAME=PATH for
            another name than the file's or folder's.
        index: Folder made by `clocs index`, whose patients are searched for neighbors.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        token: Secret that clients must send; 'new' generates one. None for no token, which is
            possible only where the host is this machine alone.
        show_ids: Whether neighbors come with the IDs of patients and recordings.
        on_ready: Called with the address and the token once requests are answered; by default both
            are printed to standard error.
    """
    expect_installed("serve", "serve", _NEEDED)
    if not models and index is None:
        raise SettingError("there is nothing to serve; give `models`, an `index` or both")
    from clocs.web.server import listen

    opened = listen(host, port, token)
    from clocs.service.server import Server, make_app
    from clocs.service.service import Service

    service = Service(show_ids=show_ids)

    def ready() -> None:
        gc.freeze()  # what is loaded stays: no search for garbage has to look at it again
        if on_ready is not None:
            on_ready(opened.url, opened.token)
        else:
            shown = f"; the token is {opened.token}" if opened.token else ""
            sys.stderr.write(f"The service is ready at {opened.url}{shown}\n")

    app = make_app(service, hosts=opened.hosts, token=opened.token)
    Server(app, service, ready).answer(opened.socket, lambda: service.load(models, index))

"""Run the service: `clocs.serve`, from the address to the end of the last request."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from clocs.errors import SettingError, with_extra
from clocs.web.server import address_of, checked_token, listen, names_of

if TYPE_CHECKING:
    from clocs.models.classifier import Classifier
    from clocs.training.checkpoint import Checkpoint

_NEEDED = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "multipart": "python-multipart",
    "msgspec": "msgspec",
    "prometheus_client": "prometheus-client",
}


def serve(
    *models: Path | str | Checkpoint | Classifier,
    index: Path | str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = "new",
    show_ids: bool = False,
    threads: int | None = None,
    most_mebibytes: int = 80,
    most_recordings: int = 64,
    most_seconds: float = 600.0,
    queue: float = 15_360.0,
    timeout: float = 10.0,
    on_ready: Callable[[str, str | None], None] | None = None,
) -> None:
    """Answer requests for embeddings, predictions and neighbours over HTTP until interrupted.

    A first interrupt or SIGTERM lets accepted requests finish and refuses new ones; a second one
    ends at once.

    Args:
        models: Encoders and classifiers: files, folders (then their first seed), or NAME=PATH for
            another name than the file's or folder's.
        index: Folder made by `clocs.index`, whose patients are searched for neighbours.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        token: Secret that clients must send; 'new' generates one. None for no token, which is
            possible only where the host is this machine alone.
        show_ids: Whether neighbours come with the IDs of patients and recordings.
        threads: Of torch; by default as many as the machine has cores.
        most_mebibytes: Of the body of a request.
        most_recordings: In one request.
        most_seconds: Of one recording.
        queue: Seconds of ECG, summed over leads, that may wait or be computed; further requests
            are answered with 429.
        timeout: Seconds that a request may wait for its results.
        on_ready: Called with the address and the token once requests are answered; by default both
            are printed to standard error.
    """
    missing = [name for module, name in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise SettingError(
            f"`clocs serve` needs {', '.join(missing)}, which is not installed; "
            + with_extra("serve")
        )
    if not models and index is None:
        raise SettingError("there is nothing to serve; give `models`, an `index` or both")
    token = checked_token(host, token)
    listening = listen(host, port)
    from clocs.service.bodies import Limits
    from clocs.service.server import run_server
    from clocs.service.service import Service

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    limits = Limits(most_mebibytes, most_recordings, most_seconds, queue, timeout)
    service = Service(limits, show_ids=show_ids)
    url = address_of(listening, host)

    def ready() -> None:
        if on_ready is not None:
            on_ready(url, token)
        else:
            shown = f"; the token is {token}" if token else ""
            sys.stderr.write(f"The service is ready at {url}{shown}\n")

    run_server(
        service,
        listening,
        load=lambda: service.load(models, index),
        hosts=names_of(host),
        token=token,
        on_ready=ready,
    )

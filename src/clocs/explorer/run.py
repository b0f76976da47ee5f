"""Exploring, from Python and for the command line: paths and wishes -> a page that answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from clocs.errors import SettingError

if TYPE_CHECKING:
    from clocs.explorer.session import Session


def explore(
    *stores: Path | str,
    checkpoint: Path | str | None = None,
    embeddings: Path | str | None = None,
    runs: Path | str | None = None,
    cache: Path | str | None = None,
    show_ids: bool = False,
    split_seed: int = 0,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    browse: bool = True,
    on_open: Callable[[str, Session], None] | None = None,
) -> None:
    """Open a page on patients, on this machine alone; returns when it is interrupted.

    Args:
        stores: Prepared recordings; with nothing at all given, the demo's.
        checkpoint: The encoder; a folder stands for its first seed.
        embeddings: Made by `clocs.embed` at the level 'patient', instead of encoding the stores.
        runs: A folder with a report.
        cache: Folder for what is computed; the system's place by default.
        show_ids: Whether patients go by their own IDs, not by pseudonyms.
        split_seed: Of the split by patient.
        host: Another address to listen on; needs a token.
        port: A free one by default.
        token: That visitors must show; 'new' makes one.
        browse: Whether to open a browser.
        on_open: Called with the page's address once it can be opened; printed by default.
    """
    missing = [name for name in ("fastapi", "uvicorn", "multipart") if find_spec(name) is None]
    if missing:
        raise SettingError(
            f"`clocs explore` needs {', '.join(missing)}; install the extra with "
            "pip install 'clocs[web]'"
        )
    from rich.console import Console

    from clocs.explorer import serving

    token = serving.checked_token(host, token)
    listening = serving.listen(host, port)
    from clocs.explorer.open import open_session

    # The server's libraries take as long to import as a hundred thousand patients to read.
    threading.Thread(target=import_module, args=("clocs.explorer.server",), daemon=True).start()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    session = open_session(
        stores=[Path(store) for store in stores],
        checkpoint=_path(checkpoint),
        embeddings=_path(embeddings),
        runs=_path(runs),
        cache=_path(cache),
        show_ids=show_ids,
        split_seed=split_seed,
        console=console,
    )
    url = serving.open_door(listening, host, token)
    if on_open is None:
        console.print(f"The explorer is at {url}", markup=False)
    else:
        on_open(url, session)
    serving.serve(session, listening, host=host, token=token, browse=browse)


def _path(given: Path | str | None) -> Path | None:
    return None if given is None else Path(given)

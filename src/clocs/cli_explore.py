"""The command `clocs explore`: parse, open, serve. What is shown is made by `clocs.web`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clocs.errors import SettingError

_out = Console(highlight=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, soft_wrap=True)


def explore(
    checkpoint: Annotated[
        Path | None, typer.Option(help="The encoder: a file, or a folder (then its first seed).")
    ] = None,
    store: Annotated[
        list[Path] | None, typer.Option(help="Prepared recordings; may be given again.")
    ] = None,
    embeddings: Annotated[
        Path | None, typer.Option(help="Of `clocs embed --level patient`; spares the encoding.")
    ] = None,
    runs: Annotated[Path | None, typer.Option(help="A folder with a report to show.")] = None,
    port: Annotated[int, typer.Option(help="A free one by default.", min=0, max=65535)] = 0,
    host: Annotated[
        str, typer.Option(help="Another address to listen on; needs --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(help="That visitors must show; 'new' makes one.", envvar="CLOCS_TOKEN"),
    ] = None,
    show_ids: Annotated[
        bool, typer.Option("--show-ids", help="Show patients' own IDs, not pseudonyms.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for computed things.", envvar="CLOCS_CACHE")
    ] = None,
    split_seed: Annotated[int, typer.Option(help="Of the split by patient.", min=0)] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address as JSON to standard output.")
    ] = False,
) -> None:
    """Open a page on patients: a map, their ECGs, who is like whom, and a place for your own ECG.

    Listens on this machine alone unless --host is given, together with --token. Patients go by
    pseudonyms. With no arguments it shows the demo's simulated patients.
    """
    _need("fastapi", "uvicorn", "multipart")
    from clocs.web import serving

    token = serving.checked_token(host, token)
    listening = serving.listen(host, port)
    from clocs.web.opening import open_session

    session = open_session(
        stores=store or (),
        checkpoint=checkpoint,
        embeddings=embeddings,
        runs=runs,
        cache=cache,
        show_ids=show_ids,
        split_seed=split_seed,
        console=_err,
    )
    url = serving.open_door(listening, host, token)
    if as_json:
        facts = {"url": url, "patients": len(session.embeddings), "datasets": session.datasets}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    else:
        _out.print(f"The explorer is at {url}  (Ctrl-C stops it)", markup=False)
    serving.serve(session, listening, host=host, token=token, browse=browser)
    _err.print("The explorer has stopped.")


def _need(*modules: str) -> None:
    from importlib.util import find_spec

    missing: Sequence[str] = [name for name in modules if find_spec(name) is None]
    if missing:
        raise SettingError(
            f"`clocs explore` needs {', '.join(missing)}; install the extra with "
            "pip install 'clocs[web]'"
        )

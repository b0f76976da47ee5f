"""The command `clocs serve`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from clocs.cli.console import err, out
from clocs.service import run

EXAMPLE = "Example: clocs serve runs/chapman-cmsc --index indexes/chapman --port 8080"


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Encoders and classifiers: names (clocs models), files, folders (then their first "
            "seed), or NAME=PATH.",
        ),
    ] = None,
    index: Annotated[
        Path | None, typer.Option(help="Folder made by `clocs index`, to search for neighbors.")
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 picks a free one.", min=0, max=65535)
    ] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on; only this machine's by default.")
    ] = "127.0.0.1",
    token: Annotated[
        str,
        typer.Option(
            help="Secret that clients must send; 'new' generates one.", envvar="CLOCS_TOKEN"
        ),
    ] = "new",
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let every user of this machine in.")
    ] = False,
    show_ids: Annotated[
        bool, typer.Option("--show-ids", help="Return the IDs of neighbors.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print address and token as JSON to standard output.")
    ] = False,
) -> None:
    """Serve embeddings, predictions and neighbors of ECGs over HTTP, as JSON.

    Listens on this machine only, unless --host is given, and answers requests that carry the token
    that it prints. SIGTERM or Ctrl-C lets accepted requests finish.
    """

    def ready(url: str, own: str | None) -> None:
        if as_json:  # flushed, because the reader is waiting for this line
            sys.stdout.write(json.dumps({"url": url, "token": own}) + "\n")
            sys.stdout.flush()
            return
        out.print(f"The service is ready at {url}  (press Ctrl-C to stop)", markup=False)
        if own is not None:
            out.print(f"Send the header  Authorization: Bearer {own}", markup=False)

    run.serve(
        *(models or ()),
        index=index,
        host=host,
        port=port,
        token=None if no_token else token,
        show_ids=show_ids,
        on_ready=ready,
    )
    err.print("The service has stopped.")

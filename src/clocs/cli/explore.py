"""The command `clocs explore`: parse, call, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clocs.cli.options import err, out
from clocs.explorer import run

if TYPE_CHECKING:
    from clocs.explorer.session import Session


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

    def opened(url: str, session: Session) -> None:
        if as_json:  # a line, at once: who reads it waits for it
            facts = {"url": url, "patients": len(session.embeddings), "datasets": session.datasets}
            sys.stdout.write(json.dumps(facts) + "\n")
            sys.stdout.flush()
        else:
            out.print(f"The explorer is at {url}  (Ctrl-C stops it)", markup=False)

    run.explore(
        *(store or ()),
        checkpoint=checkpoint,
        embeddings=embeddings,
        runs=runs,
        cache=cache,
        show_ids=show_ids,
        split_seed=split_seed,
        host=host,
        port=port,
        token=token,
        browse=browser,
        on_open=opened,
    )
    err.print("The explorer has stopped.")

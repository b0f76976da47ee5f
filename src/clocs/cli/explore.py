"""The command `clocs explore`."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clocs.cli.console import err, out
from clocs.cli.progress import bar
from clocs.explorer import run

if TYPE_CHECKING:
    from clocs.explorer.session import Session


def explore(
    checkpoint: Annotated[
        Path | None, typer.Option(help="Encoder: a file, or a folder (then its first seed).")
    ] = None,
    store: Annotated[
        list[Path] | None, typer.Option(help="Prepared recordings; may be repeated.")
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(help="File written by `clocs embed --level patient`; avoids encoding."),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(help="Classifier that predicts and explains what is shown; may be repeated."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder with trainings or a report to show.")
    ] = None,
    cohorts: Annotated[
        Path | None,
        typer.Option(help="Folder of saved groups; `cohorts` beside the first store by default."),
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
            help="Secret that visitors must present; 'new' generates one.", envvar="CLOCS_TOKEN"
        ),
    ] = "new",
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let every user of this machine in.")
    ] = False,
    show_ids: Annotated[
        bool, typer.Option("--show-ids", help="Show patients' own IDs instead of pseudonyms.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder for cached embeddings and maps.", envvar="CLOCS_CACHE"),
    ] = None,
    split_seed: Annotated[int, typer.Option(help="Random seed for the patient split.", min=0)] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address as JSON to standard output.")
    ] = False,
) -> None:
    """Browse patients on a local page: map, ECGs, nearest patients, and your own ECG among them.

    Listens on this machine only, unless --host is given, and lets in anyone who opens the address
    that it prints, which contains a token. Patients are shown under pseudonyms. Without arguments
    it shows the demo's simulated patients: those in the folder demo, where `clocs demo` has put
    them there.
    """
    stages = _Stages()

    def opened(url: str, session: Session) -> None:
        stages.close()
        for note in session.notes():
            err.print(note)
        if as_json:  # flushed, because the reader is waiting for this line
            facts = {"url": url, "patients": len(session.embeddings), "datasets": session.datasets}
            sys.stdout.write(json.dumps(facts) + "\n")
            sys.stdout.flush()
        else:
            out.print(f"The explorer is running at {url}  (press Ctrl-C to stop)", markup=False)

    with closing(stages):
        run.explore(
            *(store or ()),
            checkpoint=checkpoint,
            embeddings=embeddings,
            model=model or (),
            runs=runs,
            cohorts=cohorts,
            cache=cache,
            show_ids=show_ids,
            split_seed=split_seed,
            host=host,
            port=port,
            token=None if no_token else token,
            browse=browser,
            progress=stages,
            on_open=opened,
        )
    err.print("The explorer has stopped.")


class _Stages:
    """One progress bar per stage, or one line per stage if the output is not a terminal."""

    def __init__(self) -> None:
        self._bar, self._stage = ExitStack(), ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self.close()
            self._stage = stage
            if not err.is_terminal:
                err.print(f"{stage} …")
            self._show = self._bar.enter_context(bar(err, stage, ""))
        self._show(done, total)

    def close(self) -> None:
        self._bar.close()

"""The command `clocs prepare`, with the options that the datasets declare."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import typer

import clocs
from clocs.cli import progress
from clocs.cli.console import err, out, print_json
from clocs.cli.messages import in_options
from clocs.cli.options import FollowLinks, Json, with_options_of
from clocs.datasets.base import datasets
from clocs.formats.addresses import parse_path_or_url

EXAMPLE = "Example: clocs prepare chapman ~/Downloads/ECGDataDenoised.zip --out chapman"

_NAMES = ", ".join(datasets())
_WITHOUT_SOURCE = ", ".join(row.name for row in datasets().values() if not row.has_source)


def prepare(
    name: Annotated[str, typer.Argument(help=f"Name of the dataset: {_NAMES}.")],
    source: Annotated[
        Path | None,
        typer.Argument(
            help=f"Folder, zip as downloaded, or address (s3://…); none for {_WITHOUT_SOURCE}."
        ),
    ] = None,
    store: Annotated[Path, typer.Option("--out", help="Folder of the store.")] = Path("store"),
    workers: Annotated[
        int | None,
        typer.Option(help="Number of reading processes (default: one per core).", min=1),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(help="Make so many stores, by patient, that open as one.", min=1),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Make each shard on a Ray cluster: auto, or its HOST:PORT."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be read, and write no store.")
    ] = False,
    band_pass: Annotated[
        str | None,
        typer.Option(help="Band-pass filter: lowest and highest frequency in Hz, such as 0.5-40."),
    ] = None,
    notch: Annotated[
        int | None, typer.Option(help="Remove mains interference at 50 or 60 Hz.")
    ] = None,
    baseline: Annotated[
        bool,
        typer.Option("--baseline", help="Remove baseline wander."),
    ] = False,
    follow_links: FollowLinks = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Read a dataset, or a folder of your own files, into a store.

    After an interruption, run it again to resume. Recordings that cannot be used go to a quarantine
    list with their reason.
    """
    if dry_run:
        given = {"band_pass": band_pass, "notch": notch, "shards": shards, "ray": ray}
        words = [f"--{k.replace('_', '-')}={v}" for k, v in given.items() if v is not None]
        words += ["--baseline"] if baseline else []
        words += ["--follow-links"] if follow_links else []
        how = {"workers": workers, "follow_links": follow_links}
        _show(name, source, store, how, options, words, as_json=as_json)
        return
    with progress.bar(err, f"Preparing {name}", "recordings") as tick:
        made = clocs.prepare(
            name,
            source,
            out=store,
            workers=workers,
            progress=tick,
            band_pass=band_pass,
            notch=notch,
            baseline=baseline,
            shards=shards,
            ray=ray,
            follow_links=follow_links,
            **options,
        )
    from clocs.cli.info import store_facts
    from clocs.cli.tables.stores import store_tables

    facts = store_facts(made)
    if as_json:
        print_json(facts)
        return
    out.print(store_tables(facts))
    where = parse_path_or_url(store)
    out.print(f"\nThe store is {where}. Next: clocs pretrain {where} --method cmsc --out runs/cmsc")


def _show(
    name: str,
    source: Path | None,
    store: Path,
    how: Mapping[str, Any],
    options: Mapping[str, Any],
    more: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """What was understood, and the command that does it."""
    words = ["clocs", "prepare", name, *([str(parse_path_or_url(source))] if source else [])]
    words += ["--out", str(parse_path_or_url(store))]
    facts = clocs.preview(name, source, **how, **options)
    for option, value in options.items():
        words += [f"--{option.replace('_', '-')}", str(value)]
    facts["command"] = shlex.join([*words, *more])
    own = click.get_current_context().command
    facts["notices"] = [in_options(notice, own) for notice in facts["notices"]]
    for one in facts["problems"]:
        one["examples"] = [in_options(example, own) for example in one["examples"]]
    if as_json:
        print_json(facts)
        return
    from clocs.cli.tables.preview import preview_tables

    out.print(preview_tables(facts))
    out.print(f"Next: {facts['command']}", markup=False)


def command() -> Callable[..., None]:
    """`prepare` with the options of all datasets."""
    return with_options_of(
        datasets().values(),
        prepare,
        panel="Options of some datasets",
        own_panels={"folder": "Options of folder (docs/own-ecgs.md explains them)"},
    )

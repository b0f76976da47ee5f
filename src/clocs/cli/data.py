"""The commands `clocs data …`: where the named datasets are published, and downloading them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clocs.cli import progress
from clocs.cli.console import err, out, print_json
from clocs.cli.options import Json

if TYPE_CHECKING:
    from clocs.datasets.download import Publication

app = typer.Typer(
    name="data",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List published datasets, and download them.",
)


@app.command("list", epilog="Example: clocs data list --json")
def list_datasets(as_json: Json = False) -> None:
    """Show where each named dataset is published, its license, citation, version and size."""
    from clocs.cli.tables.publications import publication_table
    from clocs.datasets.download import PUBLICATIONS

    if as_json:
        print_json([_facts(one) for one in PUBLICATIONS.values()])
        return
    for one in PUBLICATIONS.values():
        out.print(publication_table(one, next_command=_next_command(one.name, _folder(one.name))))
        out.print()


@app.command(epilog="Example: clocs data download mitbih --out data/mitbih")
def download(
    name: Annotated[str, typer.Argument(help="Name of the dataset; see `clocs data list`.")],
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for its files (default: data/NAME).")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Address of a mirror: a folder with the same files."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="File, or folder with / at its end, of those published singly; repeatable."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be downloaded, and write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Download a published dataset and verify it; after an interruption, run it again to resume."""
    from clocs.datasets.download import fetch_all, plan_download

    target = folder or _folder(name)
    with err.status("Looking at what is published …"):
        plan = plan_download(name, out=target, url=url, only=only or ())
    if dry_run:
        facts = _facts(plan.publication) | {
            "out": str(target),
            "size": plan.size,
            "files": [asdict(file) for file in plan.files],
        }
        if as_json:
            print_json(facts)
        else:
            _show_plan(facts)
        return
    with progress.bar(err, f"Downloading {name}", plan.unit) as tick:
        done = fetch_all(plan, progress=tick)
    command = _next_command(name, target)
    if as_json:
        print_json(asdict(done) | {"folder": str(done.folder), "next": command})
        return
    words = f"{done.files:,} files are in {done.folder}, all verified; {done.fetched:,} are new"
    out.print(f"{words} ({done.received / 1e6:,.1f} MB).", markup=False)
    out.print(f"{_terms(plan.publication)} Please cite: {plan.publication.citation}", markup=False)
    out.print(f"Next: {command}", markup=False)


def _show_plan(facts: dict[str, Any]) -> None:
    files = facts["files"]
    for file in files[:10]:
        out.print(f"{file['name']}  from  {file['url']}", markup=False)
    if files[10:]:
        out.print(f"… and {len(files) - 10:,} more (--json lists all)")
    size = f", about {facts['size'] / 1e6:,.1f} MB" if facts["size"] else ""
    out.print(f"{len(files):,} files{size} would go into {facts['out']}.", markup=False)


def _facts(publication: Publication) -> dict[str, Any]:
    return asdict(publication) | {"next": f"clocs data download {publication.name}"}


def _terms(publication: Publication) -> str:
    if not publication.license:
        return "The publisher names no license: ask before you use or share the data."
    return f"License: {publication.license}."


def _folder(name: str) -> Path:
    return Path("data", name)


def _next_command(name: str, folder: Path) -> str:
    return f"clocs prepare {name} {folder} --out stores/{name}"

"""The command `clocs info`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clocs.cli import patients, terminal
from clocs.cli.options import (
    Json,
    Leads,
    SplitSeed,
    err,
    names_of,
    out,
    print_json,
)

EXAMPLE = "Example: clocs info chapman --json"


def info(
    path: Annotated[Path, typer.Argument(help="A store, a checkpoint or an index.")],
    leads: Leads = None,
    split_seed: SplitSeed = 0,
    verify: Annotated[bool, typer.Option("--verify", help="Read all and compare hashes.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is in a store, a checkpoint or an index."""
    from clocs.patients.search_folder import is_archive

    if is_archive(path):
        patients.index_info(path, verify, as_json)
        return
    if path.suffix == ".safetensors" or any(path.glob("seed-*.safetensors")):
        from clocs.training.checkpoint import load_checkpoints

        cards = [terminal.card_facts(c) for c in load_checkpoints(path)]
        if as_json:
            print_json(cards if path.is_dir() else cards[0])
        else:
            for card in cards:
                out.print(terminal.card_table(card))
        return
    from clocs.cli.info import format_info, store_info
    from clocs.store.store import open_store

    store = open_store(path)
    if verify:
        with terminal.bar(err, "Verifying", "recordings") as progress:
            store.verify(progress)
    facts = store_info(store, names_of(leads), split_seed) | ({"verified": True} if verify else {})
    if as_json:
        print_json(facts)
    else:
        out.print(format_info(facts))
        if verify:
            out.print("Verified: every recording is as it was prepared.")

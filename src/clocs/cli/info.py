"""The command `clocs info`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clocs.cli import progress
from clocs.cli.console import err, out, print_json
from clocs.cli.options import Json, Leads, SplitSeed, names_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clocs.store.store import Store

EXAMPLE = "Example: clocs info chapman --json"


def info(
    path: Annotated[
        Path,
        typer.Argument(help="A store, a checkpoint (file or folder), a classifier or an index."),
    ],
    leads: Leads = None,
    split_seed: SplitSeed = 0,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read everything and check it against its hashes.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="List every recording in quarantine.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what is in a store, a checkpoint, a classifier or an index."""
    from clocs.patients.index_folder import index_facts, is_index_folder
    from clocs.training.card import named_path

    path = named_path(path)
    facts: Any
    tables: list[RenderableType]
    if is_index_folder(path):
        from clocs.cli.tables.patients import index_table

        facts = index_facts(path, verify=verify)
        tables, verified = [index_table(facts)], "all vectors and rows match their hashes"
    elif path.suffix == ".safetensors" or any(path.glob("seed-*.safetensors")):
        from clocs.cli.tables.checkpoints import card_facts, card_table
        from clocs.models.classifier_card import is_classifier
        from clocs.training.checkpoint import load_checkpoints

        if is_classifier(path):
            _show_classifier(path, as_json=as_json)
            return
        cards = [card_facts(checkpoint) for checkpoint in load_checkpoints(path)]
        facts = cards if path.is_dir() else cards[0]
        tables, verified = [card_table(card) for card in cards], ""
    else:
        from clocs.cli.tables.stores import store_tables
        from clocs.store.store import open_store

        store = open_store(path)
        if verify:
            with progress.bar(err, "Verifying", "recordings") as tick:
                store.verify(tick)
        facts = store_facts(store, names_of(leads), split_seed)
        facts |= {"verified": True} if verify else {}
        tables, verified = (
            [store_tables(facts, verbose=verbose)],
            "every recording is as it was prepared",
        )
    if as_json:
        print_json(facts)
        return
    for table in tables:
        out.print(table)
    if verify and verified:
        out.print(f"Verified: {verified}.")


def _show_classifier(path: Path, *, as_json: bool) -> None:
    from clocs.cli.tables.classifiers import scores_table
    from clocs.models.classifier_card import read_classifier_card

    card = read_classifier_card(path)
    if as_json:
        print_json(card.to_dict())
        return
    out.print(scores_table(card, card.scores))
    out.print(f"All about it: clocs models {path}", markup=False)


def store_facts(
    store: Store, leads: Sequence[str] | None = None, split_seed: int = 0
) -> dict[str, Any]:
    """All that is counted in a store, with the instances of every method."""
    from clocs.files import folder_sizes
    from clocs.frames.summary import store_info
    from clocs.pretraining.methods import METHODS
    from clocs.store.manifest import VECTORS

    sizes = folder_sizes(store.path / VECTORS)
    vectors = {"folder": str(store.path / VECTORS), "kinds": len(sizes)}
    instances = {name: (method.of, method.views) for name, method in METHODS.items()}
    return store_info(store, leads, split_seed, instances) | {
        "vectors": vectors | {"bytes": sum(sizes.values())}
    }

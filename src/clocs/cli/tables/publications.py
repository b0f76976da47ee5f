"""Published datasets in the terminal."""

from __future__ import annotations

from rich.table import Table

from clocs.cli.tables import facts_table
from clocs.datasets.download import Publication


def publication_table(one: Publication, *, next_command: str) -> Table:
    """All that is known about a publication, and the commands that use it."""
    size = f"about {one.size / 1e6:,.1f} MB" if one.size else "of unknown size"
    facts = (
        ("title", one.title),
        ("published at", one.page),
        ("version", one.version),
        ("license", one.license or "none named by the publisher"),
        ("download", size),
        ("citation", one.citation),
        ("next", f"clocs data download {one.name}"),
        ("", next_command),
    )
    table = facts_table(one.name, facts)
    table.columns[1].overflow = "fold"
    return table

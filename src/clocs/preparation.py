"""prepare: a dataset becomes a store; in parallel, resumable, in bounded memory, without torch.

A crew reads (`crew`, `intake`), the calling thread puts together (`assembly`, `writer`), a journal
remembers (`parts`). Entries are taken in the order of the listing, so the store's content depends
neither on the workers nor on interruptions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from clocs.crew import start_crew
from clocs.datasets.base import Dataset

if TYPE_CHECKING:
    from clocs.store import Store


def prepare(
    dataset: Dataset,
    out: Path,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Store:
    """Read a whole dataset into a store.

    Interrupted at any moment, the same call continues where the last committed part ends. A
    complete store of the same source and settings is returned as it is; anything else in `out` is
    never overwritten.

    Args:
        dataset: What to read.
        out: The store's folder, made where it does not exist.
        workers: That read; by default one a core, at most 16.
        progress: Called with (entries done, entries in all).

    Raises:
        StoreError: `out` holds something else, or no recording at all is usable.
    """
    with closing(start_crew(dataset, workers)) as crew:
        from clocs.assembly import assemble  # imports polars, after which nobody may fork

        return assemble(dataset, Path(out), crew, progress)

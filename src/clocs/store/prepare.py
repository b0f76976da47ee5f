"""prepare: a dataset becomes a store; in parallel, resumable, in bounded memory, without torch.

Workers read (`workers`), the calling thread assembles the store (`assembly`, `writer`), and a
journal records progress (`journal`). Entries are taken in the order of the listing, so the store's
content depends neither on the workers nor on interruptions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs.datasets.base import Dataset
from clocs.datasets.table import open_dataset
from clocs.store.workers import start_workers

if TYPE_CHECKING:
    from clocs.store.store import Store


def prepare(
    name: str,
    source: Path | str | None = None,
    *,
    out: Path | str,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Store:
    """Read a dataset's published files into a store.

    Args:
        name: One of `clocs.datasets.table.DATASETS`: 'chapman', 'synthetic' …
        source: A folder or the zip as downloaded; None for 'synthetic'.
        out: The store's folder.
        workers: Number of reading processes; one per core by default.
        progress: Called with (recordings done, recordings in total).
        options: The dataset's own: `reference="v3"` for physionet2017; `patients`, `seed`,
            `recordings`, `seconds`, `rate` for synthetic.
    """
    return prepare_dataset(
        open_dataset(name, source, **options), Path(out), workers=workers, progress=progress
    )


def prepare_dataset(
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
        workers: Number of reading processes; by default one per core, at most 16.
        progress: Called with (entries done, entries in total).

    Raises:
        StoreError: `out` holds something else, or no recording at all is usable.
    """
    with closing(start_workers(dataset, workers)) as readers:
        from clocs.store.assembly import assemble  # imports polars, after which nobody may fork

        return assemble(dataset, Path(out), readers, progress)

"""prepare: a dataset becomes a store; in parallel, resumable, in bounded memory, without torch.

Workers read (`workers`), the calling thread assembles the store (`assembly`), and a journal records
progress (`journal`). Entries are taken in the order of the listing, so the store's
content depends neither on the workers nor on interruptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs.datasets.base import Dataset
from clocs.datasets.pseudonyms import KEY, Pseudonyms, folder_of, key_of, remove_unused
from clocs.datasets.table import open_dataset
from clocs.errors import SettingError, StoreError
from clocs.formats.addresses import Address, parse_path_or_url
from clocs.recording import Filters
from clocs.store.fetch import work_folder
from clocs.store.manifest import MANIFEST, shards_in
from clocs.store.workers import Workers, start_workers

if TYPE_CHECKING:
    from clocs.store.store import Store

MAX_SHARDS = 9999


def prepare(
    name: str | Dataset,
    source: Path | str | None = None,
    *,
    out: Path | str,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    filters: Filters | None = None,
    shards: int | None = None,
    ray: str | None = None,
    follow_links: bool = False,
    **options: Any,
) -> Store:
    """Read a dataset's published files, or a folder of one's own, into a store.

    Args:
        name: One of `clocs.datasets.table.DATASETS`: 'chapman', 'synthetic' …; or a dataset of
            your own, an object (docs/own-datasets.md).
        source: A folder or the zip as downloaded, or its address, such as 's3://bucket/folder'
            (docs/archives.md); None for 'synthetic'.
        out: The store's folder, made where it does not exist. Or an address to upload it to.
        workers: Number of reading processes; by default one per core, at most 16.
        progress: Called with (recordings done, recordings in total).
        filters: What to filter recordings by, in training and wherever the encoder is used; the
            store keeps the samples as they are.
        shards: Make as many stores, each with its share of the patients, that are joined and open
            as one (docs/archives.md).
        ray: Make each shard on a Ray cluster: its HOST:PORT, or 'auto' for the one of this machine.
            All nodes must see the source and `out` under the same paths. A task has one reading
            process, or `workers`.
        follow_links: Read also what links in the folder lead to outside of it.
        options: The dataset's own: `reference="v3"` for physionet2017; `patient`, `labels` and
            others for folder (docs/own-ecgs.md); `patients`, `seed`, `recordings`, `seconds`,
            `rate` for synthetic.
    """
    place = parse_path_or_url(out)
    if source is not None:
        _refuse_inside(place, parse_path_or_url(source))
    if isinstance(name, str):
        dataset = open_dataset(name, source, follow_links=follow_links, **options)
    elif source is None and not options:
        dataset = name
    else:
        given = ", ".join(f"`{one}`" for one in (*["source"][: source is not None], *options))
        raise SettingError(f"a dataset of your own has its source and options; leave out {given}")
    return prepare_dataset(
        dataset,
        place,
        workers=workers,
        progress=progress,
        filters=filters,
        shards=shards,
        ray=ray,
    )


def _refuse_inside(out: Path | Address, source: Path | Address) -> None:
    """A store among the files that are read would itself be read the next time."""
    if isinstance(out, Address):
        inside = isinstance(source, Address) and bool((out / "manifest.json").inside(source))
    else:
        folder = source.resolve() if isinstance(source, Path) else None
        inside = folder is not None and folder.is_dir() and out.resolve().is_relative_to(folder)
    if inside:
        raise SettingError(
            f"`out` is {out}, which lies in the source {source}; give a folder outside of it"
        )


def prepare_dataset(
    dataset: Dataset,
    out: Path | Address,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    filters: Filters | None = None,
    shards: int | None = None,
    ray: str | None = None,
) -> Store:
    """Read a whole dataset into a store.

    Interrupted at any moment, the same call continues after the last commit. A
    complete store of the same source and settings is returned as it is; anything else in `out` is
    never overwritten. The other arguments are those of `prepare`.

    Raises:
        StoreError: `out` holds something else, or no recording at all is usable.
    """
    if ray is not None and shards is None:
        raise SettingError("`ray` makes one shard per task; say with `shards` how many")
    if shards is not None and not 1 <= shards <= MAX_SHARDS:
        raise SettingError(f"`shards` is {shards}; give a number from 1 to {MAX_SHARDS:,}")
    with ExitStack() as opened:
        dataset = opened.enter_context(_with_pseudonyms(dataset, out))
        local = workers if ray is None else None  # to list, and perhaps to read who is who
        readers = opened.enter_context(closing(start_workers(dataset, local)))
        # What is imported from here on has threads, after which nobody may fork.
        filters = filters or Filters()

        def make_in(out: Path, readers: Workers) -> Store:
            if shards is None:
                from clocs.store.assembly import assemble

                return assemble(dataset, out, readers, progress, filters)
            from clocs.store.shards import one_after_another, prepare_shards

            if ray is None:
                make = one_after_another(dataset, readers, progress, filters)
            else:
                from clocs.ray_cluster import connect
                from clocs.store.ray_shards import on_cluster

                opened.enter_context(connect(ray))
                make = on_cluster(dataset, workers, progress, filters)
            return prepare_shards(dataset, out, shards, readers, make, filters)

        if isinstance(out, Address):
            from clocs.store.prepare_at import make_at

            return make_at(dataset, out, readers, make_in, filters)
        return make_in(out, readers)


@contextmanager
def _with_pseudonyms(dataset: Dataset, out: Path | Address) -> Iterator[Dataset]:
    """The dataset with the key of its patients' pseudonyms, which is made before workers start.

    Raises:
        StoreError: The key of an unfinished store is missing.
    """
    if not getattr(dataset, "is_pseudonymous", False):
        yield dataset
        return
    store = work_folder(out) if isinstance(out, Address) else out
    folder = folder_of(store)
    unfinished = (store / "progress.json").is_file() or bool(shards_in(store))
    if (folder / KEY).is_file() or not (unfinished or (store / MANIFEST).is_file()):
        made = Pseudonyms(key_of(folder), folder)
    elif (store / MANIFEST).is_file():
        made = Pseudonyms()  # the store is complete and needs no key
    else:
        raise StoreError(
            f"{store} is unfinished, and the key of its pseudonyms, {folder / KEY}, is missing; "
            "put it back, or delete the store and prepare it again"
        )
    owner: Any = dataset
    try:
        yield replace(owner, pseudonyms=made)
    finally:
        if (store / MANIFEST).is_file() or not store.exists():
            remove_unused(folder)

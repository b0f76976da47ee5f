"""prepare to an address: a store is made in the cache folder, then uploaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from clocs.datasets.base import Dataset, Entry, Listing
from clocs.errors import ClocsWarning, StoreError
from clocs.formats.addresses import Address
from clocs.recording import Filters
from clocs.store.assembly import differences
from clocs.store.fetch import keep_as_copy, work_folder
from clocs.store.store import Store, open_store
from clocs.store.upload import manifest_at, upload
from clocs.store.workers import ReadResult, Workers


class _ThereError(Exception):
    """The store to be made is there already."""


class _Comparing:
    """Workers that hand out the listing only after it was compared."""

    def __init__(self, workers: Workers, compare: Callable[[Listing], None]) -> None:
        self._workers, self._compare = workers, compare
        self.most = workers.most

    def list(self) -> Listing:
        listing = self._workers.list()
        self._compare(listing)
        return listing

    def submit(self, entries: Sequence[Entry]) -> None:
        self._workers.submit(entries)

    def take(self) -> Sequence[ReadResult]:
        return self._workers.take()

    def close(self) -> None:
        self._workers.close()


def make_at(
    dataset: Dataset,
    address: Address,
    workers: Workers,
    make: Callable[[Path, Workers], Store],
    filters: Filters,
) -> Store:
    """Make a store in a folder named by the address, so that it resumes, and upload it.

    Args:
        dataset: To be read.
        address: Of the store.
        workers: That read.
        make: Makes a store in a folder.
        filters: Of the store.

    Raises:
        StoreError: Something else is at the address.
    """
    there = manifest_at(address)
    work = work_folder(address)

    def compare(listing: Listing) -> None:
        if there is None:
            return
        if different := differences(there, dataset, listing.fingerprint, filters):
            raise StoreError(
                f"{address} is already a complete store of something else (another {different}); "
                "delete it or give another address as `out`"
            )
        raise _ThereError

    try:
        made = make(work, _Comparing(workers, compare))
    except _ThereError:
        return open_store(address)
    warnings.warn(f"{made.bytes / 1e6:,.1f} MB go to {address}", ClocsWarning, stacklevel=2)
    upload(work, address)
    keep_as_copy(work)
    return open_store(address)

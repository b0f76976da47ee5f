"""The table of datasets: every module of this package that declares a `DatasetRow`."""

from __future__ import annotations

import os

from clocs.datasets.base import Dataset, DatasetRow
from clocs.errors import SettingError
from clocs.formats.source import open_source
from clocs.registry import chosen_options, rows_in

# Other modules of this package may not import from this one at the top, which imports all of them.
DATASETS = rows_in("clocs.datasets", DatasetRow)


def open_dataset(
    name: str,
    source_path: str | os.PathLike[str] | None = None,
    *,
    follow_links: bool = False,
    **options: object,
) -> Dataset:
    """Open a dataset by its name.

    Args:
        name: One of `DATASETS`.
        source_path: A folder or zip; None for a dataset without files.
        follow_links: Read also what links in the folder lead to outside of it.
        options: The dataset's own, such as `reference="v3"` for physionet2017.

    Raises:
        SettingError: No such dataset or option, or a source that is missing or not needed.
        SourceError: The source cannot be opened.
    """
    row = DATASETS.get(name)
    if row is None:
        raise SettingError(f"there is no dataset {name!r}; use one of {', '.join(DATASETS)}")
    if not row.has_source:
        if source_path is not None:
            raise SettingError(f"{name} has no source; leave out {source_path}")
        return row.open(**chosen_options(row, options))
    if source_path is None:
        raise SettingError(f"{name} needs a source: its folder, or its zip as downloaded")
    chosen_options(row, options)  # refused before the source is listed
    source = open_source(source_path, follow_links=follow_links)
    return row.open(source, **chosen_options(row, {**row.saved_options(source), **options}))

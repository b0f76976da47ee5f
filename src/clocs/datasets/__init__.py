"""A dataset each; `open_dataset` opens one by name. Knows nothing about stores or learning."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from clocs.datasets.base import Dataset
from clocs.datasets.cardiology import Cardiology
from clocs.datasets.chapman import Chapman
from clocs.datasets.physionet2017 import PhysioNet2017
from clocs.datasets.physionet2020 import PhysioNet2020
from clocs.errors import SettingError
from clocs.formats.source import open_source

if TYPE_CHECKING:
    from clocs.datasets.synthetic import Synthetic

__all__ = ["DATASETS", "Cardiology", "Chapman", "PhysioNet2017", "PhysioNet2020", "open_dataset"]


def _synthetic(**options: int) -> Synthetic:
    from clocs.datasets.synthetic import Synthetic

    return Synthetic(**options)


DATASETS: Mapping[str, Callable[..., Dataset]] = {
    "chapman": Chapman,
    "physionet2020": PhysioNet2020,
    "physionet2017": PhysioNet2017,
    "cardiology": Cardiology,
    "synthetic": _synthetic,  # the one without a source
}


def open_dataset(
    name: str, source_path: str | os.PathLike[str] | None = None, **options: object
) -> Dataset:
    """Open a dataset by its name.

    Args:
        name: One of `DATASETS`.
        source_path: A folder or zip; None for a synthetic dataset.
        options: The dataset's own, such as `reference="v3"` for physionet2017.

    Raises:
        SettingError: No such dataset or option, or a source too few or too many.
        SourceError: The source cannot be opened.
    """
    factory = DATASETS.get(name)
    if factory is None:
        raise SettingError(f"there is no dataset {name!r}; use one of {', '.join(DATASETS)}")
    sourced = name != "synthetic"
    if sourced and source_path is None:
        raise SettingError(f"{name} needs a source: its folder or its zip as downloaded")
    if not sourced and source_path is not None:
        raise SettingError(f"{name} has no source; leave {source_path} out")
    known = _options(name)
    unknown = sorted(options.keys() - known)
    if unknown:
        offer = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise SettingError(f"{name} has no option {', '.join(unknown)}; {offer}")
    return factory(*([open_source(source_path)] if source_path is not None else []), **options)


def _options(name: str) -> set[str]:
    factory: Callable[..., Dataset] = DATASETS[name]
    if factory is _synthetic:
        from clocs.datasets.synthetic import Synthetic

        factory = Synthetic
    return set(inspect.signature(factory).parameters) - {"source"}

"""What the verbs are given -> what they work with: paths are opened, a device's name is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clocs.errors import SettingError

if TYPE_CHECKING:  # torch takes a second to import, and `prepare` has no use for it
    import torch

    from clocs.checkpoint import Checkpoint
    from clocs.store import Store


def opened(store: Store | Path | str) -> Store:
    """The store, opened where it is a path."""
    from clocs.store import Store, open_store

    return store if isinstance(store, Store) else open_store(store)


def loaded(checkpoint: Checkpoint | Path | str) -> Checkpoint:
    """The checkpoint, loaded where it is a path; of a folder the first seed."""
    from clocs.checkpoint import Checkpoint, load_checkpoint

    return checkpoint if isinstance(checkpoint, Checkpoint) else load_checkpoint(checkpoint)


def all_loaded(given: Checkpoint | Sequence[Checkpoint] | Path | str) -> Sequence[Checkpoint]:
    """All seeds of a method: those of a folder, or what is given."""
    from clocs.checkpoint import Checkpoint, load_checkpoints

    if isinstance(given, Path | str):
        return load_checkpoints(given)
    return [given] if isinstance(given, Checkpoint) else given


def pick_device(name: str | None) -> torch.device:
    """The device of that name, or the best at hand."""
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingError(
            f"the device {name!r} cannot be used here ({str(error).splitlines()[0]}); "
            "try --device cpu"
        ) from error
    return device

"""Picking the device to compute on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clocs.errors import SettingError

if TYPE_CHECKING:  # torch takes a second to import
    import torch


def pick_device(name: str | None) -> torch.device:
    """The device of that name, or the best available."""
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingError(
            f"the device {name!r} cannot be used here ({str(error).splitlines()[0]}); "
            "give 'cpu' as `device`"
        ) from error
    return device

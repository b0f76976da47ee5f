"""Picking the device to compute on."""

from __future__ import annotations

import torch

from clocs.errors import SettingError


def pick_device(name: str | None) -> torch.device:
    """The device of that name, or the best at hand."""
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

"""Encoders by name. `ENCODERS["mine"] = MyModule` adds one; so does a file in this folder."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from clocs.encoders.base import Encoder, EncoderRow
from clocs.encoders.module_encoder import as_encoder
from clocs.errors import SettingError
from clocs.registry import rows_in

ENCODERS: dict[str, Callable[..., Encoder | nn.Module]] = {
    row.name: row.make for row in rows_in("clocs.encoders", EncoderRow).values()
}


def make_encoder(name: str, *, embedding_dim: int, samples: int, dropout: float = 0.1) -> Encoder:
    """An encoder by its name."""
    if name not in ENCODERS:
        raise SettingError(f"there is no encoder {name!r}; choose one of {', '.join(ENCODERS)}")
    if embedding_dim < 1:
        raise SettingError(f"`embedding_dim` must be at least 1, not {embedding_dim}")
    return as_encoder(
        name, ENCODERS[name], embedding_dim=embedding_dim, samples=samples, dropout=dropout
    )

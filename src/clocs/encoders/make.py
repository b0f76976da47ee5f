"""Encoders by name. `ENCODERS["mine"] = MyModule` adds one; so does a file in this folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from clocs.encoders.base import Encoder, EncoderRow
from clocs.encoders.module_encoder import as_encoder
from clocs.errors import SettingError
from clocs.registry import rows_in

ENCODERS: dict[str, Callable[..., Encoder | nn.Module]] = {
    row.name: row.make for row in rows_in("clocs.encoders", EncoderRow).values()
}


def sees_many_leads(name: str) -> bool:
    """Whether the encoder of that name sees many leads at once."""
    return bool(getattr(ENCODERS.get(name), "many_leads", False))


def usual_dimension(name: str) -> int:
    """The dimension of the embeddings of the encoder of that name where none is chosen."""
    own = getattr(ENCODERS.get(name), "embedding_dim", None)
    return own if isinstance(own, int) else Encoder.embedding_dim


def usual_dropout(name: str) -> float:
    """The dropout of the encoder of that name where none is chosen."""
    own = getattr(ENCODERS.get(name), "dropout", None)
    return own if isinstance(own, float) else Encoder.dropout


def make_encoder(
    name: str,
    *,
    embedding_dim: int,
    samples: int,
    dropout: float = 0.1,
    leads: Sequence[str] = (),
) -> Encoder:
    """An encoder by its name; `leads` are for one that sees many at once, which needs some."""
    if name not in ENCODERS:
        raise SettingError(f"there is no encoder {name!r}; choose one of {', '.join(ENCODERS)}")
    if embedding_dim < 1:
        raise SettingError(f"`embedding_dim` must be at least 1, not {embedding_dim}")
    if sees_many_leads(name) != bool(leads):
        raise SettingError(
            f"the encoder {name!r} sees one lead at a time and takes no `leads`"
            if leads
            else f"the encoder {name!r} sees many leads at once; name them with `leads`"
        )
    more = {"leads": tuple(leads)} if leads else {}
    return as_encoder(
        name, ENCODERS[name], embedding_dim=embedding_dim, samples=samples, dropout=dropout, **more
    )

"""Encoders by name. `ENCODERS["mine"] = MyModule` adds one; so does a file in this folder.

Any `torch.nn.Module` can be an encoder, with one forward pass per member by that member's weights.
It is slower than an encoder written for many members, but there is nothing to write: the module
maps (batch, 1, samples) to (batch, embedding_dim); of many leads, it maps (batch, leads, samples)
and a mask of those that are present, (batch, leads). It is initialized and drops out by torch's own
generator, seeded from the member's key, so that runs are repeatable and a member does not depend on
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from threading import RLock
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from clocs.encoders.base import Encoder, EncoderRow, Weights
from clocs.errors import ClocsError, SettingError, find_row
from clocs.registry import rows_in

ENCODERS: dict[str, Callable[..., Encoder | nn.Module]] = {
    row.name: row.make for row in rows_in("clocs.encoders", EncoderRow).values()
}
PREFIX = "module."  # keeps a module's names apart from those of heads and target networks
# the generators are torch's own, and a module holds one member's weights at a time
_ONE_AT_A_TIME = RLock()


def is_multilead(name: str) -> bool:
    """Whether the encoder of that name sees many leads at once."""
    return bool(getattr(ENCODERS.get(name), "multilead", False))


def takes_mv(name: str) -> bool:
    """Whether frames for the encoder of that name must be in mV."""
    return bool(getattr(ENCODERS.get(name), "in_mv", False))


def or_default(given: Any, name: str, what: Literal["embedding_dim", "dropout"]) -> Any:
    """What was chosen; where that is None, what the encoder of that name usually has."""
    own = getattr(ENCODERS.get(name), what, None) if given is None else given
    return own if isinstance(own, int | float) else getattr(Encoder, what)


def make_encoder(
    name: str,
    *,
    embedding_dim: int,
    samples: int,
    dropout: float = 0.1,
    leads: Sequence[str] = (),
) -> Encoder:
    """An encoder by its name; `leads` are for one that sees many at once, which needs some."""
    make = find_row(ENCODERS, name, "encoder")
    if embedding_dim < 1:
        raise SettingError(f"`embedding_dim` must be at least 1, not {embedding_dim}")
    if is_multilead(name) != bool(leads):
        raise SettingError(
            f"the encoder {name!r} sees one lead at a time and takes no `leads`"
            if leads
            else f"the encoder {name!r} sees many leads at once; name them with `leads`"
        )
    more = {"leads": tuple(leads)} if leads else {}
    return as_encoder(
        name, make, embedding_dim=embedding_dim, samples=samples, dropout=dropout, **more
    )


@dataclass(frozen=True)
class ModuleEncoder(Encoder):
    """A fleet of modules of one kind.

    Trainable parameters are weights; other parameters and floating-point buffers are buffers, and
    start the same for every member. Integer buffers are constants.

    Attributes:
        make_module: Called with `embedding_dim`, `samples` and `dropout` by keyword.
        module: The network that is called with the weights of each member.
    """

    capturable: ClassVar[bool] = False  # seeding waits for the host

    make_module: Callable[..., Any] = nn.Identity
    module: nn.Module = field(default_factory=nn.Identity, repr=False, compare=False)

    def __post_init__(self) -> None:
        shape = (2, len(self.leads) or 1, self.samples)
        given = [torch.zeros(shape)]
        if self.leads:
            given.append(torch.ones(shape[:2], dtype=torch.bool))
        try:
            with torch.no_grad():
                found = self.module.eval()(*given).shape
        except Exception as error:
            raise failed(self.name, self.samples, error) from error
        if found != (2, self.embedding_dim):
            raise SettingError(
                f"the encoder {self.name!r} turns a batch of {shape} into {tuple(found)}, not "
                f"{(2, self.embedding_dim)}; its module must map (batch, leads, samples) to "
                "(batch, embedding_dim)"
            )

    def parameters(self, keys: Tensor) -> Weights:
        """As the module initializes itself, seeded by each member's key; keys: (members,)."""
        if not len(keys):
            own = _weights(self.module).items()
            return {name: torch.empty(0, *p.shape, dtype=p.dtype) for name, p in own}
        members = [_weights(self._made(key)) for key in keys.tolist()]
        return {name: torch.stack([own[name] for own in members]) for name in members[0]}

    def buffers(self, members: int) -> Weights:
        return {
            name: tensor.cpu().expand(members, *tensor.shape).clone()
            for name, tensor in self._initial_buffers.items()
        }

    def encode(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        with _ONE_AT_A_TIME:
            self.module.to(x.device).eval()
            return torch.stack(
                [self._forward(_member(weights | buffers, i), own) for i, own in enumerate(x)]
            )

    def encode_training(
        self, weights: Weights, buffers: Weights, x: Tensor, keys: Tensor, momentum: float = 0.1
    ) -> tuple[Tensor, Weights]:
        z, after = [], []
        with _ONE_AT_A_TIME:
            self.module.to(x.device).train()
            for layer in self.module.modules():
                if isinstance(layer, _NormBase):
                    layer.momentum = momentum
            for i, key in enumerate(keys.tolist()):
                state = _member(weights, i) | {
                    name: tensor.clone() for name, tensor in _member(buffers, i).items()
                }
                with _seeded(key, x.device):
                    z.append(self._forward(state, x[i]))  # buffers change in `state`
                after.append(state)
        updated = {
            name: torch.stack([state[name.removeprefix(PREFIX)].detach() for state in after])
            for name in buffers
            if name.startswith(PREFIX)
        }
        return torch.stack(z), updated

    def to_module(self, weights: Weights, buffers: Weights) -> nn.Module:
        module = self._made(0)
        state = {k: v.detach().clone() for k, v in _member(weights | buffers, 0).items()}
        module.load_state_dict(state, strict=False, assign=True)  # but for constants
        return _WithMask(module) if self.leads else module

    def _forward(self, state: dict[str, Tensor], x: Tensor) -> Tensor:
        """x: (n, samples) or (n, leads, samples) -> (n, embedding_dim), by one member's state."""
        dtype = next((t.dtype for t in state.values()), x.dtype)
        x = x.to(dtype)
        given = (x.nan_to_num(), ~x[..., 0].isnan()) if self.leads else (x[:, None],)
        z: Tensor = functional_call(self.module, state, given)
        return z.to(dtype)

    def _made(self, key: int) -> nn.Module:
        with _seeded(key):
            module: nn.Module = self.make_module(
                embedding_dim=self.embedding_dim,
                samples=self.samples,
                dropout=self.dropout,
                **({"leads": self.leads} if self.leads else {}),
            )
        return module

    @cached_property
    def _initial_buffers(self) -> Weights:
        module, trained = self.module, _weights(self.module)
        named = {PREFIX + n: t for n, t in (*module.named_parameters(), *module.named_buffers())}
        return {
            name: tensor.detach().clone()
            for name, tensor in named.items()
            if name not in trained and tensor.is_floating_point()
        }


class _WithMask(nn.Module):
    """A module of many leads that is told by nan which ones are missing."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, leads, samples) -> (n, embedding_dim)."""
        missing = x.isnan()
        z: Tensor = self.module(x.masked_fill(missing, 0), ~missing[..., 0])
        return z


@lru_cache(maxsize=8)
def as_encoder(name: str, make: Callable[..., Encoder | nn.Module], **arguments: Any) -> Encoder:
    """What `make` makes of these arguments, as an encoder."""
    try:
        with _seeded(0):
            made = make(**arguments)
    except ClocsError:
        raise
    except Exception as error:
        raise failed(name, arguments["samples"], error) from error
    if isinstance(made, Encoder):
        return made
    return ModuleEncoder(**arguments, name=name, make_module=make, module=made)


def failed(name: str, samples: int, error: Exception) -> SettingError:
    """What is said of an encoder that fails."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return SettingError(f"the encoder {name!r} fails on frames of {samples} samples ({reason})")


def _weights(module: nn.Module) -> Weights:
    return {PREFIX + n: p.detach() for n, p in module.named_parameters() if p.requires_grad}


def _member(tensors: Weights, member: int) -> dict[str, Tensor]:
    """A member's own tensors, by the module's names for them."""
    return {
        name.removeprefix(PREFIX): tensor[member]
        for name, tensor in tensors.items()
        if name.startswith(PREFIX)
    }


@contextmanager
def _seeded(key: int, device: torch.device | None = None) -> Iterator[None]:
    """Torch's generators seeded by a key, and as they were before afterwards."""
    gpus = [device] if device is not None and device.type == "cuda" else []
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(key)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(key)
        yield

"""A batch that several processes compute together: what they gather and sum, and its gradient.

Each process computes some rows of the batch and a part of the loss; the parts add up to the loss of
one process that has all rows. So whatever was gathered or summed gets the gradients of all parts:
its backward is a sum over processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from clocs.errors import LostProcessError
from clocs.kernels import keyed_random
from clocs.kernels.gpu import streams

# the share of the batch at hand, and how many views of each of its rows there are
_SHARED: ContextVar[tuple[Share, int] | None] = ContextVar("shared", default=None)


@dataclass(frozen=True)
class Share:
    """The rows of a batch that this process computes."""

    rank: int  # the number of this process
    counts: tuple[int, ...]  # rows of each process
    places: Tensor  # (own,) of its rows in the batch
    order: Tensor  # (batch,) where the rows of the batch are in what all have gathered

    @classmethod
    def from_owners(cls, owners: Tensor, rank: int, world: int) -> Share:
        """owners: (batch,) on the host, the number of the process that has each row."""
        sizes = torch.bincount(owners, minlength=world)
        longest = int(sizes.max())
        grouped = owners.argsort(stable=True)  # the rows of process 0, those of 1, …
        own = torch.arange(len(owners)) - (sizes.cumsum(0) - sizes)[owners[grouped]]
        order = torch.empty_like(grouped)
        order[grouped] = owners[grouped] * longest + own
        places = grouped[owners[grouped] == rank]
        return cls(rank, tuple(sizes.tolist()), places, order)

    def to(self, device: torch.device) -> Share:
        """The same with its tensors there."""
        return replace(self, places=self.places.to(device), order=self.order.to(device))

    @property
    def batch(self) -> int:
        """Rows of the whole batch."""
        return sum(self.counts)

    @property
    def world(self) -> int:
        """How many processes there are."""
        return len(self.counts)

    def all_gather(self, z: Tensor) -> Tensor:
        """z: (members, views, own, dim) of this process -> (members, views, batch, dim) of all."""
        longest = max(self.counts)
        padded = torch.nn.functional.pad(z, (0, 0, 0, longest - z.shape[2]))
        every = gathered(padded).permute(1, 2, 0, 3, 4).flatten(2, 3)
        return every.index_select(2, self.order)


@contextmanager
def sharing(share: Share, views: int) -> Iterator[None]:
    """Compute so many views of the rows of a share: first the first view of all, then the second.

    In this `with`, statistics are those of the rows of all processes, and random numbers those that
    one process would draw for these rows.
    """
    before = _SHARED.set((share, views))
    first = torch.arange(views, device=share.places.device)[:, None] * share.batch
    try:
        with keyed_random.of_rows((first + share.places).flatten()):
            yield
    finally:
        _SHARED.reset(before)


def sharing_one_view() -> AbstractContextManager[None]:
    """The same for one view, where this is within `sharing`."""
    shared = _SHARED.get()
    return nullcontext() if shared is None else sharing(shared[0], 1)


def is_shared() -> bool:
    """Whether this is within `sharing`."""
    return _SHARED.get() is not None


def rows_of_all(own: int) -> int:
    """The rows that all processes have together, where this one has `own`."""
    shared = _SHARED.get()
    return own if shared is None else shared[0].batch * shared[1]


def run_concurrently(
    like: Tensor, one: Callable[[], Tensor], other: Callable[[], Tensor]
) -> tuple[Tensor, Tensor]:
    """Both results; on a GPU, where `like` is, `one` is computed while `other` is.

    `one` must not change or free what `other` reads. Each keeps the order of its own parts: the
    results are the same as one after the other, also in a captured graph.
    """
    if not like.is_cuda or is_shared():  # what processes exchange keeps its order
        return one(), other()
    now, side = torch.cuda.current_stream(), streams.get("concurrent")
    side.wait_stream(now)
    with torch.cuda.stream(side):
        first = one()
    second = other()
    now.wait_stream(side)
    first.record_stream(now)
    return first, second


def gathered(x: Tensor) -> Tensor:
    """x: of the same shape in all processes -> (processes, *shape)."""
    function: Callable[[Tensor], Tensor] = _Gathered.apply
    return function(x)


def summed(x: Tensor) -> Tensor:
    """The sum over all processes; without a gradient."""
    total = x.detach().clone(memory_format=torch.contiguous_format)
    with talking():
        dist.all_reduce(total)
    return total


def moments(y: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and (biased) variance over these dimensions and all processes, and how many there are.

    Every process sends its count, its sum and its squares around its own mean, so that nothing is
    lost by subtracting large numbers from one another.
    """
    y = y.to(torch.promote_types(y.dtype, torch.float32))
    count = math.prod(y.shape[dim] for dim in dims)
    total = y.sum(dim=list(dims), keepdim=True)
    squares = (y - total / max(count, 1)).square().sum(dim=list(dims))
    total = total.view(squares.shape)
    every = gathered(torch.stack([total, squares, torch.full_like(total, count)]))
    totals, squares, counts = every.unbind(1)
    number = counts.sum(dim=0)
    mean = totals.sum(dim=0) / number
    apart = totals / counts.clamp(min=1) - mean
    return mean, (squares + counts * apart.square()).sum(dim=0) / number, number


@contextmanager
def talking() -> Iterator[None]:
    """Turn what is raised where another process does not answer into one sentence."""
    try:
        yield
    except RuntimeError as error:  # of gloo and of NCCL alike
        line = (str(error).splitlines() or [type(error).__name__])[0]
        reason = line.split("] ", 1)[-1].split(". ", 1)[0]  # without the place in its source
        raise LostProcessError(
            f"another process of this training has ended or does not answer ({reason}); run the "
            "same command with `resume` to continue, with any number of processes"
        ) from error


class _Gathered(torch.autograd.Function):
    """All processes' x one after another; the gradient is what all of them found for mine."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        every = x.new_empty(dist.get_world_size(), *x.shape)
        with talking():
            dist.all_gather(list(every), x.contiguous())
        return every

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return summed(gradients[0])[dist.get_rank()]

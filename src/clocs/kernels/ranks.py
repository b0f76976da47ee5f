"""One training in several processes, as torchrun starts them: a rank is the number of one of them.

With at least as many members as processes, each process trains some of the members. With fewer, all
train every member together: each computes some rows of every batch and a part of the loss; the
parts add up to the loss of one process that has all rows. So whatever was gathered or summed gets
the gradients of all parts: its backward is a sum over processes. Process 0 alone writes files and
talks to the user.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from clocs.errors import ClocsError, LostProcessError
from clocs.kernels import keyed_random
from clocs.kernels.gpu import streams

TIMEOUT = timedelta(minutes=30)  # without an answer, as where a machine is lost without a word
_STORES: list[Any] = []  # of the processes that this one has joined


@dataclass(frozen=True)
class Ranks:
    """The processes of a training, and which one this is."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def share(self, members: int) -> bool:
        """Whether all processes train every one of so many members together."""
        return members < self.size

    def divided(self, count: int) -> list[range]:
        """Which of so many members, or rows of a batch, each process has."""
        bounds = [rank * count // self.size for rank in range(self.size + 1)]
        return [range(*bounds[rank : rank + 2]) for rank in range(self.size)]

    def put(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        """Overwrite these tensors by those that another process has."""
        for tensor in tensors if self.size > 1 else ():
            there = tensor.contiguous()
            with talking():
                dist.broadcast(
                    there.view(torch.uint8) if there.dtype == torch.bool else there, source
                )
            tensor.copy_(there)

    def agreed(self, value: bool) -> bool:
        """What process 0 says."""
        said = torch.tensor([int(value)])
        self.put([said])
        return bool(said)


ALONE = Ranks()


@dataclass(frozen=True)
class Share:
    """The rows of a batch that this process computes: some that follow one another."""

    ranks: Ranks
    batch: int  # rows of the whole batch

    @property
    def rows(self) -> slice:
        """Those of this process."""
        own = self.ranks.divided(self.batch)[self.ranks.rank]
        return slice(own.start, own.stop)

    def all_gather(self, z: Tensor) -> Tensor:
        """z: (members, views, own, dim) of this process -> (members, views, batch, dim) of all."""
        sizes = [len(rows) for rows in self.ranks.divided(self.batch)]
        padded = torch.nn.functional.pad(z, (0, 0, 0, max(sizes) - z.shape[2]))
        every = zip(gathered(padded), sizes, strict=True)
        return torch.cat([theirs[:, :, :size] for theirs, size in every], dim=2)


# the share of the batch at hand, how many views of each of its rows there are, and on which device
_SHARED: ContextVar[tuple[Share, int, torch.device] | None] = ContextVar("shared", default=None)


@contextmanager
def sharing(share: Share | None, views: int, device: torch.device) -> Iterator[None]:
    """Compute so many views of the rows of a share: first the first view of all, then the second.

    In this `with`, statistics are those of the rows of all processes, and random numbers those that
    one process would draw for these rows. Without a share, nothing is shared.
    """
    if share is None:
        yield
        return
    before = _SHARED.set((share, views, device))
    numbers = torch.arange(views * share.batch, device=device).view(views, -1)
    try:
        with keyed_random.of_rows(numbers[:, share.rows].flatten()):
            yield
    finally:
        _SHARED.reset(before)


def sharing_one_view() -> AbstractContextManager[None]:
    """The same for one view, where this is within `sharing`."""
    shared = _SHARED.get()
    return nullcontext() if shared is None else sharing(shared[0], 1, shared[2])


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


def current() -> Ranks:
    """The processes that this one has joined; itself alone where it has not."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return ALONE


def is_launched() -> bool:
    """Whether torchrun, or who sets its variables, has started this process beside others."""
    names = ("RANK", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and all(name in os.environ for name in names)


def on_this_machine() -> int:
    """How many of the processes are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if is_launched() else 1


def own_device(device: torch.device) -> torch.device:
    """The same; of several GPUs, this process's own."""
    if is_launched() and device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    return device


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that torchrun has started, where it has and this one has not done so."""
    if not is_launched() or dist.is_initialized():
        yield current()
        return
    with talking():
        store, rank, size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=TIMEOUT,
        )
    _STORES.append(store)
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _ended) if main else None
    yield current()
    if main:
        signal.signal(signal.SIGTERM, before)
    _STORES.clear()
    dist.destroy_process_group()  # after an error it might wait for those who are gone


def may_say_why() -> bool:
    """Whether this process is the one to tell the user what ended the training: the first to ask.

    When one fails, the others notice, and all that they could add is that it is gone.
    """
    if not is_launched():
        return True
    try:
        return int(_STORES[0].add("said why", 1)) == 1
    except (IndexError, RuntimeError):  # not joined yet, or who keeps the number is gone
        return os.environ["RANK"] == "0"


def _ended(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    if isinstance(sys.exception(), ClocsError):  # which the user is being told
        return
    raise LostProcessError(
        "this training was ended from outside, as torchrun does when one of its processes has "
        "ended; run the same command with `resume` to continue, with any number of processes"
    )

"""One training in several processes, as torchrun starts them: a rank is the number of one of them.

With at least as many members as processes, each process trains some of the members. With fewer, all
train every member together: each has the signals of its own patients and computes its rows of every
batch. Process 0 alone writes files and talks to the user.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from clocs.errors import ClocsError, LostProcessError
from clocs.kernels.collectives import talking
from clocs.training.signals import pick_device

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

    def members(self, count: int) -> list[list[int]]:
        """Which of so many members each process trains, where each trains some."""
        bounds = [rank * count // self.size for rank in range(self.size + 1)]
        return [list(range(*bounds[rank : rank + 2])) for rank in range(self.size)]

    def owners(self, patients: Iterable[str]) -> NDArray[np.int64]:
        """(patients,) the process that has the signals of each; ids as `Frames.keyed` has them."""
        keys = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in patients)
        return np.array([int.from_bytes(key, "big") % self.size for key in keys], np.int64)

    def owns(self, patients: Iterable[str]) -> NDArray[np.bool_]:
        """(patients,) whether this process has the signals of each."""
        return np.asarray(self.owners(patients) == self.rank, np.bool_)

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


def own_device(name: str | None) -> torch.device:
    """The device of that name, or the best available; of several GPUs, this process's own."""
    device = pick_device(name)
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

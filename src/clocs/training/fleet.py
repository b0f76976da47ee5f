"""Fleet: everything that changes while members train, one row per member, and its steps.

A member is one training (a seed). All its weights are one row of `theta`, all its batch-norm
statistics one row of `buffers`, so masking, keeping the best and saving handle whole members.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import CheckpointError, ClocsWarning
from clocs.files import remove_leftovers, write_atomic
from clocs.kernels.gpu import can_use_triton
from clocs.kernels.native import adam
from clocs.training.optimizer import Optimizer

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's
_DIGEST = "sha256"  # in the header of a saved state
_STEPPED = ("theta", "moment1", "moment2", "buffers", "steps", "live", "broken")


@dataclass
class Fleet:
    """The state of all members between two steps."""

    theta: Tensor  # (members, weights)
    buffers: Tensor  # (members, statistics)
    moment1: Tensor  # (members, weights), Adam's first moment
    moment2: Tensor  # (members, weights), Adam's second moment
    steps: Tensor  # (members,) optimizer steps made
    best_theta: Tensor  # (members, weights) at the lowest validation loss
    best_buffers: Tensor  # (members, statistics) there
    best_loss: Tensor  # (members,) the lowest validation loss
    best_epoch: Tensor  # (members,) when, from 1
    stale: Tensor  # (members,) consecutive epochs without a strictly lower validation loss
    live: Tensor  # (members,) whether it still trains; a finished member no longer changes
    broken: Tensor  # (members,) whether it stopped because its loss was not finite
    epoch: Tensor  # (1,) epochs done
    average: Tensor | None = None  # (members, weights) averaged over steps, where wanted
    average_buffers: Tensor | None = None  # (members, statistics) likewise

    @classmethod
    def start(cls, theta: Tensor, buffers: Tensor, *, averaged: bool = False) -> Fleet:
        """Members as initialized, nothing done yet."""
        members, device = len(theta), theta.device

        def full(value: float | bool, dtype: torch.dtype) -> Tensor:
            return torch.full((members,), value, dtype=dtype, device=device)

        return cls(
            theta=theta,
            buffers=buffers,
            moment1=torch.zeros_like(theta),
            moment2=torch.zeros_like(theta),
            steps=full(0, torch.int64),
            best_theta=theta.clone(),
            best_buffers=buffers.clone(),
            best_loss=full(torch.inf, torch.float64),
            best_epoch=full(0, torch.int64),
            stale=full(0, torch.int64),
            live=full(True, torch.bool),
            broken=full(False, torch.bool),
            epoch=torch.zeros(1, dtype=torch.int64),
            average=theta.clone() if averaged else None,
            average_buffers=buffers.clone() if averaged else None,
        )

    @property
    def state(self) -> dict[str, Tensor]:
        """All that it has, by name."""
        every = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: tensor for name, tensor in every if tensor is not None}

    @property
    def kept(self) -> tuple[Tensor, Tensor]:
        """The rows that are validated and kept: weights and statistics, or their averages."""
        if self.average is None or self.average_buffers is None:
            return self.theta, self.buffers
        return self.average, self.average_buffers

    def of(self, members: list[int]) -> Fleet:
        """A copy of the state of some members, in this order."""
        state = self.state
        epoch = state.pop("epoch").clone()
        return Fleet(**{k: v.detach()[members] for k, v in state.items()}, epoch=epoch)

    def put(self, members: list[int], part: Fleet) -> None:
        """Take over the state of some members, as `of` gave it and as it has changed since."""
        if part is not self:
            self.epoch.copy_(part.epoch)
            for name, tensor in part.state.items():
                if name != "epoch":
                    getattr(self, name)[members] = tensor

    @torch.no_grad()
    def step(
        self, gradient: Tensor, buffers: Tensor, loss: Tensor, optimizer: Optimizer, on: Tensor
    ) -> Tensor:
        """One step of the members that are `on` and live; a non-finite loss ends a member.

        All in place and without waiting for the host, so that a step can be captured and replayed.

        Args:
            gradient: (members, weights).
            buffers: (members, statistics) after this step's batch.
            loss: (members,) of this step's batch.
            optimizer: How far they move.
            on: (members,) bool: which have a batch in this step.

        Returns:
            (members, 1) bool: which moved.
        """
        if optimizer.plain:
            moved = self._step_in_kernels(gradient, buffers, loss, optimizer.lr, on)
            if moved is not None:
                return moved[:, None]
        failed = on & self.live & ~(loss.isfinite() & gradient.abs().amax(dim=1).isfinite())
        self.broken |= failed
        self.live &= ~failed
        moving = on & self.live
        column = moving[:, None]
        share = column.to(gradient.dtype)  # 0 leaves a row exactly as it is
        # in place where it can be: a new tensor costs as much as the arithmetic
        gradient = optimizer.clip_(torch.where(column, gradient, 0))
        rate = share * optimizer.rate(self.steps, gradient.dtype)
        self.steps += moving
        self.moment1.lerp_(gradient, share * (1 - BETA1))
        self.moment2.lerp_(gradient.square_(), share * (1 - BETA2))
        count = self.steps.clamp(min=1)[:, None].to(gradient.dtype)
        spread = torch.div(self.moment2, 1 - BETA2**count, out=gradient).sqrt_().add_(EPSILON)
        if optimizer.decay is not None:
            self.theta.addcmul_(self.theta * optimizer.decay, rate, value=-1)
        self.theta.addcdiv_(self.moment1 * (rate / (1 - BETA1**count)), spread, value=-1)
        self.buffers.copy_(torch.where(column, buffers, self.buffers))
        return column

    def _step_in_kernels(
        self, gradient: Tensor, buffers: Tensor, loss: Tensor, lr: float, on: Tensor
    ) -> Tensor | None:
        """`step` of plain Adam in Triton or C: (members,) which moved; None where neither can."""
        numbers = {"lr": lr, "beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON}
        state = {k: getattr(self, k) for k in _STEPPED}
        given = {"gradient": gradient, "after": buffers}
        if self.in_kernels(loss):
            from clocs.kernels import step_triton

            return step_triton.adam(numbers, on, loss, given, **state)
        return adam(numbers, on, loss, given, **state)

    @torch.no_grad()
    def take_average(self, optimizer: Optimizer, moved: Tensor) -> None:
        """Let the averages, where there are any, follow the members that moved, (members, 1)."""
        if self.average is None or self.average_buffers is None or optimizer.average is None:
            return
        made = self.steps[:, None].to(self.theta.dtype)
        # the first steps, far from where they lead, are soon forgotten
        decay = ((1 + made) / (10 + made)).clamp(max=optimizer.average)
        share = moved * (1 - decay)
        self.average.lerp_(self.theta, share)
        self.average_buffers.lerp_(self.buffers, share)

    def in_kernels(self, loss: Tensor) -> bool:
        """Whether Triton kernels make a step with losses like this one: by device and type."""
        single = self.theta.dtype == self.buffers.dtype == loss.dtype == torch.float32
        return single and can_use_triton(self.theta, torch.float32)

    @torch.no_grad()
    def end_epoch(self, validation: Tensor, patience: int, *, keep_last: bool = False) -> None:
        """Keep the best weights, count stale epochs, stop members with `patience` of them.

        validation: (members,) validation loss. With `keep_last`, the weights of every epoch count
        as the best so far, so that nobody stops early.
        """
        self.epoch += 1
        validation = validation.to(self.best_loss)
        # a weight may be infinite and the loss not: ReLU hides it
        finite = validation.isfinite()
        theta, buffers = self.kept
        for rows in (theta, buffers):
            finite &= (rows * 0).sum(dim=1) == 0  # ten times as fast as isfinite().all()
        failed = self.live & ~finite
        self.broken |= failed
        self.live &= ~failed
        better = self.live if keep_last else self.live & (validation < self.best_loss)
        self.best_loss.copy_(torch.where(better, validation, self.best_loss))
        self.best_epoch.copy_(torch.where(better, int(self.epoch), self.best_epoch))
        self.best_theta.copy_(torch.where(better[:, None], theta, self.best_theta))
        self.best_buffers.copy_(torch.where(better[:, None], buffers, self.best_buffers))
        self.stale.copy_(torch.where(better, 0, self.stale + self.live))
        self.live &= self.stale < patience

    def save(self, path: Path) -> None:
        """Write the whole state and its digest; the one before stays beside it."""
        state = {name: t.detach().cpu().contiguous() for name, t in self.state.items()}
        write_atomic(path, save(state, {_DIGEST: _digest(state)}), keep=_previous(path))

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Fleet:
        """Read what `save` wrote last; where that is damaged, what it wrote before.

        Raises:
            CheckpointError: Neither equals its digest.
        """
        damaged = ""
        for file in filter(Path.exists, (path, _previous(path))):
            try:
                content = file.read_bytes()
            except OSError as error:
                raise CheckpointError(f"{file} cannot be read ({error.strerror})") from error
            try:
                state = _checked(content)
                epoch = state.pop("epoch")
                fleet = cls(**{k: v.to(device) for k, v in state.items()}, epoch=epoch)
            except (SafetensorError, TypeError, KeyError, ValueError, RuntimeError) as error:
                damaged = damaged or f"{file} is not a training state that can be resumed ({error})"
                continue
            if damaged:
                before = f"resuming from {file.name}, epoch {int(epoch)}"
                # from here, not from the caller: however often it is loaded, it is shown once
                warnings.warn(f"{damaged}; {before}", ClocsWarning, stacklevel=1)
            return fleet
        names = f"{path.name} and {_previous(path).name}"
        raise CheckpointError(f"{damaged}; delete {names} in its folder to start again")


def _digest(state: Weights) -> str:
    """The sha256 of names, types, shapes and values."""
    total = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _checked(content: bytes) -> Weights:
    """The tensors in a file that `Fleet.save` wrote, if they are still those."""
    state = load(content)
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size]).get("__metadata__") or {}
    if _DIGEST not in header:
        raise ValueError("it has no digest; an earlier version of clocs wrote none")
    if header[_DIGEST] != _digest(state):
        raise ValueError("it differs from its digest: it was damaged or changed")
    return state


def is_saved(path: Path) -> bool:
    """Whether there is a state to load; a run killed while saving leaves the previous one."""
    return path.exists() or _previous(path).exists()


def epochs_done(path: Path) -> int:
    """Epochs in a saved state; 0 where there is none."""
    return int(Fleet.load(path, torch.device("cpu")).epoch) if is_saved(path) else 0


def remove_state(path: Path) -> None:
    """Remove everything that `save` has written, unfinished writes included."""
    for file in (path, _previous(path)):
        file.unlink(missing_ok=True)
    remove_leftovers(path)


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.stem}.previous{path.suffix}")

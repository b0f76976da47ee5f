"""Views of a batch made by one kernel on a GPU, where the chains of perturbations allow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clocs.kernels import keyed_random
from clocs.pretraining.perturbations import PERTURBATIONS, Chain

Program = tuple[tuple[float, ...], ...]  # a chain as `kernels.windows_triton` reads it

MAX_PIECES = 64  # the kernel goes through a view once for each of them


def program(chain: Chain | None, samples: int) -> Program | None:
    """A chain as the kernel reads it, or None where torch has to compute it.

    The kernel computes each sample of a view by itself, from the window's samples that it is made
    of. So at most one step may move samples, and no step before it may need the whole view.
    """
    steps = chain.steps if chain else ()
    kinds = [PERTURBATIONS[step.name].fused for step in steps]
    if None in kinds or kinds.count("places") > 1:
        return None
    if "places" in kinds and "view" in kinds[: kinds.index("places")]:
        return None
    pieces = [value for step in steps for name, value in step.options if name == "pieces"]
    if max(pieces, default=0) > min(MAX_PIECES, samples - 1):
        return None
    return tuple(
        (keyed_random.stream(step.name), *(value for _, value in step.options)) for step in steps
    )


@dataclass(frozen=True)
class FusedViews:
    """The programs of a fleet, and which of them makes each copy of a member's windows."""

    programs: tuple[Program, ...]
    numbers: list[list[int]]  # (members, copies) index into `programs`; −1 where torch computes
    table: Tensor  # the same on the device, int32

    @classmethod
    def of(
        cls, chains: Sequence[Sequence[Chain | None]], samples: int, device: torch.device
    ) -> FusedViews | None:
        """chains: for each member those of its copies; None where no member's can be fused.

        A member's views are fused if the chains of all its copies can be.
        """
        known: dict[Program, int] = {}
        numbers = []
        for copies in chains:
            found = [p for p in (program(chain, samples) for chain in copies) if p is not None]
            fused = len(found) == len(copies)
            own = [known.setdefault(p, len(known)) for p in found] if fused else [-1] * len(copies)
            numbers.append(own)
        if not known:
            return None
        return cls(tuple(known), numbers, torch.tensor(numbers, dtype=torch.int32, device=device))

    def has(self, member: int) -> bool:
        """Whether this member's views are fused."""
        return self.numbers[member][0] >= 0

    def fill(
        self,
        x: Tensor,
        flat: Tensor,
        starts: Tensor,
        rows: Tensor,
        scale: Tensor | None,
        keys: Tensor,
        *,
        located: bool,
        offset: float | None,
        normalized: bool,
    ) -> None:
        """x: (members, copies·windows·batch, samples); more as for `perturbed_windows`."""
        from clocs.kernels.windows_triton import perturbed_windows

        perturbed_windows(
            flat, starts, rows, scale, keys, located=located, table=self.table,
            programs=self.programs, offset=offset, normalized=normalized, out=x,
        )  # fmt: skip

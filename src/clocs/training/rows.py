"""Tensors of all members as rows, one per member, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clocs.encoders.base import Weights

_SHORT = 1024  # numbers of a row that are read where they are: statistics of batch norm


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors that make up a row."""

    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, tensors: Weights) -> Layout:
        return cls({name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()})

    def pack(self, tensors: Weights, none: Tensor | None = None) -> Tensor:
        """Tensors -> (members, numbers): a copy, unless they are parts of such rows already.

        `none`, (members, 0), is what there is where a row has no tensors.
        """
        if none is not None and not self.shapes:
            return none
        parts = [tensors[name] for name in self.shapes]
        rows = _rows_of(parts)
        return torch.cat([part.flatten(1) for part in parts], dim=1) if rows is None else rows

    def unpack(self, rows: Tensor) -> Weights:
        """(members, numbers) -> tensors, as views of the rows."""
        parts = rows.split(self.sizes, dim=1) if self.shapes else ()
        return {
            name: part.unflatten(1, shape) if len(shape) != 1 else part
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    @property
    def sizes(self) -> list[int]:
        """Numbers in each tensor."""
        return [torch.Size(shape).numel() for shape in self.shapes.values()]


class Unpacked:
    """Tensors out of rows; on a GPU, contiguous copies of long rows, which cost one kernel."""

    def __init__(self, layout: Layout, rows: Tensor) -> None:
        self.layout, self.order = layout, None
        if rows.is_cuda and rows.shape[1] > _SHORT:
            # where the numbers of the tensors, one after another, are in the rows
            places = torch.arange(rows.numel(), device=rows.device).view(rows.shape)
            self.order = torch.cat([part.flatten() for part in places.split(layout.sizes, dim=1)])

    def __call__(self, rows: Tensor) -> Weights:
        """(members, numbers) -> tensors, which no graph has made yet."""
        if self.order is None:
            return self.layout.unpack(rows.detach())
        flat = rows.detach().view(-1).index_select(0, self.order)
        parts = flat.split([len(rows) * size for size in self.layout.sizes])
        names = zip(parts, self.layout.shapes.items(), strict=True)
        return {name: part.view(len(rows), *shape) for part, (name, shape) in names}


def move_toward(tensors: list[Tensor], others: list[Tensor], kept: float, moved: Tensor) -> None:
    """Keep a share of tensors and take the rest of others, for those that moved, (members, 1) bool.

    In place, where they are; on a GPU, adjacent parts of rows are moved by one kernel.
    """
    rows = _rows_of(tensors)
    if rows is not None:
        ours = torch.cat([other.flatten(1) for other in others], dim=1)
        rows.lerp_(ours, moved.to(rows.dtype) * (1 - kept))
        return
    for tensor, other in zip(tensors, others, strict=True):
        who = moved.view(-1, *(1 for _ in tensor.shape[1:]))
        tensor.copy_(torch.where(who, other.lerp(tensor, kept), tensor))


def _rows_of(parts: list[Tensor]) -> Tensor | None:
    """(members, numbers) of which these are the parts, in this order; None where they are not.

    The rows may be parts of longer ones themselves.
    """
    numbers, place = sum(part[0].numel() for part in parts), 0
    for part in parts:
        adjacent = part.data_ptr() == parts[0].data_ptr() + place * part.element_size()
        if not (
            part.is_cuda
            and adjacent
            and part.stride(0) == parts[0].stride(0)
            and part[0].is_contiguous()
        ):
            return None
        place += part[0].numel()
    if not parts:
        return None
    return parts[0].as_strided((len(parts[0]), numbers), (parts[0].stride(0), 1))

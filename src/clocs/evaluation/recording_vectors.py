"""Mean embeddings of recordings by frozen encoders, each computed once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from clocs.evaluation.labeled_rows import LabeledPart
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import StoreVectors, embedded_pieces, expect_finite


class RecordingVectors:
    """Vectors of the recordings of one set of frames, embedded when they are first asked for."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],
        device: torch.device | str,
        cache: StoreVectors | None = None,
    ) -> None:
        """checkpoints: The members, with the weights that they keep; cache: Of their frames."""
        # members that differ in their labeled rows alone share an encoder, which encodes once
        distinct = {id(one.weights): one for one in checkpoints}
        self._checkpoints, self._device, self._cache = list(checkpoints), device, cache
        self._distinct = list(distinct.values())
        self._members = [list(distinct).index(id(one.weights)) for one in checkpoints]
        self._row: dict[int, int] = {}  # of each recording that is known
        self._vectors = torch.zeros((len(distinct), 0, 0), dtype=torch.float64)

    def of(self, part: LabeledPart) -> Tensor:
        """(members, recordings, dim) the mean over the rows of each, in float64 on the CPU."""
        wanted = part.frames.recording[part.frame].tolist()
        new = [recording not in self._row for recording in wanted]
        if any(new):
            found = self._embedded(part.where(np.array(new)))
            self._vectors = torch.cat([self._vectors, found], dim=1) if self._row else found
            names = (recording for recording, is_new in zip(wanted, new, strict=True) if is_new)
            self._row |= {recording: len(self._row) + n for n, recording in enumerate(names)}
        rows = torch.tensor([self._row[recording] for recording in wanted])
        return self._vectors[self._members][:, rows]

    def of_members(self, members: Sequence[int]) -> RecordingVectors:
        """Those of some members, without computing them again."""
        some = [self._checkpoints[m] for m in members]
        made = RecordingVectors(some, self._device, self._cache)
        distinct = list(dict.fromkeys(self._members[m] for m in members))
        made._row, made._vectors = dict(self._row), self._vectors[distinct]
        return made

    @torch.no_grad()
    def _embedded(self, part: LabeledPart) -> Tensor:
        """Rows are encoded some at a time; of recordings only the sum is kept."""
        place, count = torch.from_numpy(part.place).to(self._device), len(part)
        total, start = torch.zeros(0), 0
        pieces = embedded_pieces(self._distinct, part.frames, part.rows, self._device, self._cache)
        for z in pieces:
            if not start:
                total = z.new_zeros((len(z), count, z.shape[-1]), dtype=torch.float64)
            total.index_add_(1, place[start : start + z.shape[1]], z.double())
            start += z.shape[1]
        rows = torch.bincount(place, minlength=count).double()
        return expect_finite(total / rows[None, :, None]).cpu()

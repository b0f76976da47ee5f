"""Finding patients again: pairs of vectors of one patient, and where the patient ranks among all.

A gallery has one vector per patient. In place of the own one stands the other of the pair: the
second half of a recording for its first half, or another recording, of the same day or of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation.bootstrap import interval, patient_weights
from research.analyses.frame_vectors import FrameVectors

HALVES, ANOTHER_DAY = "halves", "another day"
# days between two recordings: from, to
APART: Final = {
    "same day": (0, 0),
    "1 to 7 days": (1, 7),
    "8 to 30 days": (8, 30),
    "31 to 365 days": (31, 365),
    "over a year": (366, np.inf),
    ANOTHER_DAY: (1, np.inf),
}
_AT_ONCE = 1024  # queries compared with the gallery together


@dataclass(frozen=True)
class Pairs:
    """Who is searched for, and among whom."""

    query: FrameVectors  # one row per pair
    target: FrameVectors  # the same patients, row by row
    gallery: FrameVectors  # one row per patient

    def changed(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Pairs:
        """The same with other vectors."""
        own = (self.query, self.target, self.gallery)
        return Pairs(*(replace(rows, vectors=change(rows.vectors)) for rows in own))

    def ranks(self) -> NDArray[np.int64]:
        """(pairs,) 1 for a patient who is nearest by cosine.

        An equally near patient counts as nearer, so that vectors without a direction find nobody.
        """
        query, target, gallery = (
            torch.nn.functional.normalize(torch.from_numpy(rows.vectors).double())
            for rows in (self.query, self.target, self.gallery)
        )
        everybody, found = torch.from_numpy(self.gallery.patient), []
        for start in range(0, len(query), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            own = (query[some] * target[some]).sum(dim=1, keepdim=True)
            others = everybody != torch.from_numpy(self.query.patient[some])[:, None]
            near = query[some] @ gallery.T >= own - 1e-12  # sums differ in their last digits
            found.append((near & others).sum(dim=1) + 1)
        return torch.cat(found).numpy()

    def found(self, resamples: int) -> dict[str, Any]:
        """How often patients are found first and how they rank, with intervals over patients.

        Each patient counts once, whatever the number of pairs.
        """
        rank = self.ranks()
        who, place = np.unique(self.query.patient, return_inverse=True)
        share = np.bincount(place, rank == 1) / np.bincount(place)
        typical = np.array([np.median(rank[place == one]) for one in range(len(who))])
        ids = [self.query.patient_ids[one] for one in who]
        draws = torch.cat(patient_weights(self.query.dataset, ids, resamples)).double().numpy()
        draws = draws[draws.any(axis=1)]  # of few patients, a draw may hold none
        order = np.argsort(typical)
        below = np.cumsum(draws[:, order], axis=1)
        middle = (below >= below[:, -1:] / 2).argmax(axis=1)
        return {
            "patients": len(who),
            "pairs": len(rank),
            "size": len(self.gallery),
            "top1": float(share.mean()),
            "ci95": interval(draws @ share / below[:, -1]),
            "median_rank": float(np.median(typical)),
            "median_rank_ci95": interval(typical[order][middle]),
        }


def one_pair_each(found: FrameVectors) -> tuple[FrameVectors, FrameVectors]:
    """First and second halves of one recording of each patient."""
    first, second = found.halves()
    some = np.unique(first.patient, return_index=True)[1]
    if len(some) < 2:
        raise SettingError(
            f"{found.dataset} has too few recordings of two frames to compare their halves; "
            "cut them into shorter frames"
        )
    return first.where(some), second.where(some)


def pairs_of(found: FrameVectors, days: NDArray[np.float64] | None = None) -> dict[str, Pairs]:
    """Halves of a recording of each patient; and recordings by the days between them.

    Args:
        found: Vectors of frames.
        days: (recordings,) when each was recorded; nan where unknown.
    """
    first, second = one_pair_each(found)
    made = {HALVES: Pairs(first, second, second)}
    if days is None:
        return made
    rows = found.by_recording()
    gallery = rows.where(np.unique(rows.patient, return_index=True)[1])
    same = (rows.patient[:, None] == rows.patient) & ~np.eye(len(rows), dtype=bool)
    one, other = np.nonzero(same)
    apart = np.abs(days[rows.recording[one]] - days[rows.recording[other]])
    for name, (least, most) in APART.items():
        own = (apart >= least) & (apart <= most)
        if own.any():
            made[name] = Pairs(rows.where(one[own]), rows.where(other[own]), gallery)
    return made

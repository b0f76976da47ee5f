"""`clocs.patient_distances`: within one patient, and between patients (the paper's figure 6).

All pairs where memory allows; beyond that, a random sample of pairs, the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation.metrics import auc
from clocs.frames.frames import Frames
from clocs.frames.views import Views, instances
from clocs.kernels import keyed_random
from clocs.training.checkpoint import Checkpoint, load_checkpoint, seen_by
from clocs.training.embed import embed_instances
from clocs.training.signals import pick_device

if TYPE_CHECKING:
    from clocs.store.store import Store

Metric = Literal["euclidean", "cosine"]
METRICS: tuple[Metric, ...] = get_args(Metric)
MAX_PAIRS = 8_000_000
_AT_ONCE = 262_144  # pairs computed together
_MAX_BINS = 100  # of each distribution, to measure their overlap

Pairs = NDArray[np.int64]  # (pairs, 2)


@dataclass(frozen=True)
class PatientDistances:
    """Distances between embeddings; for 'euclidean' these are not normalized.

    Attributes:
        intra: Between two embeddings of one patient; perhaps a sample of all `intra_pairs`.
        inter: Between embeddings of two patients; perhaps a sample of all `inter_pairs`.
        separability: Probability (AUC) that an intra-patient distance is the smaller one.
        overlap: Area shared by the two distributions: 0 for disjoint, 1 for identical ones.
        about: Whose they are, by which encoder, ready for JSON.
    """

    intra: NDArray[np.float32]
    inter: NDArray[np.float32]
    separability: float
    overlap: float
    metric: Metric
    intra_pairs: int
    inter_pairs: int
    about: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Everything but the distances themselves."""
        made: dict[str, Any] = self.about | {"metric": self.metric}
        pairs = {"intra": (self.intra, self.intra_pairs), "inter": (self.inter, self.inter_pairs)}
        for name, (found, total) in pairs.items():
            made[f"{name}_mean"], made[f"{name}_std"] = float(found.mean()), float(found.std())
            made[f"{name}_pairs"] = total
            made[f"{name}_sampled"] = len(found) if len(found) < total else None
        return made | {"overlap": self.overlap, "separability": self.separability}


def patient_distances(
    checkpoint: Checkpoint | Path | str,
    store: Store | Path | str,
    *,
    metric: Metric = "euclidean",
    split: str = "test",
    leads: Sequence[str] | None = None,
    split_seed: int = 0,
    device: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PatientDistances:
    """Distances between frames of one patient and of different patients, lead by lead.

    Where most recordings of the store hold a single frame, their segments are compared.

    Args:
        checkpoint: A checkpoint, its file, or a folder (then its first seed).
        store: Prepared recordings.
        metric: 'euclidean', as in the paper, between embeddings as they are; or 'cosine'.
        split: Whose recordings: 'train', 'validation', 'test' or 'all'.
        leads: By name; those the encoder was trained on by default.
        split_seed: Random seed for the patient split.
        device: 'cpu', 'cuda' …; the best one by default.
        progress: Called with (recordings done, recordings in total).
    """
    # here, because the experiments measure distances on machines without polars
    from clocs.patients.embed import embed_levels, frame_with_halves
    from clocs.store.store import as_store

    encoder, opened = load_checkpoint(checkpoint), as_store(store)
    spec = frame_with_halves(encoder, opened)
    made = embed_levels(
        encoder,
        opened,
        levels=["frame"],
        spec=spec,
        leads=leads,
        split=None if split == "all" else split,
        split_seed=split_seed,
        device=pick_device(device),
        progress=progress,
    )["frame"]
    rows = made.rows
    patients = rows["patient"].unique(maintain_order=True)
    own = opened.table.filter(opened.table["patient"].is_in(patients.implode()))
    seen = seen_by(
        encoder,
        opened.manifest.dataset,
        own["patient"].to_list(),
        own["digest"].to_numpy(),
        own["fold"].fill_null("").to_list(),
    )
    about = {
        "method": encoder.card.method,
        "seed": encoder.card.seed,
        "store": opened.manifest.dataset,
        "split": split,
        "patients": len(patients),
        "patients_seen": own["patient"].filter(seen).n_unique(),  # in training or validation
        # then distances within a patient are within a recording
        "one_recording_each": rows["recording"].n_unique() == len(patients),
        "frame": spec.seconds,
        "leads": list(made.leads or ()),
        "zero_vectors": made.zero_vectors,  # frames × leads
    }
    numbers = (
        np.unique(rows[name].to_numpy(), return_inverse=True)[1] for name in ("patient", "lead")
    )
    return replace(distances_between(made.vectors, *numbers, metric=metric), about=about)


def frame_distances(
    checkpoint: Checkpoint, frames: Frames, split: int = 2, device: torch.device | str = "cpu"
) -> PatientDistances:
    """Distances between the frames of a split, lead by lead, or in all leads at once."""
    leads = checkpoint.encoder.leads
    frames = frames.for_leads(leads) if leads else frames
    rows = instances(frames, of="lead", views=Views(), split=split, leads_at_once=bool(leads))
    z = embed_instances([checkpoint], frames, rows, device)[0].cpu().numpy()
    return distances_between(z, frames.patient[rows.frame], rows.lead)


def distances_between(
    vectors: NDArray[np.float32],
    patient: NDArray[np.integer],
    group: NDArray[np.integer],
    *,
    metric: Metric = "euclidean",
    most: int = MAX_PAIRS,
    seed: int = 0,
) -> PatientDistances:
    """vectors: (n, dim); patient: (n,); group: (n,), such as the lead -> distances in each group.

    Where there are more than `most` pairs of a kind, this many are sampled.
    """
    if metric not in METRICS:
        raise SettingError(f"`metric` is {metric!r}; choose one of {', '.join(METRICS)}")
    # Sorted, so that vectors of one group, and in it of one patient, are adjacent.
    order = np.lexsort((patient, group))
    vectors, patient, group = vectors[order], patient[order], group[order]
    if metric == "cosine":
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = (vectors / np.where(length > 0, length, 1)).astype(np.float32)
    people = np.stack([group, patient], axis=1)
    within, between = _Blocks.of(people), _Blocks.of(group[:, None])
    intra = within.pairs(_drawn(within.total, most, seed, "intra pairs"))
    inter_total = between.total - within.total
    # Most pairs of a group are of two patients; the others are dropped.
    share = inter_total / max(between.total, 1)
    chosen = _drawn(between.total, round(most / max(share, 1e-9)), seed, "inter pairs")
    inter = between.pairs(chosen)
    inter = inter[patient[inter[:, 0]] != patient[inter[:, 1]]]
    if not len(intra) or not len(inter):
        raise SettingError(
            "distances need two embeddings of one patient and two patients; "
            f"there are {within.total} pairs within and {inter_total} between patients; "
            "give another `split`, or a larger store"
        )
    near, far = (_apart(vectors, pairs, metric) for pairs in (intra, inter))
    return PatientDistances(
        intra=near,
        inter=far,
        separability=auc(-near, -far),
        overlap=_overlap(near, far),
        metric=metric,
        intra_pairs=within.total,
        inter_pairs=inter_total,
    )


@dataclass(frozen=True)
class _Blocks:
    """Runs of rows to be compared with each other; all their pairs are numbered."""

    start: NDArray[np.int64]
    before: NDArray[np.int64]  # (blocks + 1,) pairs of the preceding blocks

    @classmethod
    def of(cls, keys: NDArray[np.integer]) -> _Blocks:
        """keys: (n, columns), equal ones adjacent."""
        new = np.ones(len(keys), bool)
        new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        start = np.flatnonzero(new)
        size = np.diff(np.append(start, len(keys)))
        return cls(start, np.concatenate(([0], np.cumsum(size * (size - 1) // 2))))

    @property
    def total(self) -> int:
        return int(self.before[-1])

    def pairs(self, number: NDArray[np.int64]) -> Pairs:
        """Pair t of a block is (j, i) with i (i − 1) / 2 + j = t and j < i."""
        block = np.searchsorted(self.before, number, side="right") - 1
        t = number - self.before[block]
        i = np.floor((1 + np.sqrt(1 + 8 * t.astype(np.float64))) / 2).astype(np.int64)
        i -= i * (i - 1) // 2 > t  # the square root is rounded
        i += (i + 1) * i // 2 <= t
        j = t - i * (i - 1) // 2
        return np.stack([self.start[block] + j, self.start[block] + i], axis=1)


def _drawn(total: int, most: int, seed: int, name: str) -> NDArray[np.int64]:
    """All of 0…total−1, or `most` of them sampled with replacement; sorted."""
    if total <= most:
        return np.arange(total)
    key = keyed_random.fold(keyed_random.member_keys([seed]), keyed_random.stream(name))
    draws = keyed_random.uniform(key, most)[0].numpy()
    return np.sort((draws * total).astype(np.int64))


def _apart(vectors: NDArray[np.float32], pairs: Pairs, metric: Metric) -> NDArray[np.float32]:
    found = np.empty(len(pairs), np.float32)
    for start in range(0, len(pairs), _AT_ONCE):
        left, right = (vectors[side] for side in pairs[start : start + _AT_ONCE].T)
        if metric == "cosine":
            part = 1 - np.einsum("nd,nd->n", left, right)
        else:
            part = np.linalg.norm(left - right, axis=1)
        found[start : start + len(left)] = part
    return found


def _overlap(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Shared area, with bins at the quantiles of both: narrow where either has many values.

    With too many bins for the smaller of the two, noise would count as a difference.
    """
    steps = np.linspace(0, 1, min(_MAX_BINS, max(5, round(min(len(a), len(b)) ** 0.5))))
    inner = np.unique(np.concatenate([np.quantile(a, steps), np.quantile(b, steps)]))
    shares = [np.histogram(values, inner)[0] / len(values) for values in (a, b)]
    return float(np.minimum(*shares).sum())

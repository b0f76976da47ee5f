"""`clocs.retrieval`: scores of the search on patients that the encoder has never seen.

Two questions. Is the nearest neighbor the same patient: for a recording's first half among all
second halves and, where patients have several recordings, for a recording among all others? And do
the ten nearest other patients share the diagnosis more often than chance? Where no patient has two
recordings, as in the paper's four datasets, the same patient means the same recording. Controls
that learn nothing are scored beside the encoders.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs._version import __version__
from clocs.errors import LeakError, SettingError
from clocs.frames.splits import PARTS, split_patients
from clocs.frames.views import ALL_LEADS
from clocs.patients.controls import CONTROLS
from clocs.patients.embed import (
    embed_levels,
    frame_with_halves,
    own_frame,
    store_leads,
    store_windows,
)
from clocs.patients.embeddings import Embeddings, collect, halves
from clocs.patients.encode import frame_of
from clocs.patients.index import PatientIndex
from clocs.patients.rows import Level, frame_rows
from clocs.recording import FrameSpec
from clocs.store.store import Store, as_store
from clocs.training.card import Card
from clocs.training.checkpoint import Checkpoint, load_checkpoints, seen_by
from clocs.training.signals import pick_device

NEAREST = 10


@dataclass(frozen=True)
class Retrieval:
    """Scores of one encoder, or of one control, on one store.

    `halves` and `recordings` have the share of queries whose nearest neighbor is of the same
    patient (`top1`) or who have one among the ten nearest (`top10`), the same of random vectors
    (`chance`, `chance10`), the number of `queries`, the vectors searched (`among`) and the seconds
    of a `frame`.

    `diagnosis` has the mean share of the ten nearest other patients with a common label
    (`precision`), the same of ten random patients (`base_rate`), the number of labeled patients
    (`queries`) and, `per_label`, the share of neighbors with the label, that of all others, and the
    number of patients.
    """

    method: str  # or the name of a control
    seed: int
    run: str  # equal for the seeds of one pre-training only
    embedding_dim: int
    pretrain: str | None  # the dataset it was pre-trained on; None where it saw no data
    trained: str  # epochs and learning rate
    store: str  # the dataset it is scored on
    split: str
    split_seed: int
    leads: tuple[str, ...]
    frame: FrameSpec  # of `recordings` and `diagnosis`; `halves` has its own
    frame_trained: FrameSpec  # of the encoder's training
    patients: int  # all of them unseen
    one_recording_each: bool  # then the same patient means the same recording
    patients_seen: int  # left out because one of the encoders has seen them
    copies: int  # recordings left out because an earlier one has the same samples
    halves: dict[str, float] | None  # first halves of recordings searched among second halves
    recordings: dict[str, float] | None  # of patients with several, searched among all others
    diagnosis: dict[str, Any] | None  # whether near patients share a label

    def json(self) -> dict[str, Any]:
        frames = {name: getattr(self, name).to_dict() for name in ("frame", "frame_trained")}
        return asdict(self) | frames | {"version": __version__}


def retrieval(
    checkpoints: Sequence[Checkpoint | Path | str],
    store: Store | Path | str,
    *,
    split: str = "test",
    split_seed: int = 0,
    leads: Sequence[str] | None = None,
    frame: float | None = None,
    device: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Retrieval]:
    """Scores of each encoder, then of each control, on the same patients: those never seen.

    Controls see the frames of the first encoder.

    Args:
        checkpoints: Checkpoints, their files, or folders (then all seeds).
        store: Prepared recordings.
        split: Whose recordings: 'train', 'validation', 'test' or 'all'.
        split_seed: Random seed for the patient split.
        leads: By name; those the encoders were trained on by default.
        frame: Seconds of a frame. By default the dataset's, or that of its segments for halves of
            recordings that hold only one; an encoder does best on the frame of its training.
        device: 'cpu', 'cuda' …; the best one by default.
        progress: Called with (encoders and controls done, all of them).
    """
    encoders = [encoder for one in checkpoints for encoder in load_checkpoints(one)]
    opened, where = as_store(store), pick_device(device)
    if not encoders:
        raise SettingError("there is nothing to score; give at least one checkpoint")
    trained = [one for one in encoders if one.card.dataset is not None] or encoders
    different = sorted({", ".join(one.card.leads) for one in trained})
    if leads is None and len(different) > 1:
        raise SettingError(
            f"the encoders were trained on different leads ({' and '.join(different)}); choose "
            "those to score them on with `leads`"
        )
    chosen = store_leads(trained[0], opened, leads)
    only, counts = unseen_recordings(encoders, opened, split=split, split_seed=split_seed)
    first = encoders[0]
    common: dict[str, Any] = {"only": only, "leads": chosen}
    facts: dict[str, Any] = {
        "store": opened.manifest.dataset,
        "split": split,
        "split_seed": split_seed,
        "leads": chosen,
        "one_recording_each": int(only.sum()) == counts["patients"],
        **counts,
    }
    scored: list[tuple[Checkpoint, _Embedded, dict[str, Any]]] = []
    for encoder in encoders:
        card, settings = encoder.card, encoder.card.training
        about: dict[str, Any] = {"method": card.method, "seed": card.seed, "run": _run(card)}
        epochs, lr = card.metrics.get("epochs"), settings.get("lr")
        trained_for = f"{epochs} epochs, lr {lr:g}" if epochs and lr is not None else ""
        about |= {"pretrain": card.dataset, "trained": trained_for}
        own = partial(embed_levels, encoder, opened, device=where, **common)
        scored.append((encoder, own, about))
    for name in CONTROLS:
        about = {"method": name, "seed": 0, "run": name, "pretrain": None, "trained": ""}
        scored.append((first, partial(_control_levels, name, first, opened, **common), about))
    scores: list[Retrieval] = []
    for encoder, embedded, about in scored:
        progress(len(scores), len(scored))
        made = _scores(embedded, *_frames(encoder, opened, frame))
        spec = encoder.card.frame_trained
        scores.append(Retrieval(**about, **facts, **made, frame_trained=spec))
    progress(len(scored), len(scored))
    return scores


def unseen_recordings(
    checkpoints: Sequence[Checkpoint], store: Store, *, split: str = "test", split_seed: int = 0
) -> tuple[NDArray[np.bool_], dict[str, Any]]:
    """Which recordings of a split (or 'all') are of patients that no encoder has seen.

    Copies of earlier recordings are left out. LeakError if none is left.

    Returns:
        (recordings of the store,), and the counts of `Retrieval`: `patients`, `patients_seen` and
        `copies`.
    """
    if split not in (*PARTS, "all"):
        raise SettingError(f"there is no split {split!r}; choose one of {', '.join(PARTS)} or all")
    table, dataset = store.table, store.manifest.dataset
    digests = table["digest"].to_numpy().astype(np.uint64)
    everyone = split_patients(store, split_seed=split_seed)
    patients = [everyone.ids[i] for i in everyone.recording]
    fold = [everyone.fold[i] for i in everyone.recording] if everyone.fold else None
    only = np.ones(len(store), bool)
    if split != "all":
        part = everyone.part[everyone.recording]
        only = np.asarray(part == PARTS.index(split), np.bool_)
        if not only.any():
            raise SettingError(
                f"{dataset} has no patient in the split {split!r}; give another `split`, or a "
                "larger store"
            )
    trained_on = np.any(
        [seen_by(one, dataset, patients, digests, fold) for one in checkpoints], axis=0
    )
    # One seen recording makes its patient a seen one.
    seen_patients = table.filter(pl.Series(trained_on))["patient"].implode()
    known = table["patient"].is_in(seen_patients).to_numpy()
    seen = table.filter(pl.Series(only & known))["patient"].n_unique()
    only = only & ~known
    if not only.any():
        raise LeakError(
            f"the encoder has seen every patient in the split {split!r} of {dataset}; "
            "score it on the test split of its own split seed, or on another dataset"
        )
    first = np.zeros(len(store), bool)  # not a copy of an earlier recording
    rows = np.flatnonzero(only)
    first[rows[np.unique(digests[rows], return_index=True)[1]]] = True
    unseen = table.filter(pl.Series(only & first))["patient"].n_unique()
    copies = int((only & ~first).sum())
    return only & first, {"patients": unseen, "patients_seen": seen, "copies": copies}


class _Embedded(Protocol):
    def __call__(self, *, levels: Sequence[Level], spec: FrameSpec) -> dict[Level, Embeddings]: ...


def _frames(
    checkpoint: Checkpoint, store: Store, seconds: float | None
) -> tuple[FrameSpec, FrameSpec]:
    """The frame to compare patients in, and that of halves of recordings."""
    if seconds is not None:
        return (frame_of(checkpoint, seconds),) * 2
    return own_frame(checkpoint, store), frame_with_halves(checkpoint, store)


def _scores(embedded: _Embedded, frame: FrameSpec, spec: FrameSpec) -> dict[str, Any]:
    """The dimensions, the frame, and the answers to the questions, as in `Retrieval`."""
    made = embedded(levels=["frame", "recording", "patient"], spec=frame)
    frames = made["frame"] if spec == frame else embedded(levels=["frame"], spec=spec)["frame"]
    return {
        "embedding_dim": made["frame"].vectors.shape[1],
        "frame": frame,
        "halves": _halves(frames, spec),
        "recordings": _recordings(made["recording"], frame),
        "diagnosis": diagnosis(made["patient"]),
    }


def _control_levels(
    name: str, checkpoint: Checkpoint, store: Store, *, levels: Sequence[Level], **chosen: Any
) -> dict[Level, Embeddings]:
    """As `embed_levels`, by a control: of all leads at once, in the frames of the encoder."""
    own = store_windows(checkpoint, store, **chosen)
    plan = own.plan
    first = np.concatenate(([0], np.cumsum(plan.counts)))

    def vectors() -> Iterator[NDArray[np.float32]]:
        for i, values, steps in plan.windows(own.chosen):
            frames = slice(first[i], first[i + 1])
            there = plan.present[frames] & plan.kept[frames, None]
            x = np.zeros((*there.shape, values.shape[2]), np.float32)
            x[:, plan.has[i]] = (values * steps[:, :, None]).transpose(1, 0, 2)
            x[~there] = 0
            yield CONTROLS[name](x[there.any(axis=1)], plan.spec.rate)

    made = list(vectors())
    return collect(
        made,
        levels,
        frame_rows(plan, own.chosen, all_leads=ALL_LEADS),
        made[0].shape[1],
        encoder=name,
        frame=plan.spec.seconds,
        leads=own.spec.leads,
    )


def _run(card: Card) -> str:
    """A hash of everything that the seeds of a pre-training share."""
    shared = (card.method, card.content, card.split_seed, card.leads, card.encoder, card.training)
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:12]


def _halves(frames: Embeddings, spec: FrameSpec) -> dict[str, float] | None:
    """Top-1 and top-10 match of first halves of recordings among second halves."""
    first, second = halves(frames)
    known = set(second.rows["recording"])
    first = first.where(np.array([one in known for one in first.rows["recording"]], bool))
    if len(first) < 2:
        return None
    index = PatientIndex.build(second, "exact")
    near = index.search(first.vectors, min(NEAREST, len(index)))
    patient = index.rows["patient"].to_numpy()
    same = patient[near.rows] == first.rows["patient"].to_numpy()[:, None]
    counts = dict(index.rows["patient"].value_counts().iter_rows())
    own = np.array([counts[one] for one in first.rows["patient"]])
    return _same_patient(same, own, len(index), spec)


def _same_patient(
    same: NDArray[np.bool_], own: NDArray[np.int64], among: int, frame: FrameSpec
) -> dict[str, float]:
    """same: (queries, up to 10) whether a neighbor matches; own: (queries,) how many could."""
    step = np.arange(min(NEAREST, among))
    # Probability that none of ten drawn without replacement matches.
    missed = np.maximum(among - own[:, None] - step, 0) / (among - step)
    return {
        "top1": float(same[:, 0].mean()),
        "top10": float(same.any(axis=1).mean()),
        "chance": float(own.mean() / among),
        "chance10": float(1 - missed.prod(axis=1).mean()),
        "queries": len(same),
        "among": among,
        "frame": frame.seconds,
    }


def _recordings(recordings: Embeddings, frame: FrameSpec) -> dict[str, float] | None:
    """Top-1 and top-10 match of recordings, of patients with several, among all others."""
    patient = recordings.rows["patient"].to_numpy()
    _, group, count = np.unique(patient, return_inverse=True, return_counts=True)
    several = count[group] > 1
    if not several.any():
        return None
    index = PatientIndex.build(recordings, "exact")
    k = min(NEAREST + 1, len(index))
    near = index.search(recordings.vectors[several], k).rows
    own = np.flatnonzero(several)[:, None]
    # The query itself is among them, nearly always first.
    others = np.array([line[line != me][: k - 1] for line, me in zip(near, own[:, 0], strict=True)])
    same = group[others] == group[own]
    return _same_patient(same, count[group[several]] - 1, len(index) - 1, frame)


def diagnosis(patients: Embeddings) -> dict[str, Any] | None:
    """Labels of the nearest other patients, among patients with a label."""
    labeled = patients.where(patients.rows["labels"].list.len().to_numpy() > 0)
    if len(labeled) <= NEAREST:
        return None
    index = PatientIndex.build(labeled, "exact")
    near = index.search(labeled, NEAREST).rows  # never the query's own patient
    names = sorted({label for labels in labeled.rows["labels"] for label in labels})
    target = np.zeros((len(labeled), len(names)), np.float32)
    for row, labels in enumerate(labeled.rows["labels"]):
        target[row, [names.index(label) for label in labels]] = 1
    shared = (target[near] * target[:, None]).any(axis=2)
    kinds, kind, count = np.unique(target, axis=0, return_inverse=True, return_counts=True)
    sharing = (kinds @ kinds.T > 0) @ count  # patients who share a label, oneself included
    base = (sharing[kind.ravel()] - 1) / (len(labeled) - 1)
    return {
        "precision": float(shared.mean()),
        "base_rate": float(base.mean()),
        "per_label": {
            name: {
                "precision": float(target[near[target[:, i] > 0], i].mean()),
                "base_rate": float((target[:, i].sum() - 1) / (len(labeled) - 1)),
                "patients": int(target[:, i].sum()),
            }
            for i, name in enumerate(names)
        },
        "queries": len(labeled),
    }

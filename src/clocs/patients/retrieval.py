"""Does the search work? Scores of retrieval on patients that the encoder has never seen.

Two questions. Is the nearest neighbour the same patient: of a recording's first half among all
second halves, and, where patients have several recordings, of a recording among all others? And do
the ten nearest other patients have the diagnosis, more often than chance? Knows no files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs.frames.positions import frame_count
from clocs.patients.embed import embed_levels, embed_store
from clocs.patients.embeddings import Embeddings
from clocs.patients.index import PatientIndex
from clocs.patients.unseen import Unseen, unseen
from clocs.recording import FrameSpec
from clocs.store.store import Store
from clocs.training.checkpoint import Card, Checkpoint

NEAREST = 10


@dataclass(frozen=True)
class SamePatient:
    """How often the nearest is the same patient's.

    Attributes:
        top1: Share of queries whose nearest is.
        top10: Share of queries with one among the ten nearest.
        chance: Of top1, for vectors drawn at random.
        chance10: Of top10, likewise.
        queries: How many.
        among: Vectors to choose from.
        frame: Seconds of the frames.
    """

    top1: float
    top10: float
    chance: float
    chance10: float
    queries: int
    among: int
    frame: float


@dataclass(frozen=True)
class Diagnosis:
    """How many of the ten nearest other patients share a label.

    Attributes:
        precision: Mean share among the ten nearest.
        base_rate: The same for ten drawn at random.
        per_label: For patients of each label: the share of neighbours with it, the share of all
            others with it, and how many patients.
        queries: Patients with a label.
    """

    precision: float
    base_rate: float
    per_label: dict[str, dict[str, float]]
    queries: int


@dataclass(frozen=True)
class Retrieval:
    """Scores of one encoder on one store.

    Attributes:
        method: Of the encoder.
        seed: Of the encoder.
        run: Equal for the seeds of one pre-training, and for no others.
        embedding_dim: E.
        pretrain: What it was pre-trained on; None where no data was seen.
        trained: How long, and at which learning rate.
        store: The dataset that it is scored on.
        split: The part.
        patients: How many, all of them unseen.
        patients_seen: Left out, because one of the encoders has seen them.
        copies: Recordings left out, because their very samples stand in the part before them.
        halves: First halves of recordings among second halves.
        recordings: Recordings of patients with several among all others.
        diagnosis: Labels of the nearest other patients.
    """

    method: str
    seed: int
    run: str
    embedding_dim: int
    pretrain: str | None
    trained: str
    store: str
    split: str
    patients: int
    patients_seen: int
    copies: int
    halves: SamePatient | None
    recordings: SamePatient | None
    diagnosis: Diagnosis | None

    def json(self) -> dict[str, Any]:
        return asdict(self)


def score_retrieval(
    checkpoints: Sequence[Checkpoint],
    store: Store,
    *,
    split: str = "test",
    split_seed: int = 0,
    leads: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Retrieval]:
    """Scores of each encoder, all on the same patients: those that none of them has seen.

    Args:
        checkpoints: The encoders.
        store: Prepared recordings.
        split: 'test', another part, or 'all'.
        split_seed: Of the split by patient.
        leads: By name; the first checkpoint's where the store has them, else the default.
        device: Where to encode.
        progress: Called with (encoders done, encoders in all).
    """
    usable = unseen(checkpoints, store, split=split, split_seed=split_seed)
    if leads is None and set(checkpoints[0].card.leads) <= set(store.leads):
        leads = checkpoints[0].card.leads
    found = []
    for done, checkpoint in enumerate(checkpoints):
        progress(done, len(checkpoints))
        found.append(_score(checkpoint, store, usable, split, leads, device))
    progress(len(checkpoints), len(checkpoints))
    return found


def _score(
    checkpoint: Checkpoint,
    store: Store,
    usable: Unseen,
    split: str,
    leads: Sequence[str] | None,
    device: torch.device | str,
) -> Retrieval:
    frame = store.manifest.frame
    made = embed_levels(
        checkpoint,
        store,
        levels=["frame", "recording", "patient"],
        only=usable.only,
        leads=leads,
        device=device,
    )
    spec = frame_with_halves(store)
    frames = made["frame"]
    if spec != frame:
        frames = embed_store(
            checkpoint,
            store,
            level="frame",
            spec=spec,
            only=usable.only,
            leads=leads,
            device=device,
        )
    card = checkpoint.card
    return Retrieval(
        method=card.method,
        seed=card.seed,
        run=_run(card),
        embedding_dim=checkpoint.encoder.embedding_dim,
        pretrain=card.dataset,
        trained=_trained(checkpoint),
        store=store.manifest.dataset,
        split=split,
        patients=usable.patients,
        patients_seen=usable.seen,
        copies=usable.copies,
        halves=_halves(frames, spec),
        recordings=_recordings(made["recording"], frame),
        diagnosis=diagnosis(made["patient"]),
    )


def _run(card: Card) -> str:
    """A hash of all that the seeds of a pre-training share."""
    shared = (card.method, card.content, card.split_seed, card.leads, card.encoder, card.training)
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:12]


def _trained(checkpoint: Checkpoint) -> str:
    """What tells two encoders of one method and seed apart."""
    done, settings = checkpoint.card.metrics.get("epochs"), checkpoint.card.training
    return f"{done} epochs, lr {settings['lr']:g}" if done and "lr" in settings else ""


def frame_with_halves(store: Store) -> FrameSpec:
    """The dataset's frame where most recordings hold two, else that of its segments."""
    manifest = store.manifest
    samples, rate = store.table["samples"].to_numpy(), store.table["rate"].to_numpy()
    two = frame_count(samples, rate, manifest.frame) >= 2
    return manifest.frame if two.mean() > 0.5 else manifest.segment_frame


def _halves(frames: Embeddings, spec: FrameSpec) -> SamePatient | None:
    """First halves of recordings ask among second halves; a middle frame belongs to neither."""
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
) -> SamePatient:
    """same: (queries, up to 10) whether a neighbour is right; own: (queries,) how many could be."""
    step = np.arange(min(NEAREST, among))
    # That none of ten drawn without replacement is right.
    missed = np.maximum(among - own[:, None] - step, 0) / (among - step)
    return SamePatient(
        top1=float(same[:, 0].mean()),
        top10=float(same.any(axis=1).mean()),
        chance=float(own.mean() / among),
        chance10=float(1 - missed.prod(axis=1).mean()),
        queries=len(same),
        among=among,
        frame=frame.seconds,
    )


def halves(frames: Embeddings) -> tuple[Embeddings, Embeddings]:
    """Frames -> recordings by their first and by their second halves."""
    place = pl.col("segment").rank("dense").over("dataset", "recording") - 1
    count = pl.col("segment").n_unique().over("dataset", "recording")
    both = frames.rows.select(place.alias("place"), count.alias("count"))
    at, total = both["place"].to_numpy(), both["count"].to_numpy()
    half = total // 2
    return (
        frames.where(at < half).to("recording"),
        frames.where((at >= total - half) & (half > 0)).to("recording"),
    )


def _recordings(recordings: Embeddings, frame: FrameSpec) -> SamePatient | None:
    """Recordings of patients with several ask among all other recordings."""
    patient = recordings.rows["patient"].to_numpy()
    _, group, count = np.unique(patient, return_inverse=True, return_counts=True)
    several = count[group] > 1
    if not several.any():
        return None
    index = PatientIndex.build(recordings, "exact")
    k = min(NEAREST + 1, len(index))
    near = index.search(recordings.vectors[several], k).rows
    own = np.flatnonzero(several)[:, None]
    # The query itself is there too, nearly always first.
    others = np.array([line[line != me][: k - 1] for line, me in zip(near, own[:, 0], strict=True)])
    same = group[others] == group[own]
    return _same_patient(same, count[group[several]] - 1, len(index) - 1, frame)


def diagnosis(patients: Embeddings) -> Diagnosis | None:
    """Labels of the nearest other patients; patients without a label neither ask nor answer."""
    labelled = patients.where(patients.rows["labels"].list.len().to_numpy() > 0)
    if len(labelled) <= NEAREST:
        return None
    index = PatientIndex.build(labelled, "exact")
    near = index.search(labelled, NEAREST).rows  # never the patient who asks
    names = sorted({label for labels in labelled.rows["labels"] for label in labels})
    target = np.zeros((len(labelled), len(names)), np.float32)
    for row, labels in enumerate(labelled.rows["labels"]):
        target[row, [names.index(label) for label in labels]] = 1
    shared = (target[near] * target[:, None]).any(axis=2)
    kinds, kind, count = np.unique(target, axis=0, return_inverse=True, return_counts=True)
    meets = (kinds @ kinds.T > 0) @ count  # patients, oneself too, who share a label
    base = (meets[kind.ravel()] - 1) / (len(labelled) - 1)
    return Diagnosis(
        precision=float(shared.mean()),
        base_rate=float(base.mean()),
        per_label={
            name: {
                "precision": float(target[near[target[:, i] > 0], i].mean()),
                "base_rate": float((target[:, i].sum() - 1) / (len(labelled) - 1)),
                "patients": int(target[:, i].sum()),
            }
            for i, name in enumerate(names)
        },
        queries=len(labelled),
    )

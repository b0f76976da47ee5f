"""`clocs.retrieval`: scores of the search on patients that the encoder has never seen.

Two questions. Is the nearest neighbor the same patient: for a recording's first half among all
second halves and, where patients have several recordings, for a recording among all others? And do
the ten nearest other patients share the diagnosis more often than chance? Where no patient has two
recordings, as in the paper's four datasets, the same patient means the same recording.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs._version import __version__
from clocs.errors import LeakError, SettingError
from clocs.frames.splits import PARTS, split_patients
from clocs.patients.embed import embed_levels, frame_with_halves, own_frame, store_leads
from clocs.patients.embeddings import Embeddings, halves
from clocs.patients.encode import frame_of
from clocs.patients.index import PatientIndex
from clocs.recording import FrameSpec
from clocs.store.store import Store, as_store
from clocs.training.card import Card
from clocs.training.checkpoint import Checkpoint, load_checkpoints, seen_by
from clocs.training.signals import pick_device

NEAREST = 10


@dataclass(frozen=True)
class Retrieval:
    """Scores of one encoder on one store.

    `halves` and `recordings` have the share of queries whose nearest neighbor is of the same
    patient (`top1`) or who have one among the ten nearest (`top10`), the same of random vectors
    (`chance`, `chance10`), the number of `queries`, the vectors searched (`among`) and the seconds
    of a `frame`.

    `diagnosis` has the mean share of the ten nearest other patients with a common label
    (`precision`), the same of ten random patients (`base_rate`), the number of labeled patients
    (`queries`) and, `per_label`, the share of neighbors with the label, that of all others, and the
    number of patients.
    """

    method: str
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
    """Scores of each encoder, all on the same frames of the same patients: those never seen.

    Args:
        checkpoints: Checkpoints, their files, or folders (then all seeds).
        store: Prepared recordings.
        split: Whose recordings: 'train', 'validation', 'test' or 'all'.
        split_seed: Random seed for the patient split.
        leads: By name; those the encoders were trained on by default.
        frame: Seconds of a frame. By default the dataset's, or that of its segments for halves of
            recordings that hold only one; an encoder does best on the frame of its training.
        device: 'cpu', 'cuda' …; the best one by default.
        progress: Called with (encoders done, encoders in total).
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
    scores = []
    for done, encoder in enumerate(encoders):
        progress(done, len(encoders))
        found = _scores(encoder, opened, only, chosen, frame, where)
        card, settings = encoder.card, encoder.card.training
        epochs = card.metrics.get("epochs")
        scores.append(
            Retrieval(
                method=card.method,
                seed=card.seed,
                run=_run(card),
                embedding_dim=encoder.encoder.embedding_dim,
                pretrain=card.dataset,
                trained=f"{epochs} epochs, lr {settings['lr']:g}"
                if epochs and "lr" in settings
                else "",
                store=opened.manifest.dataset,
                split=split,
                split_seed=split_seed,
                leads=chosen,
                frame_trained=card.frame_trained,
                one_recording_each=int(only.sum()) == counts["patients"],
                **counts,
                **found,
            )
        )
    progress(len(encoders), len(encoders))
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


def _scores(
    checkpoint: Checkpoint,
    store: Store,
    only: NDArray[np.bool_],
    leads: tuple[str, ...],
    seconds: float | None,
    device: torch.device,
) -> dict[str, Any]:
    """The frame, and the answers to the questions, as in `Retrieval`."""
    frame = own_frame(checkpoint, store) if seconds is None else frame_of(checkpoint, seconds)
    embedded = partial(embed_levels, checkpoint, store, only=only, leads=leads, device=device)
    made = embedded(levels=["frame", "recording", "patient"], spec=frame)
    spec = frame_with_halves(checkpoint, store) if seconds is None else frame
    frames = made["frame"] if spec == frame else embedded(levels=["frame"], spec=spec)["frame"]
    return {
        "frame": frame,
        "halves": _halves(frames, spec),
        "recordings": _recordings(made["recording"], frame),
        "diagnosis": diagnosis(made["patient"]),
    }


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

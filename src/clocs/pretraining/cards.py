"""A trained member to its checkpoint, with a card that says all one must know to use it."""

from __future__ import annotations

import math
import platform
from typing import Any

import numpy as np
import torch

from clocs.encoders.cnn import block_implementation
from clocs.frames.frames import SEVERAL, Frames
from clocs.pretraining.plan import Plan
from clocs.recording import FrameSpec
from clocs.training import leak_guard
from clocs.training.card import CENTERED, IN_MV, NORMALIZATION, STANDARDIZED, Card, TrainedOn
from clocs.training.checkpoint import Checkpoint
from clocs.training.loop import Trained

TRAINED_ON = (0, 1)  # training and validation: both have shaped the weights
_NO_KEYS = torch.zeros(0, dtype=torch.int64)


def finite(value: float) -> float | None:
    """The value, or None where it is NaN or infinite, which JSON cannot express."""
    return value if math.isfinite(value) else None


def make_card(
    frames: Frames,
    plan: Plan,
    member: int,
    *,
    frame: FrameSpec,
    device: torch.device,
    trained: Trained | None = None,
    init: Checkpoint | None = None,
    recording_hashes: bool = True,
    processes: int = 1,
    shared: bool = False,
) -> Card:
    """The card of one member, to be used with `frame`; without `trained`, as far as it is known.

    It was trained by so many `processes`, `shared` where these computed every batch together.

    Patients whom `init` has seen, from which its training started, this one has seen too.
    `recording_hashes` says whether it lists hashes of the recordings that it has seen.
    """
    encoder, saw_data = plan.encoder_for(frames), plan.row.sees_data
    hashed = recording_hashes and (init is None or init.card.recording_hashes)
    # one list of hashes needs one salt: the older one
    salt = init.card.salt if init else leak_guard.salt_of(frames)
    chain, seed = plan.members[member]
    return Card(
        method=plan.method,
        seed=seed,
        dataset=datasets_of(frames.dataset if saw_data else None, init),
        content=frames.content if saw_data else None,
        split_seed=frames.split_seed,
        trained_on=trained_on(frames if saw_data else None, init),
        leads=frames.leads,
        frame_trained=frames.spec,
        frame=frame,
        encoder={
            "name": encoder.name,
            "embedding_dim": encoder.embedding_dim,
            "samples": encoder.samples,
            "dropout": plan.dropout,
            **({"leads": list(encoder.leads)} if encoder.leads else {}),
        },
        labels=frames.labels,
        training=plan.for_card(frames.dataset, chain) | _about(init),
        metrics={
            "status": trained.status[member] if trained else "untrained",
            "epochs": trained.epochs if trained else 0,
            "best_epoch": trained.best_epoch[member] if trained else 0,
            "validation_loss": finite(trained.validation_loss[member]) if trained else None,
        },
        environment={
            "torch": torch.__version__,
            "device": device.type,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "kernel": "torch"
            if shared
            else block_implementation(device, getattr(torch, plan.precision)),
            **({"processes": processes} if processes > 1 else {}),
        },
        normalization=_normalization(plan),
        recording_hashes=hashed,
        salt=salt if hashed else "",
    )


def make_checkpoint(
    frames: Frames,
    plan: Plan,
    trained: Trained,
    member: int,
    *,
    init: Checkpoint | None = None,
    **options: Any,
) -> Checkpoint:
    """The checkpoint of one member; options as for `make_card`."""
    card = make_card(frames, plan, member, trained=trained, init=init, **options)
    hashed = card.recording_hashes
    splits = TRAINED_ON if plan.row.sees_data and hashed else ()
    recordings = leak_guard.hashed_recordings(frames, card.salt, splits)
    encoder, row = plan.encoder_for(frames), slice(member, member + 1)
    return Checkpoint(
        card=card,
        # the encoder's own: heads and a target network are dropped
        weights={name: trained.weights[name][row].cpu() for name in encoder.parameters(_NO_KEYS)},
        buffers={name: trained.buffers[name][row].cpu() for name in encoder.buffers(0)},
        recordings=np.union1d(recordings, init.recordings) if init and hashed else recordings,
    )


def _normalization(plan: Plan) -> str:
    """How the encoder's input is normalized, in words that the card has."""
    if plan.many_leads:
        return STANDARDIZED
    if plan.normalization == "none":
        return IN_MV
    return CENTERED if plan.row.views.normalized_first else NORMALIZATION


def datasets_of(dataset: str | None, init: Checkpoint | None) -> str | None:
    """The names of all datasets that have shaped the weights, in order."""
    names = SEVERAL.join(filter(None, (init.card.dataset if init else None, dataset)))
    return SEVERAL.join(dict.fromkeys(names.split(SEVERAL))) or None


def trained_on(frames: Frames | None, init: Checkpoint | None) -> tuple[TrainedOn, ...]:
    """All datasets and splits that have shaped the weights, in order."""
    own = () if frames is None else frames.dataset.split(SEVERAL)
    before = init.card.trained_on if init else ()
    new = (
        TrainedOn(name, frames.split_seed, frames.content, frames.folds.get(name))
        for name in own
        if frames
    )
    return tuple(dict.fromkeys((*before, *new)))


def _about(init: Checkpoint | None) -> dict[str, object]:
    if init is None:
        return {}
    card = init.card
    known = {"method": card.method, "dataset": card.dataset, "seed": card.seed}
    return {"init": known | {"weights_sha256": card.weights_sha256}}

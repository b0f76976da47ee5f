"""Embedding a store: a few thousand frames are in memory at a time, whatever its size.

The vectors are bit for bit those that `clocs.training.embed` makes of frames in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.frames.make import FramePlan, plan_frames
from clocs.frames.splits import PARTS
from clocs.patients.embeddings import Embeddings
from clocs.patients.encode import collect, encoded, leads_of
from clocs.patients.rows import Level, check_level, frame_rows
from clocs.recording import FrameSpec
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint


class StoreOptions(TypedDict, total=False):
    """The keyword arguments that `embed_levels` and `embed_store` share."""

    spec: FrameSpec | None
    leads: Sequence[str] | None
    split: str | None
    only: NDArray[np.bool_] | None
    split_seed: int
    device: torch.device | str
    progress: Callable[[int, int], None]


def embed_store(
    checkpoint: Checkpoint,
    store: Store,
    *,
    level: Level = "patient",
    **options: Unpack[StoreOptions],
) -> Embeddings:
    """Embeddings of a store's recordings, or of one part of them, at one level."""
    return embed_levels(checkpoint, store, levels=[level], **options)[level]


def embed_levels(
    checkpoint: Checkpoint,
    store: Store,
    *,
    levels: Sequence[Level],
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
    split: str | None = None,
    only: NDArray[np.bool_] | None = None,
    split_seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Level, Embeddings]:
    """Embeddings of a store's recordings, or of one part of them, at several levels in one pass.

    Args:
        checkpoint: The encoder.
        store: Prepared recordings.
        levels: What a vector represents.
        spec: The frame; the dataset's own where None.
        leads: Leads by name; those that the encoder was trained on where None.
        split: Only this part: 'train', 'validation' or 'test'.
        only: (recordings of the store,) which recordings may be used.
        split_seed: Random seed for the patient split.
        device: Device to encode on.
        progress: Called with (recordings done, recordings in total).
    """
    for level in levels:
        check_level(level)
    chosen_leads = store_leads(checkpoint, store, leads)
    plan = plan_frames(store, spec=spec, leads=chosen_leads, split_seed=split_seed)
    chosen = _recordings_of(plan, split, only)

    def windows() -> Iterator[NDArray[np.int16]]:
        kept = plan.kept
        first = np.concatenate(([0], np.cumsum(plan.counts)))
        for done, (i, values, _) in enumerate(plan.windows(chosen), start=1):
            own = values.transpose(1, 0, 2)[kept[first[i] : first[i + 1]]]
            yield own.reshape(-1, plan.spec.samples)
            progress(done, len(chosen))

    return collect(
        checkpoint,
        encoded(checkpoint, windows(), plan.spec.samples, device),
        frame_rows(plan, chosen),
        levels,
        spec=plan.spec,
        leads=plan.leads,
        problems=[] if split is not None or only is not None else _left_out(plan, len(chosen)),
    )


def store_leads(
    checkpoint: Checkpoint, store: Store, leads: Sequence[str] | None
) -> tuple[str, ...]:
    """The leads to embed, all of which the store has; SettingError names the missing ones."""
    wanted = leads_of(checkpoint, leads)
    missing = [lead for lead in wanted if lead not in store.leads]
    if missing and leads is None:
        raise SettingError(
            f"the encoder was trained on {', '.join(wanted)}, but {store.path} has no lead "
            f"{', '.join(missing)}; choose from {', '.join(store.leads)} with `leads`"
        )
    return wanted


def expect_different_stores(stores: Sequence[Store]) -> None:
    """SettingError where two stores have the same content."""
    seen: dict[str, Store] = {}
    for store in stores:
        first = seen.get(store.manifest.content_hash)
        if first is not None:
            same = "" if first.path == store.path else f", which equals {first.path},"
            raise SettingError(f"the store {store.path}{same} is given twice; give it once")
        seen[store.manifest.content_hash] = store


def _recordings_of(
    plan: FramePlan, split: str | None, only: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """Recordings with a frame, of one part or of all."""
    has = np.zeros(len(plan.rows), bool)
    has[plan.cuts.recording[plan.kept]] = True
    if split is not None:
        if split not in PARTS:
            raise SettingError(f"there is no split {split!r}; choose one of {', '.join(PARTS)}")
        has &= plan.split[plan.patient] == PARTS.index(split)
    if only is not None:
        has &= only[plan.rows]
    return np.flatnonzero(has)


def _left_out(plan: FramePlan, used: int) -> list[tuple[str, str]]:
    """How many recordings of the whole store have no vector, and why."""
    left = len(plan.store) - used
    reason = (
        f"{left} of {len(plan.store)} recordings have no frame of {plan.spec.seconds:g} s with all "
        f"of the leads {', '.join(plan.leads)} and are left out"
    )
    return [(plan.store.path.name, reason)] if left else []

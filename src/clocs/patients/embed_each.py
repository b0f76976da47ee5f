"""One vector per recording, or why it has none: small batches of recordings, without their rows.

The vectors are those of `embed_recordings`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError
from clocs.frames.signals import TOGETHER
from clocs.patients.embed_files import FileWindows, cut_alike, shape_of
from clocs.patients.encode import (
    encoded,
    fitted,
    known_leads,
    leads_of,
    placed,
)
from clocs.patients.unit_vectors import UnitMeans
from clocs.recording import FrameSpec, Recording
from clocs.training.checkpoint import Checkpoint
from clocs.workers import group_runs


def cut_each(
    checkpoint: Checkpoint,
    recordings: Iterable[Recording],
    *,
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
) -> list[FileWindows | ClocsError]:
    """Each recording as the encoder sees it; or why it has no window.

    Args:
        checkpoint: The encoder.
        recordings: With distinct or equal names, in any mixture of rates, leads and lengths.
        spec: The frame; the checkpoint's own by default.
        leads: Those to use, of which each recording needs one; the checkpoint's by default.
    """
    checkpoint, frame = _fitted(checkpoint, spec)
    wanted, known = leads_of(checkpoint, leads), known_leads(checkpoint)
    made: list[FileWindows | ClocsError] = []
    for run in group_runs((placed(one, known, wanted) for one in recordings), shape_of, TOGETHER):
        for one in cut_alike(list(run), frame, wanted, known):
            made.append(one[1] if isinstance(one, tuple) else one)
    return made


def embed_each(
    checkpoint: Checkpoint,
    recordings: Iterable[Recording],
    *,
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
) -> list[NDArray[np.float32] | ClocsError]:
    """The (dim,) unit vector of each recording, or why it has none; arguments as of `cut_each`."""
    made = cut_each(checkpoint, recordings, spec=spec, leads=leads)
    return embed_cut(checkpoint, made, spec=spec)


def embed_cut(
    checkpoint: Checkpoint,
    made: Sequence[FileWindows | ClocsError],
    *,
    spec: FrameSpec | None = None,
) -> list[NDArray[np.float32] | ClocsError]:
    """The same of what `cut_each` has made, with the same frame."""
    checkpoint, frame = _fitted(checkpoint, spec)
    usable = [one.windows for one in made if not isinstance(one, ClocsError)]
    counts = [len(one[0] if isinstance(one, tuple) else one) for one in usable]
    owner = np.repeat(np.arange(len(usable)), counts)
    means = UnitMeans(owner, len(usable), checkpoint.encoder.embedding_dim)
    for part in encoded(checkpoint, usable, frame.samples):
        means.add(part)
    found = iter(zip(means.vectors, means.nonzero, strict=True))
    results: list[NDArray[np.float32] | ClocsError] = []
    for windows in made:
        if isinstance(windows, ClocsError):
            results.append(windows)
            continue
        vector, is_nonzero = next(found)
        zero = SettingError("its embedding is a zero vector, which has no direction")
        results.append(vector if is_nonzero else zero)
    return results


def _fitted(checkpoint: Checkpoint, spec: FrameSpec | None) -> tuple[Checkpoint, FrameSpec]:
    trained = checkpoint.card.frame
    return fitted(checkpoint, replace(spec or trained, filters=trained.filters))

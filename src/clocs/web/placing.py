"""Placing: a visitor's recording -> its embedding, by the checkpoint's own frame and leads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clocs.checkpoint import Checkpoint
from clocs.errors import SettingError
from clocs.recording import Recording


def embed_upload(
    checkpoint: Checkpoint, recording: Recording
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """(dim,) unit vector, and what the visitor should know.

    Leads that the encoder was not trained on are left out; where it has none of them, all its
    leads are used (the encoder sees one lead at a time) and the notes say so.
    """
    from clocs.patients.embedding import embed_recordings

    card = checkpoint.card
    common = [lead for lead in card.leads if lead in recording.leads]
    notes = []
    if not common:
        notes.append(
            f"It has none of the leads that the encoder was trained on ({', '.join(card.leads)}); "
            f"it is placed by {', '.join(recording.leads)}, so take its place with care."
        )
    elif len(common) < len(card.leads):
        notes.append(f"It is placed by {', '.join(common)} alone: it has no other trained lead.")
    if recording.unit != "mV":
        notes.append("Its gain is unknown: amplitudes are shown in arbitrary units, not mV.")
    made = embed_recordings(
        checkpoint, [recording], level="recording", leads=common or recording.leads
    )
    if not len(made):
        raise SettingError("its embedding is zero, so that it has no direction")
    return made.vectors[0], tuple(notes)

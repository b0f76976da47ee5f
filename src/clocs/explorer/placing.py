"""Placing: a visitor's recording -> its embedding, by the map's frame and the encoder's leads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.recording import Recording
from clocs.training.checkpoint import Checkpoint


def embed_upload(
    checkpoint: Checkpoint, recording: Recording, frame: float | None = None
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """(dim,) unit vector, and what the visitor should know.

    It is cut into frames of so many seconds, those of the patients on the map.

    Leads that the encoder was not trained on are left out; where it has none of them, all its
    leads are used (the encoder sees one lead at a time) and the notes say so.
    """
    from clocs.patients.embed import embed_recordings, frame_of

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
        checkpoint,
        [recording],
        level="recording",
        spec=frame_of(checkpoint, frame),
        leads=common or recording.leads,
    )
    if made.problems:
        raise SettingError(made.problems[0][1])
    if not len(made):
        raise SettingError("its embedding is zero, so that it has no direction")
    return made.vectors[0], tuple(notes)

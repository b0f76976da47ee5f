"""A recording as a module of `to_module`, or an exported file, takes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clocs.frames.positions import bridged
from clocs.frames.signals import cut_windows
from clocs.patients.embed_files import with_leads
from clocs.patients.encode import known_leads, leads_of, placed
from clocs.recording import Recording
from clocs.training.checkpoint import Checkpoint


def module_input(
    checkpoint: Checkpoint, recording: Recording, leads: Sequence[str] | None = None
) -> NDArray[np.float32]:
    """(leads, samples) in mV at the encoder's rate, in whole frames, nan where missing.

    Resampled, filtered and rounded as the recording is before it is embedded. Of an encoder of
    many leads, these are its own, in its order; else those of its card that the recording has.

    Args:
        checkpoint: The encoder; of a classifier, its first.
        recording: At any rate, with any leads.
        leads: Which ones, in place of those of the card; for an encoder of one lead at a time.

    Raises:
        ClocsError: The recording is too short, has none of the leads, or no frame with a signal.
    """
    spec, known = checkpoint.card.frame, known_leads(checkpoint)
    wanted = known or leads_of(checkpoint, leads)
    recording = placed(recording, known, wanted)
    own, present = with_leads(recording, spec, wanted)
    values, step = cut_windows(
        bridged(own.digital, own.leads, own.gaps)[None],
        own.gain[None],
        own.baseline[None].astype(np.int64),
        own.rate,
        len(present),
        spec,
        "recording",
    )
    signal: NDArray[np.float32] = (values[0] * step[0, ..., None]).astype(np.float32)
    signal[~present.T] = np.nan
    signal = signal.reshape(len(own.leads), -1)
    if not known:
        return signal
    placed_in = np.full((len(known), signal.shape[1]), np.nan, np.float32)
    placed_in[[known.index(lead) for lead in own.leads]] = signal
    return placed_in

"""Files of the Cardiology dataset (iRhythm): raw samples, and rhythm episodes as JSON.

Little-endian int16 at 200 Hz, one lead, without a header; the gain is unpublished, so the unit is
'adu' and never mV. Nothing in such a file tells that it is an ECG, so only the dataset reads it:
this module declares no `FileFormat`.
"""

from __future__ import annotations

import json

import numpy as np

from clocs.errors import UnusableError
from clocs.recording import UNNAMED_LEAD, Episode, Recording

RATE_HZ = 200.0
LEAD = UNNAMED_LEAD


def read_ecg(data: bytes, *, name: str) -> Recording:
    """Decode one `.ecg` file; patient and id are `name`.

    Raises:
        UnusableError: truncated.
    """
    if not data or len(data) % 2:
        detail = f"{name} has {len(data)} bytes, not a whole number of 16-bit samples"
        raise UnusableError("truncated", detail)
    return Recording(
        id=name,
        patient=name,
        leads=(LEAD,),
        rate=RATE_HZ,
        digital=np.frombuffer(data, "<i2").astype(np.int16).reshape(1, -1),
        gain=np.ones(1),
        baseline=np.zeros(1, np.int32),
        unit="adu",
    )


def read_episodes(data: bytes, *, name: str) -> tuple[Episode, ...]:
    """Episodes of an `.episodes.json` file, by their start; onset is 1-based, offset inclusive.

    Raises:
        UnusableError: unreadable.
    """
    try:
        rows = json.loads(data)["episodes"]
        episodes = [
            Episode(int(row["onset"]) - 1, int(row["offset"]), str(row["rhythm_name"]))
            for row in rows
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        detail = f"{name} is not a list of episodes with onset, offset and rhythm_name"
        raise UnusableError("unreadable", detail) from None
    for episode in episodes:
        if not 0 <= episode.start < episode.stop:
            detail = f"{name} has an episode from sample {episode.start + 1} to {episode.stop}"
            raise UnusableError("unreadable", detail)
    return tuple(sorted(episodes, key=lambda episode: (episode.start, episode.stop)))

"""Describing: what a page is told of a recording, and its samples. Knows nothing about patients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clocs.explorer.packing import pack
from clocs.recording import Recording

LONGEST = 600.0  # seconds of signal in one answer


def described(leads: Sequence[str], samples: int, rate: float, unit: str) -> dict[str, Any]:
    """The facts of a recording, as the endpoints give them."""
    return {"leads": list(leads), "seconds": samples / rate, "rate": rate, "unit": unit}


def packed_signal(recording: Recording, start: float, seconds: float, lead: str | None) -> bytes:
    """Digital samples with gain and baseline; the page makes mV of them, or not, by their unit."""
    if lead is not None:
        recording = recording.select([lead])
    first = min(recording.samples, round(start * recording.rate))
    last = min(recording.samples, first + round(min(seconds, LONGEST) * recording.rate))
    facts = {
        "leads": recording.leads,
        "rate": recording.rate,
        "unit": recording.unit,
        "gain": recording.gain.tolist(),
        "baseline": recording.baseline.tolist(),
        "start": first / recording.rate,
        "seconds": recording.seconds,
    }
    return pack(facts, {"digital": recording.digital[:, first:last]})

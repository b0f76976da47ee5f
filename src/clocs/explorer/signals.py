"""Recordings as the page gets them: facts in JSON, and packed samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clocs.recording import Recording
from clocs.web.packing import pack

LONGEST = 600.0  # seconds of signal in one response
NO_VALUE = -32768  # in a gap; `static/api.js` draws nothing there


def recording_facts(leads: Sequence[str], samples: int, rate: float, unit: str) -> dict[str, Any]:
    return {"leads": list(leads), "seconds": samples / rate, "rate": rate, "unit": unit}


def packed_signal(recording: Recording, start: float, seconds: float, lead: str | None) -> bytes:
    """Digital samples with gain and baseline, from which the page computes amplitudes.

    Limb leads that were not recorded are derived from I and II.
    """
    recording = recording.with_limb_leads() if lead is None else recording.select([lead])
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
    digital = recording.digital[:, first:last]
    if recording.gaps:
        digital = digital.copy()
        for gap in recording.gaps:
            own = slice(max(gap.start - first, 0), max(gap.stop - first, 0))
            digital[recording.leads.index(gap.lead), own] = NO_VALUE
    return pack(facts, {"digital": digital})

"""The average beat of a group, lead by lead: each patient counts once, however many beats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError
from clocs.explorer.group_comparison import Z
from clocs.patients.average_beat import average_beat
from clocs.recording import STANDARD_LEADS, Recording

if TYPE_CHECKING:
    from clocs.explorer.session import Session

MAX = 100  # patients: the first by pseudonym, which is a random order
BEFORE, AFTER = 0.25, 0.45  # s around the R peak
RATE = 250  # Hz
_SECONDS = 30  # of a long recording
_TIMES = np.arange(-round(BEFORE * RATE), round(AFTER * RATE) + 1) / RATE


def average_beats(session: Session, codes: Sequence[str]) -> dict[str, Any]:
    """Mean beats over patients' first recordings, with the mean's pointwise 95 % interval.

    In mV; if no recording has a known gain, in arbitrary units.
    """
    found: dict[str, dict[str, list[NDArray[np.float64]]]] = defaultdict(lambda: defaultdict(list))
    chosen = sorted(set(codes))[:MAX]
    used: dict[str, int] = defaultdict(int)
    for code in chosen:
        session.row(code)  # an unknown one is an error
        try:
            recording = session.recording(code, 0)
        except ClocsError:  # its signal is not here
            continue
        beats = beats_of(recording)
        used[recording.unit] += bool(beats)
        for lead, beat in beats.items():
            found[recording.unit][lead].append(beat)
    unit = "mV" if "mV" in found else next(iter(found), "mV")
    order = {lead: i for i, lead in enumerate(STANDARD_LEADS)}
    leads = sorted(found[unit], key=lambda lead: (order.get(lead, len(order)), lead))
    return {
        "unit": unit,
        "rate": RATE,
        "start": float(_TIMES[0]),
        "patients": used[unit],
        "of": len(set(codes)),
        "leads": [_averaged(lead, np.array(found[unit][lead])) for lead in leads],
    }


def beats_of(recording: Recording) -> dict[str, NDArray[np.float64]]:
    """(samples,) the mean beat of each lead, its own median at zero; none without two beats."""
    rate = recording.rate
    part = recording.between(0, min(recording.samples, round(_SECONDS * rate)))
    own = average_beat(part)
    if own is None:
        return {}
    signal, peaks = part.signal, own.peaks / rate
    whole = peaks[(peaks > BEFORE) & (peaks < part.seconds - AFTER)]
    if len(whole) < 2:
        return {}
    at, moments = whole[:, None] + _TIMES, np.arange(part.samples) / rate
    beats = {}
    for lead, trace in zip(part.leads, signal, strict=True):
        windows = np.interp(at, moments, trace)  # nan where a gap is
        windows = windows[np.isfinite(windows).all(axis=1)]
        if len(windows) and np.ptp(windows) > 0:
            mean = windows.mean(axis=0)
            beats[lead] = mean - np.median(mean)
    return beats


def _averaged(lead: str, beats: NDArray[np.float64]) -> dict[str, Any]:
    mean = beats.mean(axis=0)
    reach = Z * beats.std(axis=0, ddof=1) / sqrt(len(beats)) if len(beats) > 1 else 0 * mean
    return {
        "lead": lead,
        "patients": len(beats),
        "mean": mean.round(4).tolist(),
        "low": (mean - reach).round(4).tolist(),
        "high": (mean + reach).round(4).tolist(),
    }

"""Frames that take less room in a file: coarser steps, and no window that is not used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clocs.errors import SettingError
from clocs.frames.frames import Frames

_TOGETHER = 4096  # frames at once


def with_step(frames: Frames, step: float) -> Frames:
    """The same frames in steps of so many mV, or coarser ones where 16 bits need it.

    Args:
        frames: In mV, or in the unit that their scale has.
        step: The size of a step in that unit.
    """
    if not step > 0:
        raise SettingError(f"`step` must be above 0, not {step:g}")
    made = frames.packed()
    scale = np.where(made.present, np.float32(step), np.float32(np.nan))
    windows = made.signals.reshape(-1, made.spec.samples)  # packed: one after another
    for lead in range(len(made.leads)):
        here = np.flatnonzero(made.present[:, lead])
        for first in range(0, len(here), _TOGETHER):
            rows = here[first : first + _TOGETHER]
            values = made.windows(rows, lead).astype(np.float64)
            own = np.maximum(step, np.abs(values).max(axis=1) / 32767)
            scale[rows, lead] = own
            windows[made.starts[rows, lead] // made.spec.samples] = np.rint(values / own[:, None])
    return replace(made, scale=scale)

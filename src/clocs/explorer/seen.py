"""Whether a classifier has seen a patient: what it then predicts says little about new ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from clocs.files import digest as digest_of
from clocs.frames.splits import PARTS, parts_of
from clocs.recording import Recording

if TYPE_CHECKING:
    from clocs.training.checkpoint import Checkpoint

TRAIN, VALIDATION, EITHER, COPY = (*PARTS[:2], "either", "copy")
_SAID = {
    TRAIN: "It was trained on this patient",
    VALIDATION: "It was tuned on this patient, who is in its validation part",
    EITHER: "It was trained or tuned on this patient",
    COPY: "It was trained or tuned on a recording with the same samples",
}


class Source(NamedTuple):
    """Whose recording it is; an upload is nobody's, and known by its samples alone."""

    recording: Recording
    dataset: str = ""
    patient: str = ""


def part_seen(encoders: Iterable[Checkpoint], source: Source) -> str | None:
    """The part that the patient was in when these were trained; None where they never saw them."""
    from clocs.training.leak_guard import seen_by

    keyed = [f"{source.dataset}:{source.patient}"]
    found: set[str] = set()
    digests = np.array([digest_of(np.ascontiguousarray(source.recording.digital))], np.uint64)
    fold = source.recording.fold
    for encoder in encoders:
        for one in encoder.card.trained_on:
            if not source.patient or one.dataset != source.dataset:
                continue
            if one.folds is None:
                part = int(parts_of(keyed, one.split_seed)[0])
            elif fold is not None:
                part = int(one.folds.parts(keyed, [fold], one.split_seed)[0])
            else:
                continue
            found.add(PARTS[part])
        folds = None if fold is None else [fold]
        if seen_by(encoder, source.dataset, [source.patient], digests, folds)[0]:
            found.add(EITHER if source.patient else COPY)
    return next((part for part in (TRAIN, VALIDATION, EITHER, COPY) if part in found), None)


def seen_sentence(part: str | None, *, show_ids: bool) -> str | None:
    """For the visitor; training and validation are told apart only where IDs are shown.

    A patient's part is computed from the ID, so that it says something about it; that it was one
    of the two has to be said wherever there is a prediction.
    """
    if part not in _SAID:
        return None
    said = _SAID[part if show_ids or part == COPY else EITHER]
    return f"{said}, so this says little about how it does on new patients."

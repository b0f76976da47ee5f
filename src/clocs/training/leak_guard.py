"""The leak guard: no patient that an encoder was trained on may be in its test set.

A checkpoint carries salted hashes of its training and validation patients (keyed dataset:patient)
and of the contents of their recordings. The salt comes from the store's content, so that equal
runs write equal files, and that one list of hashed IDs does not unlock every checkpoint. Anyone
who holds the IDs can still test them: hashes hide patients from view, not from a search.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from clocs.errors import LeakError
from clocs.frames.frames import SEVERAL, Frames
from clocs.frames.splits import PARTS, keys_of
from clocs.training.checkpoint import Checkpoint

TEST = PARTS.index("test")


def salt_of(frames: Frames) -> str:
    """The salt for checkpoints trained on these frames."""
    return hashlib.sha256(f"clocs salt:{frames.content}".encode()).hexdigest()[:32]


def hashed_patients(frames: Frames, salt: str, splits: Iterable[int]) -> NDArray[np.uint64]:
    """Sorted hashes of the patients of these parts."""
    patients = frames.keyed(frames.patients_of(*splits))
    return np.sort(keys_of(f"{salt}:{patient}" for patient in patients))


def hashed_recordings(frames: Frames, salt: str, splits: Iterable[int]) -> NDArray[np.uint64]:
    """Sorted hashes of the contents of the recordings of these parts."""
    rows = np.unique(frames.recording[np.isin(frames.split, list(splits))])
    return np.sort(keys_of(f"{salt}:content:{frames.digests[row]}" for row in rows))


def check_no_leak(checkpoint: Checkpoint, frames: Frames) -> None:
    """Raise LeakError where the encoder has seen a test patient, or a test recording elsewhere.

    Copies of a recording within one dataset are no error: see `copies_of_seen`.
    """
    card = checkpoint.card
    found = np.intersect1d(hashed_patients(frames, card.salt, [TEST]), checkpoint.patients)
    if len(found):
        raise LeakError(
            f"{len(found)} of the test patients of {frames.dataset} were used to train or validate "
            f"this encoder (method {card.method}, split seed {card.split_seed}); evaluate it with "
            f"a `split_seed` of {card.split_seed}, or train one on another split"
        )
    found = np.intersect1d(hashed_recordings(frames, card.salt, [TEST]), checkpoint.recordings)
    if len(found) and frames.dataset not in (card.dataset or "").split(SEVERAL):
        raise LeakError(
            f"{len(found)} of the test recordings of {frames.dataset} have the same content as "
            f"recordings that this encoder was trained on ({card.dataset}); remove them from one "
            "of the two datasets and prepare it again"
        )


def copies_of_seen(checkpoints: Sequence[Checkpoint], frames: Frames) -> NDArray[np.bool_]:
    """(recordings,) test recordings whose samples are also in another part, or were trained on.

    Published datasets contain some recordings twice, under two names and so as two patients;
    `clocs info` counts them. They are left out of the test part, and counted there too.
    """
    test = np.zeros(len(frames.digests), bool)
    test[frames.recording[frames.split == TEST]] = True
    seen = test & np.isin(frames.digests, frames.digests[~test])
    for checkpoint in checkpoints:
        salt = checkpoint.card.salt
        own = keys_of(f"{salt}:content:{digest}" for digest in frames.digests[test])
        seen[test] |= np.isin(own, checkpoint.recordings)
    return seen


def seen_by(
    checkpoint: Checkpoint,
    dataset: str,
    patients: Sequence[str],
    digests: NDArray[np.uint64],
) -> NDArray[np.bool_]:
    """(recordings,) whether the encoder was trained or validated on its patient or its samples.

    patients, digests: (recordings,) the patient and the content key of each.
    """
    salt = checkpoint.card.salt
    people = keys_of(f"{salt}:{dataset}:{patient}" for patient in patients)
    contents = keys_of(f"{salt}:content:{digest}" for digest in digests)
    return np.isin(people, checkpoint.patients) | np.isin(contents, checkpoint.recordings)

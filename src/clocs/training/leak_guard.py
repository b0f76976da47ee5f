"""The leak guard: no patient that an encoder was trained on may be in its test set.

Patients: a card names the datasets and split seeds that have shaped the weights, and a patient's
part is a hash of dataset, split seed and ID. So the guard knows on whose side a patient was, and
a checkpoint carries neither IDs nor hashes of them, which anyone with a list of IDs could guess.
Where official folds were the split, the card names the folds that were not trained on, and the
store at hand says who is in them; where it does not, the hashes of recordings have to tell.

Recordings: a checkpoint carries salted hashes of the contents of its recordings, to find copies
under another ID or in another dataset. The salt comes from the store's content, so that equal runs
write equal files. Only someone who holds a recording can test whether it was used; where even that
is too much, the hashes can be left out.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsWarning, LeakError, SettingError
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS, keys_of, parts_of
from clocs.training.card import Card, TrainedOn
from clocs.training.checkpoint import Checkpoint

TEST = PARTS.index("test")


def salt_of(frames: Frames) -> str:
    """The salt for checkpoints trained on these frames."""
    return hashlib.sha256(f"clocs salt:{frames.content}".encode()).hexdigest()[:32]


def check_parts(frames: Frames) -> None:
    """Refuse frames to train on whose parts are not those of their split seed.

    Raises:
        SettingError: The guard could not tell later who was trained on.
    """
    if not np.array_equal(frames.with_split_seed(frames.split_seed).split, frames.split):
        raise SettingError(
            "these frames are not split by their `split_seed`, so the leak guard could not tell "
            "on whom an encoder was trained; split them with `Frames.with_split_seed`"
        )


def hashed_recordings(frames: Frames, salt: str, splits: Iterable[int]) -> NDArray[np.uint64]:
    """Sorted hashes of the contents of the recordings of these parts."""
    rows = np.unique(frames.recording[np.isin(frames.split, list(splits))])
    return np.sort(_hashed(salt, frames.digests[rows]))


def check_no_leak(checkpoint: Checkpoint, frames: Frames) -> None:
    """Raise LeakError where the encoder has seen a test patient, or a test recording elsewhere.

    Copies of a recording within one dataset are no error: see `copies_of_seen`.
    """
    card = checkpoint.card
    test = np.unique(frames.patient[frames.split == TEST])
    for one in card.trained_on:
        found = _seen_patients(checkpoint, one, frames)[test].sum()
        if found:
            how = f"split seed {one.split_seed}" if one.folds is None else str(one.folds)
            split = "'hash'" if one.folds is None else "the same folds"
            raise LeakError(
                f"{found} of the test patients of {frames.dataset} belong to the parts that this "
                f"encoder was trained and validated on (method {card.method}, {how}); evaluate it "
                f"with a `split_seed` of {one.split_seed}"
                + (f" and {split} as `split`" if one.folds or frames.folds else "")
                + ", or train one on another split"
            )
    if not _can_find_copies(card, frames):
        warnings.warn(
            f"a checkpoint of {card.method} carries no hashes of its recordings: copies of them "
            f"among the test recordings of {frames.dataset} could not be found",
            ClocsWarning,
            stacklevel=2,
        )
    hashes = hashed_recordings(frames, card.salt, [TEST])
    copies = np.isin(hashes, checkpoint.recordings).sum()
    if copies and frames.dataset not in {one.dataset for one in card.trained_on}:
        raise LeakError(
            f"{copies} of the test recordings of {frames.dataset} have the same content as "
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
    salts = {checkpoint.card.salt for checkpoint in checkpoints}
    hashed = {salt: _hashed(salt, frames.digests[test]) for salt in salts}
    for checkpoint in checkpoints:
        seen[test] |= np.isin(hashed[checkpoint.card.salt], checkpoint.recordings)
    return seen


def seen_by(
    checkpoint: Checkpoint,
    dataset: str,
    patients: Sequence[str],
    digests: NDArray[np.uint64],
    folds: Sequence[str] | None = None,
) -> NDArray[np.bool_]:
    """(recordings,) whether the encoder was trained or validated on its patient or its samples.

    A patient counts as seen who belongs to a part that it was trained or validated on.

    patients, digests, folds: (recordings,) the patient, the content key and the fold of each.
    """
    keyed = [f"{dataset}:{patient}" for patient in patients]
    seen = np.isin(_hashed(checkpoint.card.salt, digests), checkpoint.recordings)
    for one in checkpoint.card.trained_on:
        seen |= _seen_in(one, keyed, folds)
    return seen


def seen_patients(checkpoint: Checkpoint, frames: Frames) -> NDArray[np.bool_]:
    """(patients,) whether the encoder was trained or validated on them or a recording of theirs."""
    seen = _owners_of_known_recordings(checkpoint, frames)
    for one in checkpoint.card.trained_on:
        seen |= _seen_patients(checkpoint, one, frames)
    return seen


def _seen_patients(checkpoint: Checkpoint, one: TrainedOn, frames: Frames) -> NDArray[np.bool_]:
    """(patients,) of these frames, whether each was on the side that was trained on."""
    keyed = frames.keyed(frames.patient_ids)
    if one.folds is None or frames.fold:
        seen = _seen_in(one, keyed, frames.fold or None)
    elif checkpoint.card.recording_hashes:  # these frames do not know the folds
        seen = _owners_of_known_recordings(checkpoint, frames) & _of_dataset(one, keyed)
    else:
        seen = _of_dataset(one, keyed)
    return seen


def _owners_of_known_recordings(checkpoint: Checkpoint, frames: Frames) -> NDArray[np.bool_]:
    """(patients,) whether a recording of theirs has the content of one that was trained on."""
    known = np.isin(_hashed(checkpoint.card.salt, frames.digests), checkpoint.recordings)
    owners = np.zeros(len(frames.patient_ids), np.bool_)
    owners[frames.patient[known[frames.recording]]] = True
    return owners


def _seen_in(
    one: TrainedOn, patients: Sequence[str], folds: Sequence[str] | None
) -> NDArray[np.bool_]:
    """(patients,) whether each, as "dataset:patient", is in its training or validation part."""
    own = _of_dataset(one, patients)
    if one.folds is None:
        parts: NDArray[np.int8] = parts_of(patients, one.split_seed)
    elif folds is None:  # any patient of that dataset could have been this one
        return own
    else:
        parts = one.folds.parts(patients, folds, one.split_seed)
    return np.asarray(own & (parts != TEST), np.bool_)


def _of_dataset(one: TrainedOn, patients: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([patient.startswith(f"{one.dataset}:") for patient in patients], np.bool_)


def _can_find_copies(card: Card, frames: Frames) -> bool:
    """Whether hashes are there; of the same store none are needed, as it holds both parts."""
    return card.recording_hashes or all(one.content == frames.content for one in card.trained_on)


def _hashed(salt: str, digests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return keys_of(f"{salt}:content:{digest}" for digest in digests)

"""`clocs.finetune`: encoders and a labeled store to a classifier, with thresholds and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from clocs.datasets.download import PUBLICATIONS
from clocs.errors import SettingError
from clocs.evaluation.evaluate import frames_for
from clocs.evaluation.groups import score_groups
from clocs.evaluation.labeled_rows import By
from clocs.evaluation.protocols import find_protocol
from clocs.evaluation.recording_vectors import RecordingVectors
from clocs.evaluation.resampling import check_resamples
from clocs.evaluation.training_options import PROTOCOL_OF_HEAD
from clocs.frames.folds import split_of
from clocs.models.assembled import assembled, calibrated
from clocs.models.classifier import Classifier, check_shared, is_classifier, load_classifier
from clocs.models.classifier_card import INTENDED_USE
from clocs.models.classifier_scores import scores_on_test
from clocs.models.finetune_folder import Work
from clocs.registry import chosen_options
from clocs.store.store import Store, as_store
from clocs.training import leak_guard
from clocs.training.checkpoint import Checkpoint, as_checkpoints
from clocs.training.device import pick_device
from clocs.training.loop import SAVE_EVERY, Epoch
from clocs.training.settings import Settings, settings_in, takes_settings
from clocs.training.vector_cache import StoreVectors

Head = Literal["linear", "whole"]
Members = Literal["best", "ensemble"]


@takes_settings
def finetune(
    checkpoint: Checkpoint | Sequence[Checkpoint] | Path | str,
    store: Store | Path | str,
    *,
    out: Path | str | None = None,
    head: Head = "linear",
    seeds: int | None = None,
    members: Members = "best",
    class_weights: bool = False,
    fraction: float = 1.0,
    by: By = "recording",
    labels: int | None = None,
    leads: Sequence[str] | None = None,
    settings: Settings | None = None,
    split: Literal["hash", "folds"] | None = None,
    test_folds: Sequence[str] | None = None,
    validation_folds: Sequence[str] | None = None,
    split_seed: int = 0,
    half: bool = False,
    shared: bool = False,
    recording_hashes: bool = True,
    name: str | None = None,
    license: str | None = None,  # noqa: A002 (its name everywhere)
    citation: str | None = None,
    intended_use: str = INTENDED_USE,
    resamples: int = 2000,
    resume: bool = False,
    save_every: float = SAVE_EVERY,
    device: str | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    **options: Any,
) -> Classifier:
    """Train a classifier of recordings on top of encoders, and score it on test patients.

    Weights are learned from training patients; the temperature, thresholds and, of several seeds,
    the best are chosen on validation patients; the scores in the card are of test patients.

    Args:
        checkpoint: An encoder, several of one method, a file, or a folder (all its seeds).
        store: Labeled recordings.
        out: The file to write, ….safetensors; nothing is written where None. An interrupted
            training is kept beside it, in a folder that ends in '.training'.
        head: 'linear' leaves the encoder as it is and solves a linear layer on top (the protocol
            'linear-converged'); 'whole' trains both together (the protocol 'finetune').
        seeds: Train this many: the first of a folder, or as many from one encoder, which differ in
            the start of the layer and the order of batches. All that were given by default.
        members: Of several seeds, keep the 'best' by its AUC on validation patients, or all of
            them as an 'ensemble', whose logits are averaged.
        class_weights: Whether rare classes count as much as common ones.
        fraction: The labeled fraction of the training part.
        by: Whether `fraction` counts recordings or patients.
        labels: The number of labeled recordings, or of patients, instead of `fraction`.
        leads: As for `clocs.evaluate`.
        epochs, patience, batch_size, lr, keep: How long and how fast to train, and which weights to
            keep; described by `clocs.training.settings.Settings`, with their defaults.
        optimizer, weight_decay, schedule, warm_up, clip, average: The optimizer; described there.
        settings: All of these as one object, in place of them.
        split: As for `clocs.evaluate`, like the next three.
        test_folds: The folds to test on.
        validation_folds: The folds to validate on.
        split_seed: Random seed for the patient split.
        half: Round the encoders' weights to float16, for a file of half the size; temperature,
            thresholds and scores are then those of the rounded weights.
        shared: Name the encoders, which must be in the package, in the file rather than copy them:
            it is small, and is read by every clocs that has them. Only for a 'linear' head.
        recording_hashes: Whether the file lists salted hashes of the recordings it has seen.
        name: Of the classifier; that of the file by default.
        license: Of the data, and so of the weights; known for published datasets.
        citation: Of the data; known for published datasets.
        intended_use: What it may be used for.
        resamples: Bootstrap resamples of patients for the intervals in the card.
        resume: Continue an interrupted training.
        save_every: Seconds between two saves of what `resume` needs.
        device: 'cpu', 'cuda' …; the best available by default.
        on_epoch: Called after each epoch.
        options: The protocol's own, such as `encoder_lr` of 'whole' or `strongest_l2` of 'linear'.

    Returns:
        The classifier, as it is in the file.

    Raises:
        LeakError: An encoder has seen a test patient.
        CheckpointError: `out` exists, or holds another training.
    """
    for what, given, choices in (("head", head, Head), ("members", members, Members)):
        if given not in get_args(choices):
            raise SettingError(f"`{what}` is {' or '.join(get_args(choices))}, not {given!r:.50}")
    check_resamples(resamples)
    if shared and (half or head == "whole"):
        raise SettingError("weights that change cannot be shared; leave out `shared`")
    row, by_name = find_protocol(PROTOCOL_OF_HEAD[head]), settings_in(options)
    options = chosen_options(row, options)
    encoders = _encoders(checkpoint, seeds, alike=not row.trains and fraction == 1 and not labels)
    if any(one.card.in_mv for one in encoders):
        raise SettingError(
            "this encoder takes signals in mV, which prediction does not give it; use one that was "
            "trained on normalized frames"
        )
    for one in encoders if shared else ():
        check_shared(one)
    by_folds = split_of(split, test_folds, validation_folds)
    opened = as_store(store)
    frames = frames_for([encoders], opened, leads=leads, split=by_folds, split_seed=split_seed)
    leak_guard.check_parts(frames)
    training = Settings.choose(settings, frames.batch_size, **by_name)
    facts = {
        "head": head,
        "protocol": row.name,
        "members": members,
        "seeds": [one.card.seed for one in encoders],
        "class_weights": class_weights,
        "fraction": fraction,
        "by": by,
        "labels": labels,
        "settings": (training.facts() if row.trains else {}) | options,
        "half": half,
        "encoders": [one.fingerprint for one in encoders],
        "data": frames.content,
        "leads": list(frames.leads),
        "frame": frames.spec.to_dict(),
        "split_seed": frames.split_seed,
        "folds": {dataset: folds.facts() for dataset, folds in frames.folds.items()},
        "recording_hashes": recording_hashes,
        "resamples": resamples,
    }
    published = PUBLICATIONS.get(frames.dataset)
    about: dict[str, Any] = {
        "name": name or (Path(out).stem if out else f"{frames.dataset}-{head}"),
        "license": license if license is not None else published.license if published else "",
        "citation": citation if citation is not None else published.citation if published else "",
        "intended_use": intended_use,
    }
    on = pick_device(device)
    with Work.on(out, facts | about, resume=resume) as work:
        if work.finished and work.out is not None:
            return load_classifier(work.out)
        vectors = RecordingVectors(encoders, on, StoreVectors.of_frames(opened, frames))
        (result,) = score_groups(
            [encoders],
            frames,
            protocol=row.name,
            fraction=fraction,
            by=by,
            labels=labels,
            per="recording",
            class_weights=class_weights,
            settings=training,
            resamples=0,
            device=on,
            on_epoch=on_epoch,
            vectors=vectors,
            **work.options(save_every),
            **options,
        )
        made = assembled(encoders, result, frames, facts, about, recording_hashes)
        made = made.halved() if half else made
        if half or row.trains:  # its encoders are others than those given
            vectors = RecordingVectors(made.encoders, on)
        else:
            vectors = vectors.of_members(made.card.training["kept"])
        made = calibrated(made, frames, vectors, device=on)
        scores = scores_on_test(made, frames, vectors, resamples=resamples, device=on)
        made = replace(made, card=replace(made.card, scores=scores))
        if work.out is None:
            return made
        made.save(work.out, half=half, shared=shared)
        return load_classifier(work.out)


def _encoders(
    checkpoint: Checkpoint | Sequence[Checkpoint] | Path | str, seeds: int | None, *, alike: bool
) -> list[Checkpoint]:
    """One per member; `alike` says that seeds of one encoder would all be the same classifier."""
    if isinstance(checkpoint, Path | str) and is_classifier(checkpoint):
        raise SettingError(f"{checkpoint} is a classifier already; give an encoder")
    given = list(as_checkpoints(checkpoint))
    if not given:
        raise SettingError("there is nothing to fine-tune: give at least one checkpoint")
    if len({one.card.salt for one in given}) > 1:
        raise SettingError(
            "these encoders were trained on different data; give those of one pre-training"
        )
    if seeds is None or seeds == len(given):
        return given
    if seeds < 1:
        raise SettingError(f"`seeds` is {seeds}; give at least 1")
    if 1 < len(given) < seeds:
        raise SettingError(
            f"`seeds` is {seeds}, but there are only {len(given)} encoders; give at most that many"
        )
    if len(given) > 1:
        return given[:seeds]
    if alike:
        raise SettingError(
            "a linear layer on one frozen encoder is the same for every seed; leave out `seeds`, "
            "or give a folder with several encoders"
        )
    one = given[0]
    return [replace(one, card=replace(one.card, seed=seed)) for seed in range(seeds)]

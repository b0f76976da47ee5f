"""`clocs.finetune`: encoders and a labeled store to a classifier, with thresholds and scores."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.datasets.download import PUBLICATIONS
from clocs.errors import CheckpointError, SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import check_resamples
from clocs.evaluation.evaluate import frames_for
from clocs.evaluation.groups import GroupResult, score_groups
from clocs.evaluation.labeled import RecordingVectors
from clocs.evaluation.protocols import PROTOCOL_OF_HEAD, find_protocol
from clocs.evaluation.result import plain
from clocs.files import LOCK, locked, private_folder, write_atomic
from clocs.frames.frames import Frames
from clocs.frames.splits import split_of
from clocs.models.classifier import (
    Classifier,
    check_shared,
    fit_reference,
    load_classifier,
)
from clocs.models.scores import (
    ScoredPart,
    fit_moves,
    fit_temperature,
    labeled_part,
    probabilities,
    score_part,
    scores_on_test,
)
from clocs.pretraining.plan import TRAINED_ON, datasets_of, trained_on
from clocs.registry import chosen_options
from clocs.sealed import spelled_for_files
from clocs.store.store import Store, as_store
from clocs.training import Settings, settings_in
from clocs.training.card import LEAD_GROUPS, ClassifierCard, is_classifier
from clocs.training.checkpoint import (
    Checkpoint,
    check_parts,
    hashed_recordings,
    load_checkpoints,
    salt_of,
)
from clocs.training.embed import StoreVectors
from clocs.training.loop import SAVE_EVERY, Epoch
from clocs.training.signals import pick_device

Head = Literal["linear", "whole"]
Members = Literal["best", "ensemble"]
# which quantiles of validation recordings are the limits
QUANTILES = {"ecg_share": 0.02, "distance": 0.998, "confidence": 0.05}
_THROUGH_FEW = 500  # validation recordings that limits for few leads are chosen on, at most
_SETTINGS, _STATES = "settings.json", "state-*.safetensors"


def finetune(
    checkpoint: Checkpoint | Sequence[Checkpoint] | Path | str,
    store: Store | Path | str,
    *,
    out: Path | str | None = None,
    head: Head = "linear",
    seeds: int | None = None,
    members: Members = "best",
    class_weights: bool = False,
    leads: Sequence[str] | None = None,
    settings: Settings | None = None,
    split: Literal["hash", "folds"] | None = None,
    test_folds: Sequence[str] | None = None,
    validation_folds: Sequence[str] | None = None,
    split_seed: int = 0,
    shared: bool = False,
    name: str | None = None,
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
        store: A store of labeled recordings.
        out: The file to write, NAME.safetensors; nothing is written where None. An interrupted
            training is kept beside it, in a folder that ends in '.training'.
        head: 'linear' leaves the encoder as it is and solves a linear layer on top (the protocol
            'linear-converged'); 'whole' trains both together (the protocol 'finetune').
        seeds: Train this many: the first of a folder, or as many from one encoder, which differ in
            the start of the layer and the order of batches. All that were given by default.
        members: What to keep of several seeds: the 'best' by its AUC on validation patients, or all
            of them as an 'ensemble', whose logits are averaged.
        class_weights: Whether rare classes count as much as common ones.
        leads: Leads by name; those that the encoder was trained on by default.
        epochs, patience, batch_size, lr, keep: How long and how fast to train, and which weights to
            keep; described by `clocs.training.Settings`, with their defaults.
        optimizer, weight_decay, schedule, warm_up, average: The optimizer; described there.
        settings: All of these as one object, in place of them.
        split: Whether the 'hash' of patients or official 'folds' decide who is trained and tested
            on; the folds by default where the store has some.
        test_folds: The folds to test on.
        validation_folds: The folds to validate on.
        split_seed: Random seed for the patient split.
        shared: Name the encoders, which must be in the package, in the file rather than copy them:
            it is small, and is read by every clocs that has them. Only for a 'linear' head.
        name: Of the classifier; that of the file by default.
        resamples: Bootstrap resamples of patients for the intervals in the card.
        resume: Continue an interrupted training.
        save_every: Seconds between two saves of what `resume` needs.
        device: Device to compute on: cpu, cuda, cuda:1 …; the best available by default.
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
    if shared and head == "whole":
        raise SettingError("weights that change cannot be shared; leave out `shared`")
    row, by_name = find_protocol(PROTOCOL_OF_HEAD[head]), settings_in(options)
    options = chosen_options(row, options)
    encoders = _encoders(checkpoint, seeds, alike=not row.trains)
    for one in encoders if shared else ():
        check_shared(one)
    by_folds = split_of(split, test_folds, validation_folds)
    opened = as_store(store)
    frames = frames_for([encoders], opened, leads=leads, split=by_folds, split_seed=split_seed)
    check_parts(frames)
    training = Settings.choose(settings, frames.batch_size, **by_name)
    facts = {
        "head": head,
        "protocol": row.name,
        "members": members,
        "seeds": [one.card.seed for one in encoders],
        "class_weights": class_weights,
        "settings": (training.to_dict() if row.trains else {}) | options,
        "encoders": [one.fingerprint for one in encoders],
        "data": frames.content,
        "leads": list(frames.leads),
        "frame": frames.spec.to_dict(),
        "split_seed": frames.split_seed,
        "folds": {dataset: folds.to_dict() for dataset, folds in frames.folds.items()},
        "resamples": resamples,
    }
    name = name or (Path(out).stem if out else f"{frames.dataset}-{head}")
    on = pick_device(device)
    with _held(out, facts | {"name": name}, resume=resume) as path:
        if path is not None and path.exists():
            return load_classifier(path)
        vectors = RecordingVectors(encoders, on, StoreVectors.of_frames(opened, frames))
        (result,) = score_groups(
            [encoders],
            frames,
            protocol=row.name,
            by="recording",
            per="recording",
            class_weights=class_weights,
            settings=training,
            resamples=0,
            device=on,
            on_epoch=on_epoch,
            vectors=vectors,
            state=None if path is None else path.with_suffix(".training"),
            save_every=save_every,
            **options,
        )
        made = assembled(encoders, result, frames, name, facts)
        if row.trains:  # its encoders are others than those given
            vectors = RecordingVectors(made.encoders, on)
        else:
            vectors = vectors.of_members(made.card.training["kept"])
        made = calibrated(made, frames, vectors, device=on)
        scores = scores_on_test(made, frames, vectors, resamples=resamples, device=on)
        made = replace(made, card=replace(made.card, scores=scores))
        if path is None:
            return made
        made.save(path, shared=shared)
        return load_classifier(path)


def _encoders(
    checkpoint: Checkpoint | Sequence[Checkpoint] | Path | str, seeds: int | None, *, alike: bool
) -> list[Checkpoint]:
    """One per member; `alike` says that seeds of one encoder would all be the same classifier."""
    if isinstance(checkpoint, Path | str) and is_classifier(checkpoint):
        raise SettingError(f"{checkpoint} is a classifier already; give an encoder")
    given = list(load_checkpoints(checkpoint))
    if not given:
        raise SettingError("there is nothing to fine-tune: give at least one checkpoint")
    if len({one.card.salt for one in given}) > 1:
        raise SettingError(
            "these encoders were trained on different data; give those of one pre-training"
        )
    if seeds is None or seeds == len(given):
        return given
    if seeds < 1 or 1 < len(given) < seeds:
        most = f"to {len(given)}, as many as there are encoders" if len(given) > 1 else "or more"
        raise SettingError(f"`seeds` is {seeds}; give 1 {most}")
    if len(given) > 1:
        return given[:seeds]
    if alike:
        raise SettingError(
            "a linear layer on one frozen encoder is the same for every seed; leave out `seeds`, "
            "or give a folder with several encoders"
        )
    one = given[0]
    return [replace(one, card=replace(one.card, seed=seed)) for seed in range(seeds)]


def assembled(
    encoders: Sequence[Checkpoint],
    result: GroupResult,
    frames: Frames,
    name: str,
    facts: dict[str, Any],
) -> Classifier:
    """The classifier of the members that are kept, not yet calibrated.

    Args:
        encoders: From which each member started.
        result: Their layers and scores on validation patients.
        frames: The labeled ones.
        name: Of the classifier.
        facts: The settings; `head` and `members` decide what is kept.
    """
    scored = result.evaluation
    kept = list(range(len(encoders)))
    if facts["members"] == "best":
        auc = [-1.0 if np.isnan(one) else one for one in scored.auc_validation]
        kept = [int(np.argmax(auc))]
    more: dict[str, Any] = {"auc_validation": scored.auc_validation}
    more |= {k: scored.settings[k] for k in ("best_epoch", "status", "l2") if k in scored.settings}
    whole = facts["head"] == "whole"
    made = [_member(encoders[m], result.classifiers[m], frames, whole=whole) for m in kept]
    published = PUBLICATIONS.get(frames.dataset)
    card = ClassifierCard(
        name=name,
        dataset=frames.dataset,
        content=frames.content,
        labels=tuple(frames.labels),
        multilabel=frames.multilabel,
        protocol="finetune" if whole else "linear",
        encoders=tuple(one.card for one in made),
        temperature=(1.0,) * len(frames.labels),
        thresholds=(None,) * len(frames.labels),
        training=facts | {"kept": kept, "labeled": scored.labeled} | plain(more),
        license=published.license if published else "",
        citation=published.citation if published else "",
    )
    layers = [result.classifiers[m].weights for m in kept]
    top = {k: torch.cat([one[f"head.{k}"] for one in layers]) for k in ("weight", "bias")}
    return Classifier(card, tuple(made), top, {})


def _member(checkpoint: Checkpoint, made: Checkpoint, frames: Frames, *, whole: bool) -> Checkpoint:
    """The encoder of a member; who was trained on counts as seen, also by a frozen encoder."""
    card, hashed = checkpoint.card, checkpoint.card.recording_hashes
    salt = (card.salt or salt_of(frames)) if hashed else ""
    seen = hashed_recordings(frames, salt, TRAINED_ON if hashed else ())
    card = replace(
        card,
        dataset=datasets_of(frames.dataset, checkpoint) if whole else card.dataset,
        trained_on=trained_on(frames, checkpoint),
        leads=card.leads if checkpoint.encoder.leads else frames.leads,
        frame=frames.spec,
        encoder=dict(made.card.encoder),
        salt=salt,
        weights_sha256="" if whole else card.weights_sha256,
    )
    weights = {k: v for k, v in made.weights.items() if not k.startswith("head.")}
    seen = np.union1d(seen, checkpoint.recordings) if hashed else seen
    return Checkpoint(card, weights, made.buffers, seen)


def calibrated(
    classifier: Classifier,
    frames: Frames,
    vectors: RecordingVectors,
    *,
    device: torch.device | str = "cpu",
) -> Classifier:
    """With temperature, thresholds and limits of abstention chosen on the validation patients."""
    card, multilabel = classifier.card, classifier.card.multilabel
    train, validation = (labeled_part(classifier, frames, split) for split in (0, 1))
    reference = fit_reference(vectors.of(train))
    scored = score_part(classifier, validation, device, vectors)
    temperature = fit_temperature(scored.logits, scored.targets, multilabel=multilabel)
    chances = probabilities(scored.logits, temperature, multilabel=multilabel)
    thresholds = metrics.best_thresholds(chances, scored.targets)
    counts = {
        name: {
            "patients": len(np.unique(part.frames.patient[part.frame])),
            "recordings": len(part),
        }
        for name, part in (("train", train), ("validation", validation))
    }
    card = replace(
        card,
        temperature=tuple(temperature.tolist()),
        thresholds=tuple(None if np.isnan(t) else t for t in thresholds.tolist()),
        training=card.training | counts,
    )
    made = replace(classifier, card=card, reference=reference)
    return calibrated_by_leads(made, scored, device)


def calibrated_by_leads(
    classifier: Classifier, scored: ScoredPart, device: torch.device | str = "cpu"
) -> Classifier:
    """With limits of abstention and, for few leads, what moves logits, by number of leads.

    Those of few leads come from validation recordings with few of their leads kept.

    Args:
        classifier: With a temperature, and nothing by number of leads.
        scored: Validation recordings with all leads.
        device: For encoding.
    """
    card, part, old = classifier.card, scored.part, np.array(classifier.card.temperature)
    *few, whole = (group for group in LEAD_GROUPS if int(group) <= part.lead_counts.max())
    some = part.where(np.arange(len(part)) % math.ceil(len(part) / _THROUGH_FEW) == 0)
    parts = {g: score_part(classifier, some.through(int(g)), device) for g in few}
    moves = {}
    for group, one in parts.items():
        added, divided = fit_moves(card, one.logits, one.targets)
        scale = old / divided
        moves[group] = {"scale": scale.tolist(), "bias": (added * scale).tolist()}
    if few:
        moves[whole] = {"scale": [1.0] * len(old), "bias": [0.0] * len(old)}
    made, limits = replace(classifier, card=replace(card, by_leads=moves)), {}
    for group, one in (parts | {whole: scored}).items():
        moved = made.moved(torch.from_numpy(one.logits), one.part.lead_counts.tolist())
        limits[group] = choose_limits(replace(one, logits=moved.numpy()).doubts(made))
    return replace(made, card=replace(made.card, limits=limits))


def choose_limits(doubts: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Limits beyond which a classifier abstains, by name: quantiles of these recordings."""
    found = {name: float(np.quantile(doubts[name], share)) for name, share in QUANTILES.items()}
    return {name: limit for name, limit in found.items() if not math.isnan(limit)}


@contextmanager
def _held(out: Path | str | None, facts: dict[str, Any], *, resume: bool) -> Iterator[Path | None]:
    """Hold the file `out` for this `with`; the folder beside it stays if it ends too early.

    Raises:
        CheckpointError: It exists, or another training with the same name was interrupted.
    """
    if out is None:
        yield None
        return
    path = Path(out)
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{path} does not end in .safetensors, as a classifier does")
    folder = path.with_suffix(".training")
    if path.exists() and not resume:
        raise CheckpointError(f"{path} exists and is not overwritten; give another `out`")
    private_folder(path.parent)
    try:
        with locked(folder):
            _claim(path, folder, spelled_for_files(json.loads(json.dumps(facts))), resume=resume)
            try:
                yield path
            finally:
                if path.exists() or not any(folder.glob(_STATES)):  # nothing to resume
                    for file in _own_files(folder):
                        file.unlink(missing_ok=True)
    finally:
        with suppress(OSError):  # it is not empty, or another process's
            folder.rmdir()


def _claim(path: Path, folder: Path, facts: dict[str, Any], *, resume: bool) -> None:
    """Make it the folder of this training; an interrupted one is not lost by accident."""
    ours = {LOCK, *(file.name for file in _own_files(folder))}
    if any(file.name not in ours for file in folder.iterdir()):
        raise CheckpointError(f"{folder} holds other files; give another file as `out`")
    have = None
    if path.exists():
        have = load_classifier(path).card.to_dict()
        have |= have["training"]
    elif any(folder.glob(_STATES)):
        try:
            have = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            have = {}
    if have is not None:
        if differing := sorted(name for name in facts if have.get(name) != facts[name]):
            raise CheckpointError(
                f"{path if path.exists() else folder} holds a training with other settings "
                f"({', '.join(differing)}); give another file as `out`, or delete it"
            )
        if not resume:
            raise CheckpointError(
                f"{folder} holds this training, interrupted; add `resume` to continue it, or "
                "delete that folder"
            )
    write_atomic(folder / _SETTINGS, json.dumps(facts, indent=2).encode())


def _own_files(folder: Path) -> list[Path]:
    """All that a training writes there, unfinished writes included."""
    return [*folder.glob(f"*{_STATES}*"), *folder.glob(f"*{_SETTINGS}*")]

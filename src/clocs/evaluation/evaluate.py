"""`clocs.evaluate`: checkpoints and a labeled store to scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from clocs.errors import ClocsWarning, SettingError
from clocs.evaluation.baseline import score_against_untrained
from clocs.evaluation.conditions import AnyCondition
from clocs.evaluation.groups import GroupResult
from clocs.evaluation.labeled_rows import By, Per
from clocs.evaluation.result import Evaluation
from clocs.frames.frames import Frames
from clocs.frames.make import leads_of_those, make_frames
from clocs.frames.splits import Split, split_of
from clocs.recording import Filters, FrameSpec, with_derived
from clocs.store.store import Store, as_store
from clocs.training import Settings, settings_in, takes_settings
from clocs.training.checkpoint import Checkpoint, as_checkpoints
from clocs.training.embed import StoreVectors
from clocs.training.loop import Epoch
from clocs.training.ranks import pick_device


@takes_settings
def evaluate(
    checkpoint: Checkpoint | Sequence[Checkpoint] | Path | str,
    store: Store | Path | str,
    *,
    protocol: str = "linear",
    fraction: float = 1.0,
    by: By = "frame",
    labels: int | None = None,
    per: Per | None = None,
    seconds: float | None = None,
    test_leads: Sequence[str] | None = None,
    noise: str | None = None,
    conditions: Sequence[AnyCondition] = (),
    class_weights: bool = False,
    leads: Sequence[str] | None = None,
    settings: Settings | None = None,
    split: Literal["hash", "folds"] | None = None,
    test_folds: Sequence[str] | None = None,
    validation_folds: Sequence[str] | None = None,
    split_seed: int = 0,
    folds: int | Literal["official"] | None = None,
    baselines: bool = True,
    resamples: int = 2000,
    device: str | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    **options: Any,
) -> Evaluation:
    """Score the seeds of one method on a labeled store.

    Args:
        checkpoint: For each method a file, or a folder (all its seeds); or one classifier, made by
            `clocs finetune`.
        store: Labeled recordings. They are cut into the store's frames, and for encoders of many
            leads into those of the encoder.
        protocol: 'linear', 'linear-converged', 'attentive', 'finetune' or 'knn'.
        fraction: The labeled fraction of the training part.
        by: Whether `fraction` counts frames ('frame', as in the paper), 'patient' or 'recording'.
        labels: The number of labeled recordings, or of patients if `by` is 'patient', instead of
            `fraction`.
        per: What is scored: each 'row', a frame of a lead as in the paper, or each 'recording', of
            whose frames and leads the embeddings, or the logits of a head or an encoder that is
            trained, are averaged. Rows by default, and recordings for encoders of many leads.
        seconds: Seconds of a frame, where not those that the encoder learned on; for encoders that
            pool over time, and for the search.
        test_leads: Those that validation and test see; the classifier learns from all.
        noise: Added to the test part: its kind and signal to noise in dB, such as 'muscle:6'; see
            `clocs.evaluation.noise.KINDS`.
        conditions: Further tests without training anew: (name, leads or None, noise or None) each.
        class_weights: Whether rare classes count as much as common ones.
        leads: Leads by name; those that the encoder was trained on by default. A store that lacks
            some is evaluated on the others, and one that lacks all on its own leads, with a
            warning.
        epochs, patience, batch_size, lr, keep: How long and how fast to train, and which weights to
            keep; described by `clocs.training.Settings`, with their defaults.
        optimizer, weight_decay, schedule, warm_up, average: The optimizer; described there.
        settings: All of these as one object, in place of them.
        split: Whether the 'hash' of patients or official 'folds' decide who is trained and tested
            on; the folds by default where the store has some.
        test_folds: The folds to test on; where they are numbers, the last by default.
        validation_folds: The folds to validate on; where they are numbers, the last but one by
            default.
        split_seed: Random seed for the patient split.
        folds: Test on every patient that no encoder was trained on, in this many parts or in the
            'official' folds of the store, instead of on the test part alone.
        baselines: Whether untrained encoders are scored too, where the protocol has them. They see
            all frames as well; the scores of the others do not depend on them.
        resamples: Bootstrap resamples of seeds and patients; 0 for no intervals.
        device: Device to compute on: cpu, cuda, cuda:1 …; the best available by default.
        on_epoch: Called after each epoch.
        options: The protocol's own, such as `k` of 'knn' or `encoder_lr` of 'finetune'.
    """
    return evaluate_many(
        [checkpoint],
        store,
        protocol=protocol,
        fraction=fraction,
        by=by,
        labels=labels,
        per=per,
        seconds=seconds,
        test_leads=test_leads,
        noise=noise,
        conditions=conditions,
        class_weights=class_weights,
        leads=leads,
        settings=settings,
        split=split,
        test_folds=test_folds,
        validation_folds=validation_folds,
        split_seed=split_seed,
        folds=folds,
        baselines=baselines,
        resamples=resamples,
        device=device,
        on_epoch=on_epoch,
        **options,
    )[0].evaluation


def evaluate_many(
    checkpoints: Sequence[Checkpoint | Sequence[Checkpoint] | Path | str],
    store: Store | Path | str,
    *,
    leads: Sequence[str] | None = None,
    split: Literal["hash", "folds"] | None = None,
    test_folds: Sequence[str] | None = None,
    validation_folds: Sequence[str] | None = None,
    split_seed: int = 0,
    folds: int | Literal["official"] | None = None,
    device: str | None = None,
    **options: Any,
) -> list[GroupResult]:
    """Score several methods at once, all trained as one fleet, and compare them.

    Under most protocols the untrained encoders are scored too, and each method is compared with
    the stronger of them.

    Args:
        checkpoints: For each method what `evaluate` takes.
        store: Labeled recordings.
        leads: By name; those the encoders were trained on by default.
        split: As for `evaluate`, like the next three.
        test_folds: The folds to test on.
        validation_folds: The folds to validate on.
        split_seed: Random seed for the patient split.
        folds: As for `evaluate`.
        device: 'cpu', 'cuda' …; the best one by default.
        options: As for `evaluate`; `curve=True` records the validation AUC after every epoch.

    Returns:
        Scores and predictions, one per method; then the untrained encoders.
    """
    groups = [as_checkpoints(one) for one in checkpoints]
    _check_distinct(groups)
    by = split_of(split, test_folds, validation_folds)
    if folds is not None and by is not None:
        raise SettingError(
            "`folds` tests on everybody in turn; leave out `split`, `test_folds` and "
            "`validation_folds`"
        )
    opened = as_store(store)
    frames = frames_for(groups, opened, leads=leads, split=by, split_seed=split_seed)
    cache = StoreVectors.of_frames(opened, frames)
    given = settings_in(options)
    settings = Settings.choose(options.pop("settings", None), frames.batch_size, **given)
    return score_against_untrained(
        groups,
        frames,
        settings=settings,
        folds=folds,
        device=pick_device(device),
        cache=cache,
        **options,
    )


def frames_for(
    groups: Sequence[Sequence[Checkpoint]],
    store: Store,
    *,
    leads: Sequence[str] | None = None,
    split: Split = None,
    split_seed: int = 0,
) -> Frames:
    """The frames of a store as these encoders see them; `leads` as for `evaluate`."""
    spec = _frame_of_encoders(groups, store)
    leads = _leads_of_encoders(groups, store) if leads is None else leads
    return make_frames(store, spec=spec, leads=leads, split=split, split_seed=split_seed)


def _frame_of_encoders(groups: Sequence[Sequence[Checkpoint]], store: Store) -> FrameSpec:
    """The store's frame; for encoders of many leads, or of another length, the one they see."""
    filters, usual = _filters_of_encoders(groups, store), store.manifest.frame.samples
    cards = [checkpoint.card for group in groups for checkpoint in group]
    found = {
        card.frame if "leads" in card.encoder or card.encoder["samples"] != usual else None
        for card in cards
    }
    frames = [frame for frame in found if frame is not None]
    if len(frames) < len(found):
        if frames:
            raise SettingError(
                "some of these encoders see other frames than the store's, as those of many leads "
                "do; evaluate them one after the other"
            )
        return replace(store.manifest.frame, filters=filters)
    if len({(one.seconds, one.samples) for one in frames}) > 1:
        named = " and ".join(sorted(f"{one.seconds:g} s at {one.rate:g} Hz" for one in frames))
        raise SettingError(
            f"these encoders see different frames ({named}); evaluate those with the same frames "
            "together"
        )
    return replace(frames[0], filters=filters)


def _filters_of_encoders(groups: Sequence[Sequence[Checkpoint]], store: Store) -> Filters:
    """The filters that the encoders learned with; the store's where none has seen data."""
    cards = [checkpoint.card for group in groups for checkpoint in group]
    found = {card.frame.filters for card in cards if card.dataset is not None}
    if len(found) > 1:
        named = " and ".join(sorted(map(str, found)))
        raise SettingError(
            f"these encoders were trained with different filters ({named}); evaluate those with "
            "the same filters together"
        )
    return next(iter(found), store.manifest.frame.filters)


def _check_distinct(groups: Sequence[Sequence[Checkpoint]]) -> None:
    """Refuse the same encoder twice: it would be compared with itself, or count as two seeds."""
    seen: set[str] = set()
    for card, fingerprint in ((c.card, c.fingerprint) for group in groups for c in group):
        if fingerprint in seen:
            raise SettingError(
                f"the same checkpoint is given twice ({card.method}, seed {card.seed}); give each "
                "one once"
            )
        seen.add(fingerprint)


def _leads_of_encoders(groups: Sequence[Sequence[Checkpoint]], store: Store) -> tuple[str, ...]:
    """The leads that the encoders were trained on, as far as the store has them, or its own."""
    cards = [checkpoint.card for group in groups for checkpoint in group]
    if seen := {lead: None for card in cards for lead in card.encoder.get("leads", ())}:
        return _leads_seen(tuple(seen), store)
    trained = {card.leads: card for card in cards if card.dataset is not None}
    own = store.choose_leads()
    usable = {
        leads: tuple(lead for lead in leads if lead in with_derived(store.leads)) or own
        for leads in trained
    }
    if len({frozenset(leads) for leads in usable.values()}) > 1:
        named = "; ".join(f"{card.method}: {', '.join(leads)}" for leads, card in trained.items())
        raise SettingError(
            f"these encoders were trained on different leads ({named}); give `leads` to evaluate "
            "all on the same ones"
        )
    for leads, found in usable.items():
        if leads != found:
            warnings.warn(
                f"{store.path} lacks leads that the encoder was trained on ({', '.join(leads)}): "
                f"it is evaluated on {', '.join(found)}",
                ClocsWarning,
                stacklevel=4,
            )
    return next(iter(usable.values()), own)


def _leads_seen(leads: tuple[str, ...], store: Store) -> tuple[str, ...]:
    """Those of an encoder of many leads that the store has; it does without the others."""
    found = tuple(leads_of_those(store, leads))
    if not found:
        raise SettingError(
            f"the encoder sees {', '.join(leads)}, and {store.path} has none of them, only "
            f"{', '.join(store.leads)}; evaluate on another store"
        )
    if found != leads:
        missing = ", ".join(lead for lead in leads if lead not in found)
        warnings.warn(
            f"{store.path} lacks {missing}: the encoder is evaluated on {', '.join(found)}, and "
            "does without the others",
            ClocsWarning,
            stacklevel=5,
        )
    return found

"""`clocs.evaluate`: checkpoints and a labeled store to scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from clocs.errors import LeakError, SettingError, distinct, warn
from clocs.evaluation.bootstrap import ALPHA, check_resamples, correct, enough, paired
from clocs.evaluation.cross_validation import NumberOfFolds, divided, pooled
from clocs.evaluation.groups import GroupResult, score_groups
from clocs.evaluation.labeled import By, Per
from clocs.evaluation.protocols import find_protocol
from clocs.evaluation.result import Evaluation
from clocs.frames.frames import SEVERAL, Frames
from clocs.frames.splits import Split, ValidationLabels, split_of
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained
from clocs.recording import Filters, FrameSpec, with_derived
from clocs.training import Settings, settings_in
from clocs.training.card import UNKNOWN
from clocs.training.checkpoint import Checkpoint, load_checkpoints
from clocs.training.embed import StoreVectors
from clocs.training.loop import Epoch
from clocs.training.outside import EVERYBODY, OutsideEncoder, read_outside_encoder
from clocs.training.signals import pick_device

if TYPE_CHECKING:
    from clocs.store.store import Store


def evaluate(
    checkpoint: Checkpoint | Sequence[Checkpoint] | Path | str,
    store: Store | Path | str,
    *,
    protocol: str = "linear",
    fraction: float = 1.0,
    by: By = "frame",
    labels: int | None = None,
    validation_labels: ValidationLabels = "share",
    per: Per | None = None,
    seconds: float | None = None,
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
            `clocs finetune`; or anybody's encoder as an ONNX file with a .toml file beside it, in
            Python also as a `clocs.outside_encoder`.
        store: Labeled recordings. They are cut into the store's frames, and for encoders of many
            leads into those of the encoder.
        protocol: 'linear', 'linear-converged', 'attentive', 'finetune' or 'knn'.
        fraction: The labeled fraction of the training part, and of the validation part.
        by: Whether `fraction` counts frames ('frame', as in the paper), 'patient' or 'recording'.
        labels: The number of labeled recordings, or of patients if `by` is 'patient', instead of
            `fraction`.
        validation_labels: Whether the same 'share' of the validation part is labeled as of the
            training part, or 'all' of it, as in the paper.
        per: What is scored: each 'row', a frame of a lead as in the paper, or each 'recording', of
            whose frames and leads the embeddings, or the logits of a head or an encoder that is
            trained, are averaged. Rows by default, and recordings for encoders of many leads.
        seconds: Seconds of a frame, where not those that the encoder learned on; for encoders that
            pool over time, and for the search.
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
    given = {name: value for name, value in locals().items() if name != "options"}
    return evaluate_many([given.pop("checkpoint")], **given, **options)[0].evaluation


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
    """Score several methods at once, all trained at once, and compare them.

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
    groups = [_load(one) for one in checkpoints]
    _check_distinct(groups)
    by = split_of(split, test_folds, validation_folds)
    if folds is not None and by is not None:
        raise SettingError(
            "`folds` tests on everybody in turn; leave out `split`, `test_folds` and "
            "`validation_folds`"
        )
    from clocs.store.store import as_store

    opened = as_store(store)
    frames = frames_for(groups, opened, leads=leads, split=by, split_seed=split_seed)
    _check_training_data(groups, frames)
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


def _load(given: Checkpoint | Sequence[Checkpoint] | Path | str) -> Sequence[Checkpoint]:
    """The seeds of a method; an ONNX file is one."""
    if isinstance(given, Path | str) and Path(given).suffix == ".onnx":
        return [read_outside_encoder(Path(given))]
    return load_checkpoints(given)


def _check_training_data(groups: Sequence[Sequence[Checkpoint]], frames: Frames) -> None:
    """Say what the leak guard cannot know of outside encoders.

    Raises:
        LeakError: One was trained on all patients of these frames' dataset.
    """
    for one in (one for group in groups for one in group if isinstance(one, OutsideEncoder)):
        whole = {each.dataset for each in one.card.trained_on if each.folds == EVERYBODY}
        if both := whole & set(frames.dataset.split(SEVERAL)):
            raise LeakError(
                f"{one.card.method} was trained on all patients of {', '.join(both)}; evaluate it "
                "on another dataset"
            )
        if one.card.dataset == UNKNOWN:
            warn(
                f"it is not known what {one.card.method} was trained on: if test patients of "
                f"{frames.dataset} were among it, its scores are too high"
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
    from clocs.frames.make import make_frames  # needs polars, which scoring frames does not

    return make_frames(store, spec=spec, leads=leads, split=split, split_seed=split_seed)


def _frame_of_encoders(groups: Sequence[Sequence[Checkpoint]], store: Store) -> FrameSpec:
    """The store's frame; for encoders of many leads, of another length or from outside, theirs."""
    filters, usual = _filters_of_encoders(groups, store), store.manifest.frame

    def differs(one: Checkpoint) -> bool:
        frame, many = one.card.frame, "leads" in one.card.encoder
        other_rate = isinstance(one, OutsideEncoder) and frame.seconds != usual.seconds
        return many or frame.samples != usual.samples or other_rate

    every = [checkpoint for group in groups for checkpoint in group]
    found = {one.card.frame if differs(one) else None for one in every}
    frames = [frame for frame in found if frame is not None]
    if len(frames) < len(found):
        if frames:
            raise SettingError(
                "some of these encoders see other frames than the store's, as those of many leads "
                "do; evaluate them one after the other"
            )
        return replace(usual, filters=filters)
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
        from clocs.frames.make import expect_leads, leads_of_those

        found = leads_of_those(store, tuple(seen))
        expect_leads(store, tuple(seen), found, reader="the encoder sees", known=tuple(seen))
        return tuple(found)
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
    for leads, used in usable.items():
        if leads != used:
            warn(
                f"{store.path} lacks leads that the encoder was trained on ({', '.join(leads)}): "
                f"it is evaluated on {', '.join(used)}"
            )
    return next(iter(usable.values()), own)


UNTRAINED = ("random", "random-bn")


def score_against_untrained(
    groups: Sequence[Sequence[Checkpoint]],
    frames: Frames,
    *,
    protocol: str = "linear",
    resamples: int = 2000,
    folds: NumberOfFolds | None = None,
    baselines: bool = True,
    device: torch.device | str = "cpu",
    **options: Any,
) -> list[GroupResult]:
    """Score groups beside the untrained encoders, where the protocol has them, and compare all.

    Arguments are those of `score_groups`; with 0 `resamples`, methods are not compared; with
    `folds`, every patient that no encoder was trained on is tested on once; without `baselines`,
    there are no untrained encoders, and the scores of the others are the same. Returns one result
    per group, in order, then those of the untrained encoders that were added.
    """
    check_resamples(resamples)
    row = find_protocol(protocol)
    pairs = list(combinations(range(len(groups)), 2))
    draws = resamples
    if row.against_untrained and resamples:
        draws = enough(resamples, max(len(groups), len(pairs)))

    def scored_on(part: Frames, **more: Any) -> tuple[list[list[Checkpoint]], list[GroupResult]]:
        everyone = [list(group) for group in groups]
        if row.against_untrained and baselines:
            everyone = _with_untrained(everyone, part, device)
        given = options | more
        return everyone, score_groups(everyone, part, protocol=protocol, device=device, **given)

    if folds is None:
        everyone, scored = scored_on(frames, resamples=draws)
    else:
        parts = divided(groups, frames, folds)
        each = [scored_on(one, resamples=0, check_leaks=False) for one in parts.values()]
        everyone = each[0][0]
        scored = [
            pooled(parts, [own[number] for _, own in each], resamples=draws, device=device)
            for number in range(len(everyone))
        ]
    if not row.against_untrained:
        return scored
    against = [
        (number, _strongest(scored, everyone, group))
        for number, group in enumerate(everyone)
        if baselines and group[0].card.method not in UNTRAINED
    ]
    facts: list[dict[str, Any]] = [{} for _ in scored]
    for number, rival in against:
        beside = scored[rival].evaluation
        facts[number] = {"random_method": beside.method, "random_auc_mean": beside.auc_mean}
        kind, own = (everyone[place][0].card.encoder["name"] for place in (rival, number))
        facts[number]["random_encoder"] = None if kind == own else kind
    if resamples:
        sampled = [one.sampled for one in scored]
        beside_untrained, beside_others = (
            correct([paired(sampled[i], sampled[j]) for i, j in some]) for some in (against, pairs)
        )
        for (number, _), comparison in zip(against, beside_untrained, strict=True):
            facts[number] |= {
                "random_difference": comparison.difference,
                "random_difference_ci95": comparison.ci95,
                "random_p": comparison.p_holm,
                "beats_random": comparison.better,
            }
        names = distinct([one.evaluation.name for one in scored])
        for own in facts[: len(groups)] if pairs else ():
            own["better_than"] = []
        for (i, j), comparison in zip(pairs, beside_others, strict=True):
            if comparison.p_holm < ALPHA:
                winner, loser = (i, j) if comparison.difference > 0 else (j, i)
                facts[winner]["better_than"].append(names[loser])
    return [
        replace(one, evaluation=replace(one.evaluation, **own))
        for one, own in zip(scored, facts, strict=True)
    ]


def _with_untrained(
    everyone: list[list[Checkpoint]], frames: Frames, device: torch.device | str
) -> list[list[Checkpoint]]:
    """These groups, and after them the untrained encoders of their kind that are missing."""
    made = list(everyone)
    for group in everyone:
        for method in UNTRAINED:
            if not any(_is_baseline(other, method, group) for other in made):
                made.append(_baseline(method, group, frames, device))
    return made


def _strongest(
    scored: list[GroupResult], everyone: list[list[Checkpoint]], of: Sequence[Checkpoint]
) -> int:
    """The number of the untrained group of these encoders and seeds with the higher AUC."""
    rivals = [
        number
        for number, candidate in enumerate(everyone)
        if any(_is_baseline(candidate, method, of) for method in UNTRAINED)
    ]
    return max(rivals, key=lambda number: scored[number].evaluation.auc_mean)


def _is_baseline(candidate: Sequence[Checkpoint], method: str, of: Sequence[Checkpoint]) -> bool:
    """Whether `candidate` is that untrained method with the encoder and the seeds of `of`."""
    cards, own = [c.card for c in candidate], [c.card for c in of]
    return (
        cards[0].method == method
        and cards[0].encoder == of[0].untrained_as
        and [card.seed for card in cards] == [card.seed for card in own]
    )


def _baseline(
    method: str, of: Sequence[Checkpoint], frames: Frames, device: torch.device | str
) -> list[Checkpoint]:
    encoder = of[0].untrained_as
    frames = frames.for_leads(encoder["leads"]) if "leads" in encoder else frames
    plan = Plan(
        method=method,
        seeds=tuple(c.card.seed for c in of),
        encoder=encoder["name"],
        embedding_dim=encoder["embedding_dim"],
        dropout=encoder["dropout"],
        settings=Settings(batch_size=frames.batch_size),
    )
    own = isinstance(of[0], OutsideEncoder) and of[0].drawn_anew
    normalization = of[0].card.normalization if own else ""
    return untrained(frames, plan, device=device, normalization=normalization)

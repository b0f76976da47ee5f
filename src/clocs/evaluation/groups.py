"""Groups of checkpoints, each the seeds of one method, scored on labeled frames at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import LeakError, SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import Sampled, check_resamples, draws_of, macro_auc_draws, plan_of
from clocs.evaluation.classifier_loss import FinetunedClassifier
from clocs.evaluation.labeled import (
    By,
    LabeledPart,
    LabeledShare,
    Per,
    ProtocolInput,
    ProtocolOutput,
    RecordingVectors,
    choose_rows,
    rows_with_label,
)
from clocs.evaluation.protocols import find_protocol
from clocs.evaluation.result import Evaluation, Predictions, numbered
from clocs.evaluation.scores import (
    AnyCondition,
    Condition,
    as_condition,
    leads_of,
    overall_scores,
    score_under,
    scores_by_sex_and_age,
    through_leads,
)
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS
from clocs.frames.views import ALL_LEADS, with_seconds
from clocs.registry import chosen_options
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint, check_no_leak, copies_of_seen
from clocs.training.embed import StoreVectors, expect_mv
from clocs.training.loop import SAVE_EVERY, Epoch


@dataclass(frozen=True)
class GroupResult:
    """The evaluation of one group."""

    evaluation: Evaluation
    predictions: Predictions  # for the test part
    # one per seed, where the protocol has a linear layer on embeddings
    classifiers: list[FinetunedClassifier]
    # the bootstrap's draws of the AUC, and of that of logits where it can differ; (resamples,)
    draws: NDArray[np.float64] | None = None
    draws_logits: NDArray[np.float64] | None = None
    # (members, rows, classes) of the test part, before they became probabilities
    logits: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))

    @property
    def sampled(self) -> Sampled:
        """What a comparison needs."""
        one = self.evaluation
        assert self.draws is not None  # it is None only where `resamples` is 0
        return Sampled(one.name, dict(zip(one.seeds, one.auc, strict=True)), self.draws)


def score_groups(
    groups: Sequence[Sequence[Checkpoint]],
    frames: Frames,
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
    settings: Settings | None = None,
    resamples: int = 2000,
    curve: bool = False,
    check_leaks: bool = True,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    state: Path | None = None,
    save_every: float = SAVE_EVERY,
    stream: bool | None = None,
    vectors: RecordingVectors | None = None,
    cache: StoreVectors | None = None,
    **options: Any,
) -> list[GroupResult]:
    """Score encoders on labeled frames, all groups trained at once.

    Each group gets the scores that it would get alone. Groups with different kinds of encoders
    (another embedding dimension, for example) are trained one after another.

    A group is the seeds of one method on one pre-training set; each seed also selects its labeled
    rows. Frames are cut as the encoders expect them; encoders of many leads that pool over time
    also take longer or shorter ones. `conditions` are tested on without training anew; each is
    (name, leads or None, noise or None). `curve` records the validation AUC after every epoch;
    without `check_leaks`, the caller has made sure that no encoder has seen a test patient; `state`
    is a folder for what fine-tuning needs to resume, saved every so many seconds; with `stream` it
    brings signals to the device batch by batch, by default where they are too large for it;
    `vectors` keeps those of recordings, by the encoders of the only group and under no condition,
    for use after this; `cache` holds vectors of these frames on disk; the other arguments are those
    of `clocs.evaluate`.
    """
    check_resamples(resamples)
    row = find_protocol(protocol)
    options = chosen_options(row, options)
    if class_weights and not row.class_weights:
        raise SettingError(f"{protocol} cannot weight classes; leave out `class_weights`")
    if labels is not None and fraction != 1:
        raise SettingError("`labels` is a number and `fraction` a share; give one of them")
    if not groups or not all(groups):
        raise SettingError("there is nothing to evaluate: give at least one checkpoint per group")
    for group in groups:
        for checkpoint in group if check_leaks else ():
            check_no_leak(checkpoint, frames)
        expect_mv(group, frames)
    frames = frames if seconds is None else with_seconds(frames, seconds)
    groups = [
        [one.for_frame(frames.spec) if one.encoder.leads or seconds else one for one in group]
        for group in groups
    ]
    if per is None:
        per = "recording" if any(group[0].encoder.leads for group in groups) else "row"
    elif per not in get_args(Per):
        raise SettingError(f"`per` is {' or '.join(get_args(Per))}, not {per!r:.50}")
    seen = Condition("", None if test_leads is None else tuple(test_leads), noise)
    further = [as_condition(one) for one in conditions]
    settings = settings or Settings(batch_size=frames.batch_size)
    found: dict[int, GroupResult] = {}
    for together in _same_encoder(groups):
        checkpoints = [checkpoint for number in together for checkpoint in groups[number]]
        train, validation, test = _parts(checkpoints[0], frames, per)
        share = _share(fraction, by, labels, train)
        seeds = [checkpoint.card.seed for checkpoint in checkpoints]
        chosen = {
            seed: choose_rows(train.frames, train.rows, seed, share)[train.first]
            for seed in set(seeds)
        }
        used = np.logical_or.reduce(list(chosen.values()))
        labeled = [torch.from_numpy(np.flatnonzero(chosen[seed][used])) for seed in seeds]
        if seen.leads is not None:
            validation = through_leads(validation, seen.leads)
        given = ProtocolInput(
            checkpoints=checkpoints,
            parts=[
                train.where(used),
                validation,
                *(condition.applied(test, device) for condition in (seen, *further)),
            ],
            labeled=[own.to(device) for own in labeled],
            settings=settings,
            weighted=class_weights,
            curve=curve,
            device=torch.device(device),
            on_epoch=on_epoch,
            state=state,
            save_every=save_every,
            stream=stream,
            vectors=vectors,
            cache=cache,
        )
        output = row.predict(given, **options)
        facts = {
            "protocol": protocol,
            "settings": (settings.to_dict() if row.trains else {}) | options,
            "seen": seen,
            "conditions": further,
        }
        first = 0
        for number in together:
            members = slice(first, first + len(groups[number]))
            found[number] = _result(given, output, members, share, resamples, facts)
            first = members.stop
    return [found[number] for number in range(len(groups))]


def _parts(checkpoint: Checkpoint, frames: Frames, per: Per) -> list[LabeledPart]:
    """Training, validation and test rows, as the encoder of this checkpoint sees frames."""
    leads = checkpoint.encoder.leads
    own = frames.for_leads(leads) if leads else frames
    return [
        LabeledPart(own, rows_with_label(own, split, leads_at_once=bool(leads)), per)
        for split in range(len(PARTS))
    ]


def _share(fraction: float, by: By, labels: int | None, train: LabeledPart) -> LabeledShare:
    """Where recordings are scored, they are labeled as a whole."""
    whole: By = "patient" if by == "patient" else "recording"
    if labels is not None:
        return LabeledShare.of_number(labels, whole, train.frames, train.rows)
    return LabeledShare(fraction, by if train.per == "row" else whole)


def _same_encoder(groups: Sequence[Sequence[Checkpoint]]) -> list[list[int]]:
    """Numbers of the groups that have the same kind of encoder."""
    kinds: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        kinds.setdefault(repr(sorted(group[0].card.encoder.items())), []).append(number)
    return list(kinds.values())


def _result(
    given: ProtocolInput,
    output: ProtocolOutput,
    members: slice,
    share: LabeledShare,
    resamples: int,
    facts: dict[str, Any],
) -> GroupResult:
    frames, checkpoints, device = given.frames, given.checkpoints[members], given.device
    copies = copies_of_seen(checkpoints, frames)
    validation, test = given.parts[1], given.parts[2]
    kept = ~copies[frames.recording[test.frame]]
    if not kept.any():
        raise LeakError(
            f"every test recording of {frames.dataset} is a copy of one that was trained on"
        )
    test = test.where(kept)
    recording = frames.recording[test.frame]
    at_once = test.per == "recording" or test.rows.leads_at_once > 0
    auc_validation = [
        metrics.macro(metrics.auc_per_class(s, validation.targets))
        for s in output.validation[members]
    ]
    card = checkpoints[0].card
    common: dict[str, Any] = {
        "method": card.method,
        "pretrain": card.dataset,
        "downstream": frames.dataset,
        "protocol": facts["protocol"],
        "fraction": share.fraction,
        "by": share.by,
        "split_seed": frames.split_seed,
    }
    predictions = Predictions(
        **common,
        content=frames.content,
        seeds=tuple(given.seeds[members]),
        labels=tuple(frames.labels),
        multilabel=frames.multilabel,
        probabilities=output.test[members][:, kept],
        targets=test.targets,
        thresholds=np.stack(
            [metrics.best_thresholds(s, validation.targets) for s in output.validation[members]]
        ),
        **numbered("patient", frames.patient[test.frame], frames.patient_ids),
        **numbered("recording", recording, frames.recording_ids),
        leads=(ALL_LEADS,) if at_once else tuple(frames.leads),
        frame=frames.segment[test.frame] * np.int32(test.per == "row"),
        lead=test.rows.lead[test.first] * (not at_once),
        per=test.per,
    )
    logits = output.test_logits[members][:, kept]
    plan = plan_of(predictions, resamples, device) if resamples else None
    draws = None if plan is None else draws_of(predictions, plan)
    draws_logits = None
    # in each class, a sigmoid keeps the order; a softmax does not
    if plan is not None and not (frames.multilabel or output.test_logits is output.test):
        draws_logits = macro_auc_draws(logits, predictions.targets, predictions.patient, plan)
    evaluation = Evaluation(
        **common,
        labels_count=share.labels,
        class_weights=given.weighted,
        seeds=list(predictions.seeds),
        embedding_dim=card.encoder["embedding_dim"],
        leads=leads_of(validation),
        encoder_leads=[] if card.dataset is None else list(card.leads),
        labeled=[len(own) for own in given.labeled[members]],
        left_out_copies=int(copies.sum()),
        split="; ".join(map(str, frames.folds.values())) or "hash",
        unlabeled_recordings=len(np.unique(frames.recording))
        - len(np.unique(frames.recording[frames.has_label])),
        settings=facts["settings"] | {k: v[members] for k, v in output.per_member.items()},
        curve=output.curves[members] or None,
        auc_validation=auc_validation,
        auc_validation_mean=float(np.mean(auc_validation)),
        per=test.per,
        noise=facts["seen"].noise,
        conditions=[
            score_under(
                condition,
                part,
                scores[members],
                copies,
                seeds=predictions.seeds,
                resamples=resamples,
                device=device,
            )
            for condition, part, scores in zip(
                facts["conditions"], given.parts[3:], output.further, strict=True
            )
        ],
        **overall_scores(predictions, logits, draws) | {"test_frames": len(test.rows)},
        **scores_by_sex_and_age(predictions, frames.sex[recording], frames.age[recording], plan),
    )
    classifiers = output.classifiers[members]
    return GroupResult(evaluation, predictions, classifiers, draws, draws_logits, logits)

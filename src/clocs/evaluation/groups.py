"""Groups of checkpoints, each the seeds of one method, scored on labeled frames at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import LeakError, SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import Sampled, check_resamples, clipped_interval, draws_of
from clocs.evaluation.labeled import (
    By,
    LabeledPart,
    LabeledShare,
    Per,
    ProtocolInput,
    ProtocolOutput,
    RecordingVectors,
    choose_labeled,
    rows_with_label,
)
from clocs.evaluation.protocols import find_protocol
from clocs.evaluation.result import Evaluation, Predictions, numbered
from clocs.frames.frames import ABSENT, SEXES, Frames
from clocs.frames.splits import PARTS, ValidationLabels
from clocs.frames.views import ALL_LEADS, with_seconds
from clocs.registry import chosen_options
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint, check_no_leak, copies_of_seen, expect_unit
from clocs.training.embed import StoreVectors
from clocs.training.loop import SAVE_EVERY, Epoch

AGES = (18, 40, 60, 80)  # years at which the next age group begins


@dataclass(frozen=True)
class GroupResult:
    """The evaluation of one group."""

    evaluation: Evaluation
    predictions: Predictions  # for the test part
    # one per seed, where the protocol has a linear layer on embeddings: encoders as they are after
    # training, with the layer's `head.weight` and `head.bias` among their weights
    classifiers: list[Checkpoint]
    draws: NDArray[np.float64] | None = None  # (resamples,) the bootstrap's, of the AUC
    # (members, rows, classes) of the test part, before they became probabilities
    logits: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))
    further: list[Predictions] = field(default_factory=list)  # of each further test

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
    validation_labels: ValidationLabels = "share",
    per: Per | None = None,
    seconds: float | None = None,
    further: Sequence[Callable[[LabeledPart], LabeledPart]] = (),
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
    also take longer or shorter ones. `further` tests the same classifiers on what each function
    makes of the test part. `curve` records the validation AUC after every epoch;
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
        expect_unit(group[0], frames.unit, frames.dataset)
    frames = frames if seconds is None else with_seconds(frames, seconds)
    groups = [
        [one.for_frame(frames.spec) if one.encoder.leads or seconds else one for one in group]
        for group in groups
    ]
    if per is None:
        per = "recording" if any(group[0].encoder.leads for group in groups) else "row"
    elif per not in get_args(Per):
        raise SettingError(f"`per` is {' or '.join(get_args(Per))}, not {per!r:.50}")
    settings = settings or Settings(batch_size=frames.batch_size)
    found: dict[int, GroupResult] = {}
    for together in _same_encoder(groups):
        checkpoints = [checkpoint for number in together for checkpoint in groups[number]]
        train, validation, test = _parts(checkpoints[0], frames, per)
        share = _share(fraction, by, labels, validation_labels, train)
        seeds = [checkpoint.card.seed for checkpoint in checkpoints]
        train, chosen = choose_labeled(train, seeds, share)
        validated = None
        if share.validation == "share" and share.fraction < 1:
            validation, known = choose_labeled(validation, seeds, share)
            validated = torch.from_numpy(known).to(device)
        given = ProtocolInput(
            checkpoints=checkpoints,
            parts=[train, validation, test, *(change(test) for change in further)],
            labeled=[torch.from_numpy(np.flatnonzero(own)).to(device) for own in chosen],
            validated=validated,
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
        used_settings = (settings.to_dict() if row.trains else {}) | options
        first = 0
        for number in together:
            members = slice(first, first + len(groups[number]))
            found[number] = _result(
                given, output, members, share, resamples, protocol, used_settings
            )
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


def _share(
    fraction: float, by: By, labels: int | None, validation: ValidationLabels, train: LabeledPart
) -> LabeledShare:
    """Where recordings are scored, they are labeled as a whole."""
    whole: By = "patient" if by == "patient" else "recording"
    if labels is not None:
        return LabeledShare.of_number(labels, whole, validation, train)
    return LabeledShare(fraction, by if train.per == "row" else whole, validation=validation)


def _same_encoder(groups: Sequence[Sequence[Checkpoint]]) -> list[list[int]]:
    """Numbers of the groups that have the same kind of encoder."""
    kinds: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        card = group[0].card
        kind = repr((sorted(card.encoder.items()), card.normalization, card.maxima))
        kinds.setdefault(kind, []).append(number)
    return list(kinds.values())


def _result(
    given: ProtocolInput,
    output: ProtocolOutput,
    members: slice,
    share: LabeledShare,
    resamples: int,
    protocol: str,
    settings: dict[str, Any],
) -> GroupResult:
    frames, checkpoints, device = given.frames, given.checkpoints[members], given.device
    copies = copies_of_seen(checkpoints, frames)
    validation, tests = given.parts[1], given.parts[2:]
    kept = [~copies[frames.recording[part.frame]] for part in tests]
    if not kept[0].any():
        raise LeakError(
            f"every test recording of {frames.dataset} is a copy of one that was trained on"
        )
    tests = [part.where(own) for part, own in zip(tests, kept, strict=True)]
    card = checkpoints[0].card
    common: dict[str, Any] = {
        "method": card.method,
        "pretrain": card.dataset,
        "downstream": frames.dataset,
        "protocol": protocol,
        "fraction": share.fraction,
        "by": share.by,
        "validation_labels": share.validation,
        "split_seed": frames.split_seed,
        "per": tests[0].per,
    }
    by_validation = _labeled_validation(given, output, members)
    thresholds = [metrics.best_thresholds(*one) for one in by_validation]
    about = common | {
        "content": frames.content,
        "seeds": tuple(given.seeds[members]),
        "labels": tuple(frames.labels),
        "multilabel": frames.multilabel,
        "thresholds": np.stack(thresholds),
    }
    predictions, *further = (
        predictions_for(part, scores[members][:, own], about)
        for part, scores, own in zip(tests, (output.test, *output.further), kept, strict=True)
    )
    logits = output.test_logits[members][:, kept[0]]
    recording = frames.recording[tests[0].frame]
    draws, by_group = draws_and_groups(predictions, frames, recording, resamples, device)
    aucs = [metrics.macro(metrics.auc_per_class(*one)) for one in by_validation]
    evaluation = Evaluation(
        **common,
        labels_count=share.labels,
        class_weights=given.weighted,
        seeds=list(predictions.seeds),
        embedding_dim=card.encoder["embedding_dim"],
        leads=leads_of(validation),
        encoder_leads=[] if card.dataset is None else list(card.leads),
        labeled=[len(own) for own in given.labeled[members]],
        labeled_validation=[len(targets) for _, targets in by_validation],
        left_out_copies=int(copies.sum()),
        split="; ".join(map(str, frames.folds.values())) or "hash",
        unlabeled_recordings=len(np.unique(frames.recording))
        - len(np.unique(frames.recording[frames.has_label])),
        settings=settings | {k: v[members] for k, v in output.per_member.items()},
        curve=output.curves[members] or None,
        auc_validation=aucs,
        auc_validation_mean=float(np.mean(aucs)),
        **overall_scores(predictions, logits, draws) | {"test_frames": len(tests[0].rows)},
        **by_group,
    )
    classifiers = output.classifiers[members]
    return GroupResult(evaluation, predictions, classifiers, draws, logits, further)


def _labeled_validation(
    given: ProtocolInput, output: ProtocolOutput, members: slice
) -> list[tuple[NDArray[np.float64], NDArray[np.uint8]]]:
    """For each member, predictions and targets of what has a label of the validation part."""
    scores, targets = output.validation[members], given.parts[1].targets
    if given.validated is None:
        return [(one, targets) for one in scores]
    known = given.validated[members].cpu().numpy()
    return [(one[own], targets[own]) for one, own in zip(scores, known, strict=True)]


def predictions_for(
    part: LabeledPart, scores: NDArray[np.float64], facts: dict[str, Any]
) -> Predictions:
    """Those for a test part, with these facts about them; scores: (members, rows, classes)."""
    frames = part.frames
    at_once = part.per == "recording" or part.rows.leads_at_once > 0
    return Predictions(
        **facts,
        probabilities=scores,
        targets=part.targets,
        **numbered("patient", frames.patient[part.frame], frames.patient_ids),
        **numbered("recording", frames.recording[part.frame], frames.recording_ids),
        leads=(ALL_LEADS,) if at_once else tuple(frames.leads),
        frame=frames.segment[part.frame] * np.int32(part.per == "row"),
        lead=part.rows.lead[part.first] * (not at_once),
    )


def leads_of(part: LabeledPart) -> list[str]:
    """The leads that its rows have."""
    rows, leads = part.rows, part.frames.leads
    if not rows.leads_at_once:
        present = np.isin(np.arange(len(leads)), rows.lead)
    else:
        present = (rows.in_view() != ABSENT).any(axis=0)
    return [lead for lead, there in zip(leads, present, strict=True) if there]


def overall_scores(
    predictions: Predictions,
    logits: NDArray[np.float64],
    draws: NDArray[np.float64] | None,
) -> dict[str, Any]:
    """The fields of `Evaluation` that are scores; logits: (members, rows, classes)."""
    p, targets = predictions, predictions.targets
    per_class = {
        "auc": [metrics.auc_per_class(s, targets) for s in p.probabilities],
        "ap": [metrics.average_precision(s, targets) for s in p.probabilities],
        "f1": [
            metrics.f1_per_class(s, targets, thresholds)
            for s, thresholds in zip(p.probabilities, p.thresholds, strict=True)
        ],
    }
    recordings = [metrics.by_recording(s, targets, p.recording) for s in p.probabilities]
    per_seed = {name: [metrics.macro(v) for v in values] for name, values in per_class.items()} | {
        "auc_recording": [metrics.macro(metrics.auc_per_class(*one)) for one in recordings],
        "ap_recording": [metrics.macro(metrics.average_precision(*one)) for one in recordings],
        "auc_logits": [metrics.macro(metrics.auc_per_class(z, targets)) for z in logits],
        "accuracy": [
            metrics.accuracy(s, targets, thresholds, multilabel=p.multilabel)
            for s, thresholds in zip(p.probabilities, p.thresholds, strict=True)
        ],
    }
    means = {
        name: dict(zip(p.labels, np.mean(values, axis=0).tolist(), strict=True))
        for name, values in per_class.items()
    }
    return {
        **per_seed,
        **{f"{name}_mean": float(np.mean(values)) for name, values in per_seed.items()},
        **{f"{name}_per_class": values for name, values in means.items()},
        "auc_std": float(np.std(per_seed["auc"], ddof=1)) if len(p.seeds) > 1 else None,
        "ci95": None if draws is None else clipped_interval(draws),
        "undefined_classes": [label for label, v in means["auc"].items() if math.isnan(v)],
        "thresholds": dict(zip(p.labels, p.thresholds.T.tolist(), strict=True)),
        "test_patients": len(np.unique(p.patient)),
        "test_frames": len(p),
    }


def draws_and_groups(
    predictions: Predictions,
    frames: Frames,
    recording: NDArray[np.integer],
    resamples: int,
    device: torch.device | str,
) -> tuple[NDArray[np.float64] | None, dict[str, Any]]:
    """The draws of all rows, and `by_sex` and `by_age`: scores of groups of test patients.

    recording: (rows,) index into `frames.recording_ids`; no draws without `resamples`.
    """
    sex, age = frames.sex[recording], frames.age[recording]
    edges = (0, *AGES, math.inf)
    every = {("by_sex", name): sex == number for number, name in enumerate(SEXES) if number}
    for low, high in pairwise(edges):
        name = f"{low}+" if high == math.inf else f"{low}–{high - 1}"
        every["by_age", name] = (age >= low) & (age < high)
    parts = {what: rows for what, rows in every.items() if rows.any()}
    draws: Sequence[NDArray[np.float64] | None] = [None] * (1 + len(parts))
    if resamples:
        draws = list(draws_of(predictions, resamples, device, [*parts.values()]))
    groups: dict[str, Any] = {"by_sex": {}, "by_age": {}}
    for ((kind, name), rows), own in zip(parts.items(), draws[1:], strict=True):
        groups[kind][name] = _group(predictions.where(rows), own)
    return draws[0], groups


def _group(p: Predictions, draws: NDArray[np.float64] | None) -> dict[str, Any]:
    auc = np.stack([metrics.auc_per_class(s, p.targets) for s in p.probabilities])
    missing = np.isnan(auc).all(axis=0)
    return {
        "patients": len(np.unique(p.patient)),
        "frames": len(p),
        "auc_mean": float(np.mean([metrics.macro(values) for values in auc])),
        "ci95": None if draws is None else clipped_interval(draws),
        "undefined_classes": [p.labels[c] for c in np.flatnonzero(missing)],
    }

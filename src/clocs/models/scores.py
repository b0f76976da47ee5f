"""Scores of a classifier on test patients, as in its card; `clocs.evaluate_classifier`.

With them its calibration: temperatures that make probabilities honest, and how honest they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, log_expit, log_softmax, logsumexp, softmax

from clocs.errors import LeakError, SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import check_resamples, clipped_interval
from clocs.evaluation.groups import draws_and_groups, predictions_for
from clocs.evaluation.labeled import LabeledPart, RecordingVectors, rows_with_label
from clocs.evaluation.result import Predictions, plain
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.make import expect_leads, leads_of_those, make_frames
from clocs.frames.splits import split_of
from clocs.models.classifier import Classifier, as_classifier, ecg_share_and_flat
from clocs.store.store import Store, as_store
from clocs.training.card import Card, ClassifierCard
from clocs.training.checkpoint import TEST, check_no_leak, copies_of_seen
from clocs.training.embed import AT_ONCE
from clocs.training.signals import pick_device

Logits = NDArray[np.float64]  # (rows, classes)
Targets = NDArray[np.uint8]  # (rows, classes)

COLDEST, HOTTEST = 0.01, 100.0  # temperatures to choose from
_BEYOND = {"ecg_share": "too_noisy", "distance": "too_far", "confidence": "unsure"}
BINS = 15  # of equally many rows, for the calibration error


def evaluate_classifier(
    classifier: Classifier | Path | str,
    store: Store | Path | str,
    *,
    label_names: Mapping[str, str] | None = None,
    leads: Sequence[str] | None = None,
    split: Literal["hash", "folds"] | None = None,
    test_folds: Sequence[str] | None = None,
    validation_folds: Sequence[str] | None = None,
    split_seed: int | None = None,
    resamples: int = 2000,
    device: str | None = None,
) -> dict[str, Any]:
    """Score a classifier on the test patients of a labeled store; nothing is trained.

    On the store that it was trained with, these are the scores of its card.

    Args:
        classifier: A classifier, or its file.
        store: Recordings with the same labels.
        label_names: What labels of the store are called in the classifier, where they differ.
        leads: By name; those that the classifier was trained on by default, as far as the store has
            them.
        split: Whether the 'hash' of patients or official 'folds' decide who is tested on; as in
            training by default, where it was on this dataset.
        test_folds: The folds to test on.
        validation_folds: The folds to validate on, which are left out.
        split_seed: Random seed for the patient split; that of training by default.
        resamples: Bootstrap resamples of patients; 0 for no intervals.
        device: 'cpu', 'cuda' …; the best available by default.

    Raises:
        SettingError: The labels of the store are others.
        LeakError: A test patient was trained on.
    """
    check_resamples(resamples)
    classifier, store = as_classifier(classifier), as_store(store)
    card, encoder = classifier.card, classifier.encoders[0].card
    named = [(label_names or {}).get(label, label) for label in store.manifest.labels]
    _expect_labels(card, store, named)
    by = split_of(split, test_folds, validation_folds)
    known = next((one for one in encoder.trained_on if one.dataset == store.manifest.dataset), None)
    if known is not None:
        split_seed = known.split_seed if split_seed is None else split_seed
        by = (known.folds or "hash") if by is None else by
    frames = make_frames(
        store,
        spec=encoder.frame,
        leads=leads_to_read(encoder, store) if leads is None else leads,
        split=by,
        split_seed=split_seed or 0,
    )
    order = [named.index(label) for label in card.labels]  # that of the classifier
    frames = replace(frames, labels=card.labels, target=frames.target[:, order])
    return scores_on_test(classifier, frames, resamples=resamples, device=pick_device(device))


def leads_to_read(encoder: Card, store: Store) -> list[str]:
    """Those of the classifier that the store has."""
    wanted = tuple(encoder.encoder.get("leads") or encoder.leads)
    found, known = leads_of_those(store, wanted), encoder.encoder.get("leads", ())
    expect_leads(store, wanted, found, reader="the classifier reads", known=known)
    return found


def _expect_labels(card: ClassifierCard, store: Store, named: Sequence[str]) -> None:
    if sorted(named) != sorted(card.labels):
        raise SettingError(
            f"{store.path} has the labels {', '.join(named)}, and the classifier predicts "
            f"{', '.join(card.labels)}; give a store with the same, or say with `label_names` what "
            "they are called in the classifier"
        )
    if store.manifest.multilabel != card.multilabel:
        several = "several labels" if store.manifest.multilabel else "one label"
        raise SettingError(
            f"recordings of {store.path} can have {several}, unlike those that the classifier was "
            "trained on; give another store"
        )


@dataclass(frozen=True)
class ScoredPart:
    """Recordings of one part of a labeled store, in order, by one classifier."""

    part: LabeledPart
    vectors: NDArray[np.float32]  # (members, recordings, dim) the mean over the rows of each
    logits: Logits  # (recordings, classes)
    ecg_share: NDArray[np.float64]  # (recordings,) of the signals' power, from 0 to 1

    @property
    def targets(self) -> Targets:
        """(recordings, classes)."""
        return self.part.targets

    def doubts(self, classifier: Classifier) -> dict[str, NDArray[np.float64]]:
        """(recordings,) what the limits of a classifier are compared with, by name."""
        card, vectors = classifier.card, torch.from_numpy(self.vectors)
        chances = probabilities(self.logits, np.array(card.temperature), multilabel=card.multilabel)
        return classifier.doubts(chances, vectors, self.ecg_share)


def labeled_part(classifier: Classifier, frames: Frames, split: int | None) -> LabeledPart:
    """The labeled recordings of a part, or of all, cut into the rows that the encoders see."""
    leads = classifier.encoders[0].encoder.leads
    own = frames.for_leads(leads) if leads else frames
    return LabeledPart(own, rows_with_label(own, split, leads_at_once=bool(leads)), "recording")


def score_part(
    classifier: Classifier,
    part: LabeledPart,
    device: torch.device | str = "cpu",
    vectors: RecordingVectors | None = None,
) -> ScoredPart:
    """What the classifier makes of a part; `vectors` are by its encoders, as far as known."""
    found = (vectors or RecordingVectors(classifier.encoders, device)).of(part)
    logits = classifier.logits(found, part.lead_counts.tolist()).numpy()
    return ScoredPart(part, found.float().numpy(), logits, ecg_share_of(part, device))


def ecg_share_of(part: LabeledPart, device: torch.device | str = "cpu") -> NDArray[np.float64]:
    """(scored,) the ECG's mean share of each recording, over its frames and leads."""
    spec, starts = part.frames.spec, torch.from_numpy(part.rows.in_view())
    place = torch.from_numpy(part.place)
    if starts.ndim > 1:
        place = place[:, None].expand(starts.shape)
    there = starts != ABSENT
    starts, place = starts[there], place[there]
    windows = torch.from_numpy(part.frames.signals).unfold(0, spec.samples, 1)
    found = [
        ecg_share_and_flat(windows[some].to(device), spec.rate)[0].double().cpu()
        for some in starts.split(AT_ONCE)
    ]
    total = torch.bincount(place, torch.cat(found), minlength=len(part))
    return np.asarray((total / torch.bincount(place, minlength=len(part))).numpy())


def scores_on_test(
    classifier: Classifier,
    frames: Frames,
    vectors: RecordingVectors | None = None,
    *,
    resamples: int = 2000,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """All scores of a classifier on the test part of frames that are cut as it sees them."""
    for one in classifier.encoders:
        check_no_leak(one, frames)
    test = labeled_part(classifier, frames, TEST)
    copies = copies_of_seen(classifier.encoders, frames)
    kept = ~copies[test.frames.recording[test.frame]]
    if not kept.any():
        raise LeakError(
            f"every test recording of {frames.dataset} is a copy of one that was trained on"
        )
    scored = score_part(classifier, test.where(kept), device, vectors)
    p = predictions_of(classifier.card, scored)
    own = _scores(classifier.card, scored, p, resamples, device)
    made: dict[str, Any] = plain(
        own
        | {"left_out_copies": int((~kept).sum()), "abstention": _abstention(classifier, scored, p)}
    )
    return made


def _abstention(
    classifier: Classifier, scored: ScoredPart, p: Predictions
) -> dict[str, Any] | None:
    """How many recordings are within the limits, and the scores of these; None without limits."""
    if not classifier.card.limits:
        return None
    beyond = classifier.beyond(scored.doubts(classifier), scored.part.lead_counts.tolist())
    kept = ~np.any(list(beyond.values()), axis=0)
    counts: dict[str, Any] = {"coverage": float(kept.mean()), "recordings": int(kept.sum())}
    counts |= {_BEYOND[name]: int(own.sum()) for name, own in beyond.items()}
    if kept.any():
        counts |= _macro(p.where(kept), _per_class(p.where(kept)))
    if not kept.all():
        counts["accuracy_of_abstained"] = _accuracy(p.where(~kept))
    return counts


def _per_class(p: Predictions) -> dict[str, NDArray[np.float64]]:
    """(classes,) each."""
    chances, thresholds = p.probabilities[0], p.thresholds[0]
    return {
        "auc": metrics.auc_per_class(chances, p.targets),
        "ap": metrics.average_precision(chances, p.targets),
        "f1": metrics.f1_per_class(chances, p.targets, thresholds),
        **at_thresholds(chances, p.targets, thresholds),
    }


def _macro(p: Predictions, per_class: dict[str, NDArray[np.float64]]) -> dict[str, float]:
    means = {name: metrics.macro(per_class[name]) for name in ("auc", "ap", "f1")}
    return means | {"accuracy": _accuracy(p)}


def _accuracy(p: Predictions) -> float:
    return metrics.accuracy(p.probabilities[0], p.targets, p.thresholds[0], multilabel=p.multilabel)


def _scores(
    card: ClassifierCard,
    scored: ScoredPart,
    p: Predictions,
    resamples: int,
    device: torch.device | str,
) -> dict[str, Any]:
    """Of these recordings."""
    frames, recording = scored.part.frames, scored.part.frames.recording[scored.part.frame]
    draws, groups = draws_and_groups(p, frames, recording, resamples, device)
    for some in groups.values():
        for group in some.values():
            group["recordings"] = group.pop("frames")
            group["auc"] = group.pop("auc_mean")
    per_class = _per_class(p)
    return {
        "dataset": frames.dataset,
        "content": frames.content,
        "patients": len(np.unique(p.patient)),
        "recordings": len(p),
        **_macro(p, per_class),
        "ci95": None if draws is None else clipped_interval(draws),
        "per_class": {
            label: {name: float(values[c]) for name, values in per_class.items()}
            | {"recordings": int(p.targets[:, c].sum())}
            for c, label in enumerate(card.labels)
        },
        "confusion": confusion(
            p.probabilities[0], p.targets, p.thresholds[0], multilabel=card.multilabel
        ),
        "calibration": calibration(
            scored.logits, np.array(card.temperature), p.targets, multilabel=card.multilabel
        ),
        **groups,
    }


def predictions_of(card: ClassifierCard, scored: ScoredPart) -> Predictions:
    """Calibrated probabilities of these recordings, as paired tests and figures take them."""
    frames, encoder = scored.part.frames, card.encoders[0]
    chances = probabilities(scored.logits, np.array(card.temperature), multilabel=card.multilabel)
    about: dict[str, Any] = {
        "method": encoder.method,
        "pretrain": encoder.dataset,
        "downstream": frames.dataset,
        "content": frames.content,
        "protocol": card.protocol,
        "fraction": 1.0,
        "by": "recording",
        "split_seed": frames.split_seed,
        "seeds": (0,),
        "labels": card.labels,
        "multilabel": card.multilabel,
        "thresholds": np.array([[np.nan if t is None else t for t in card.thresholds]]),
        "per": "recording",
    }
    return predictions_for(scored.part, chances[None], about)


def at_thresholds(
    chances: NDArray[np.float64], targets: Targets, thresholds: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """(classes,) sensitivity and specificity; nan where there is no threshold or nobody."""
    predicted, true = chances >= thresholds, targets.astype(bool)
    known = np.where(np.isnan(thresholds), np.nan, 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "sensitivity": known * (predicted & true).sum(axis=0) / true.sum(axis=0),
            "specificity": known * (~predicted & ~true).sum(axis=0) / (~true).sum(axis=0),
        }


def confusion(
    chances: NDArray[np.float64],
    targets: Targets,
    thresholds: NDArray[np.float64],
    *,
    multilabel: bool,
) -> list[Any]:
    """Counts of recordings: rows are what is true, columns what is predicted.

    Multi-class: (classes, classes), predicted the most probable class. Multi-label: for each class
    [[neither, predicted only], [true only, both]], predicted from its threshold on.
    """
    true = targets.astype(bool)
    if not multilabel:
        found = np.zeros((targets.shape[1],) * 2, np.int64)
        np.add.at(found, (true.argmax(axis=1), chances.argmax(axis=1)), 1)
        return list(found.tolist())
    return [
        [[int((~t & ~p).sum()), int((~t & p).sum())], [int((t & ~p).sum()), int((t & p).sum())]]
        for t, p in zip(true.T, (chances >= thresholds).T, strict=True)
    ]


def probabilities(
    logits: Logits, temperature: NDArray[np.float64] | float, *, multilabel: bool
) -> NDArray[np.float64]:
    """(rows, classes) at these temperatures."""
    scaled = logits / temperature
    return np.asarray(expit(scaled) if multilabel else softmax(scaled, axis=1))


def fit_temperature(logits: Logits, targets: Targets, *, multilabel: bool) -> NDArray[np.float64]:
    """(classes,) the temperatures of the lowest negative log-likelihood.

    Multi-class: one for all classes. Multi-label: one for each class, 1 where all rows have it or
    none has. The likelihood is concave in 1 / temperature, so there is one best.
    """
    if not multilabel:
        return np.full(targets.shape[1], _best(logits, targets, multilabel=False))
    found = np.ones(targets.shape[1])
    for c in np.flatnonzero(targets.any(axis=0) & ~targets.all(axis=0)):
        found[c] = _best(logits[:, [c]], targets[:, [c]], multilabel=True)
    return found


def _best(logits: Logits, targets: Targets, *, multilabel: bool) -> float:
    def loss(log_temperature: float) -> float:
        return nll(logits / math.exp(log_temperature), targets, multilabel=multilabel)

    ends = math.log(COLDEST), math.log(HOTTEST)
    return math.exp(minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-8}).x)


def fit_moves(
    card: ClassifierCard, logits: Logits, true: Targets, known: NDArray[np.bool_] | Any = True
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(classes,) what to add to logits and what to divide them by then, to make labels likely.

    A penalty keeps both near 0 and the card's temperature where labels are few.

    Args:
        card: Of the classifier. Where several labels can hold, each has a divisor.
        logits: (rows, classes).
        true: (rows, classes) which classes the labels stand for.
        known: (classes,) which classes the labels tell; nothing is added to the others.
    """
    temperature, count = np.array(card.temperature), len(card.labels)

    def moves(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return x[:count] * known, temperature * np.exp(x[count:])

    def loss(x: NDArray[np.float64]) -> float:
        added, divided = moves(x)
        scaled = (logits + added) / divided
        if card.multilabel:
            each = np.where(true > 0, log_expit(scaled), log_expit(-scaled)) * known
        else:
            each = logsumexp(log_softmax(scaled, axis=1), axis=1, b=true)
        return float(np.square(x).sum() / 2 - each.sum())

    start = np.zeros(count + (count if card.multilabel else 1))
    return moves(minimize(loss, start, method="L-BFGS-B").x)


def nll(logits: Logits, targets: Targets, *, multilabel: bool) -> float:
    """The mean negative log-likelihood: of rows, or of rows and classes where it is multi-label."""
    y = targets.astype(np.float64)
    if not multilabel:
        return float(-(log_softmax(logits, axis=1) * y).sum(axis=1).mean())
    return float(-(y * log_expit(logits) + (1 - y) * log_expit(-logits)).mean())


def brier(chances: NDArray[np.float64], targets: Targets, *, multilabel: bool) -> float:
    """The mean squared error: of rows, summed over classes, or of rows and classes."""
    squares = np.square(chances - targets)
    return float(squares.mean() if multilabel else squares.sum(axis=1).mean())


def calibration_error(
    chances: NDArray[np.float64], targets: Targets, *, multilabel: bool, bins: int = BINS
) -> float:
    """The expected calibration error, in bins of equally many rows.

    Multi-class: of the class that is predicted. Multi-label: the mean over all classes.
    """
    if multilabel:
        each = [_error(p, y, bins) for p, y in zip(chances.T, targets.T, strict=True)]
        return float(np.mean(each))
    rows, predicted = np.arange(len(chances)), chances.argmax(axis=1)
    return _error(chances[rows, predicted], targets[rows, predicted], bins)


def _error(chance: NDArray[np.float64], true: Targets, bins: int) -> float:
    """The mean distance of promised and observed frequency, each row counting once."""
    order = np.argsort(chance, kind="stable")
    parts = np.array_split(order, min(bins, len(order)))
    return float(sum(abs((chance[own] - true[own]).sum()) for own in parts) / len(order))


def calibration(
    logits: Logits, temperature: NDArray[np.float64], targets: Targets, *, multilabel: bool
) -> dict[str, dict[str, float]]:
    """Expected calibration error, Brier score and likelihood, before and after the temperature."""
    made = {}
    for when, scale in (("before", np.ones(1)), ("after", temperature)):
        chances = probabilities(logits, scale, multilabel=multilabel)
        made[when] = {
            "ece": calibration_error(chances, targets, multilabel=multilabel),
            "brier": brier(chances, targets, multilabel=multilabel),
            "nll": nll(logits / scale, targets, multilabel=multilabel),
        }
    return made

"""`clocs.calibrate`: a classifier for a new site, from some labeled recordings of that site.

The encoder and the layer's weights stay. Each class's logit is moved and divided so that the site's
labels become more likely; a penalty keeps both near what they were where labels are few. How much
that helps is measured on patients of the site that had no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import CheckpointError, SettingError
from clocs.evaluation.labeled import RecordingVectors
from clocs.evaluation.result import plain
from clocs.frames.make import make_frames
from clocs.models import scores
from clocs.models.classifier import Classifier, as_classifier, load_classifier
from clocs.models.finetune import choose_limits
from clocs.store.store import Store, as_store
from clocs.training.card import LEAD_GROUPS, ClassifierCard, shipped_as
from clocs.training.checkpoint import seen_patients
from clocs.training.embed import StoreVectors
from clocs.training.signals import pick_device

PATIENTS = (0, 25, 50, 100, 200, 400)  # to learn from, in the report
FOLDS = DRAWS = 5  # of patients, and how often they are divided anew
FEWEST = 20  # patients of a site, and recordings that limits are chosen on
SCORES = ("accuracy", "ece", "coverage", "error_kept", "error_abstained")


@dataclass(frozen=True)
class LabeledSite:
    """n labeled recordings of a site."""

    vectors: torch.Tensor  # (members, n, dim)
    ecg_share: NDArray[np.float64]  # (n,)
    leads: NDArray[np.int64]  # (n,) how many
    patient: NDArray[np.int64]  # (n,)
    true: NDArray[np.uint8]  # (n, classes) which classes its labels stand for
    together: NDArray[np.bool_]  # (classes, classes) which are one at the site

    def where(self, kept: NDArray[np.bool_]) -> LabeledSite:
        share, leads, patient = self.ecg_share[kept], self.leads[kept], self.patient[kept]
        vectors, true = self.vectors[:, kept], self.true[kept]
        return LabeledSite(vectors, share, leads, patient, true, self.together)


def calibrate(
    model: Classifier | Path | str,
    store: Store | Path | str,
    *,
    out: Path | str | None = None,
    label_names: Mapping[str, str] | None = None,
    leads: Sequence[str] | None = None,
    device: str | None = None,
) -> Classifier:
    """Fit the probabilities and limits of a classifier to a new site, from its labeled recordings.

    A temperature and a bias of each class are learned, and the limits of abstention. The encoder,
    the weights of the layer and the thresholds stay. Patients that the classifier has learned from
    are left out.

    Args:
        model: A classifier made by `clocs finetune`, or the name of a shipped one.
        store: Labeled recordings of the site.
        out: The file to write, NAME.safetensors; nothing is written where None.
        label_names: What labels of the store are called in the classifier, such as
            AF=AFIB,Normal=SR|SB, where | stands between labels that are one at the site. Recordings
            without any of the classifier's labels are left out, and counted.
        leads: Leads by name; those that the classifier was trained on by default.
        device: 'cpu', 'cuda', …; the best available by default.

    Returns:
        The new classifier. `card.training["calibration"]` is the report, cross-validated by
        patient: accuracy, calibration error and abstention by the number of patients to learn from.

    Raises:
        SettingError: The store has too few patients with such labels.
        CheckpointError: `out` exists, or is no name of a classifier.
    """
    if out is not None and (Path(out).exists() or Path(out).suffix != ".safetensors"):
        raise CheckpointError(f"{out} exists or does not end in .safetensors; give another `out`")
    classifier, opened, names = as_classifier(model), as_store(store), dict(label_names or {})
    site, left_out = labeled_site(classifier, opened, names, leads, pick_device(device))
    report = {
        "dataset": opened.manifest.dataset,
        "patients": len(np.unique(site.patient)),
        "recordings": len(site.true),
        "recordings_left_out": left_out,
        "label_names": names,
        "held_out": _held_out(classifier, site),
    }
    made = _fitted(classifier, site)
    training = made.card.training | {"calibration": plain(report)}
    made = replace(made, card=replace(made.card, training=training))
    if out is None:
        return made
    made = replace(made, card=replace(made.card, name=Path(out).stem))
    made.save(out, shared=all(shipped_as(one.card.weights_sha256) for one in made.encoders))
    return load_classifier(out)


def labeled_site(
    classifier: Classifier,
    store: Store,
    names: Mapping[str, str],
    leads: Sequence[str] | None,
    device: torch.device,
) -> tuple[LabeledSite, int]:
    """Labeled recordings of unknown patients, and how many have no label of the classifier's."""
    stands, encoder = _meaning(classifier.card, store, names), classifier.encoders[0].card
    wanted = leads or scores.leads_to_read(encoder, store)
    frames = make_frames(store, spec=encoder.frame, leads=wanted)
    part = scores.labeled_part(classifier, frames, None)
    seen = np.any([seen_patients(one, part.frames) for one in classifier.encoders], axis=0)
    part = part.where(~seen[part.frames.patient[part.frame]])
    true, outcomes = np.minimum(part.targets @ stands, 1), stands[stands.any(axis=1)].tolist()
    several = classifier.card.multilabel
    kept = np.array([several or one in outcomes for one in true.tolist()], np.bool_)
    part = part.where(kept)
    patient = part.frames.patient[part.frame].astype(np.int64)
    if len(np.unique(patient)) < FEWEST:
        raise SettingError(
            f"{store.path} has {len(np.unique(patient))} patients with labels of the classifier "
            f"from whom it has not learned; give at least {FEWEST}"
        )
    vectors = RecordingVectors(classifier.encoders, device, StoreVectors.of_frames(store, frames))
    scored = scores.score_part(classifier, part, device, vectors)
    z, together = torch.from_numpy(scored.vectors).double(), stands.T @ stands > 0
    made = LabeledSite(z, scored.ecg_share, part.lead_counts, patient, true[kept], together)
    return made, int((~kept).sum())


def _meaning(card: ClassifierCard, store: Store, names: Mapping[str, str]) -> NDArray[np.uint8]:
    """(labels of the store, classes) which classes a label stands for."""
    labels = store.manifest.labels
    wanted = [names.get(label, label).split("|") for label in labels]
    stands = np.array([[name in own for name in card.labels] for own in wanted], np.uint8)
    known = [name for one in names.values() for name in one.split("|")]
    fits = {*names} <= {*labels} and {*known} <= {*card.labels}
    fits &= all((a == b).all() or not (a & b).any() for a in stands for b in stands)
    # where several can hold, a label that is not there is absent, and none stands for several
    several = store.manifest.multilabel and stands.sum(axis=1).max() == 1
    two = len(np.unique(stands[stands.any(axis=1)], axis=0)) > 1
    if not (fits and (several if card.multilabel else two)):
        raise SettingError(
            f"{store.path} has the labels {', '.join(labels)}, and the classifier predicts "
            f"{', '.join(card.labels)}; say with `label_names` what they are called in it"
        )
    return stands


def _fitted(classifier: Classifier, site: LabeledSite) -> Classifier:
    """The classifier with the temperature, bias and limits of these recordings."""
    card, known = classifier.card, site.together.any(axis=0)
    logits = classifier.logits(site.vectors, site.leads.tolist()).numpy()
    added, divided = scores.fit_moves(card, logits, site.true, known)
    chances = scores.probabilities(logits + added, divided, multilabel=card.multilabel)
    # the layer's bias is scaled with its logits; what is added here is not
    by_leads = {
        group: one | {"bias": (one["bias"] + added * (1 - np.array(one["scale"]))).tolist()}
        for group, one in card.by_leads.items()
    }
    card = replace(card, temperature=tuple(divided.tolist()), by_leads=by_leads)
    bias = classifier.head["bias"] + torch.from_numpy(added.astype(np.float32))
    made = replace(classifier, card=card, head=classifier.head | {"bias": bias})
    doubts, limits = made.doubts(chances, site.vectors, site.ecg_share), dict(card.limits)
    number = np.searchsorted([int(group) for group in LEAD_GROUPS], site.leads, side="right") - 1
    for n, group in enumerate(LEAD_GROUPS):
        if (own := number == n).sum() >= FEWEST:
            limits[group] = choose_limits({name: one[own] for name, one in doubts.items()})
    return replace(made, card=replace(card, limits=limits))


def _held_out(classifier: Classifier, site: LabeledSite) -> list[dict[str, float]]:
    """Scores of patients without a part in the fit, by how many it was of; 0: before it.

    Means over `DRAWS`, and the standard deviation of the calibration error.
    """
    patients = np.unique(site.patient)
    rest = len(patients) - math.ceil(len(patients) / FOLDS)
    numbers = [n for n in PATIENTS if n < rest] + [rest]
    found = np.zeros((len(numbers), DRAWS, len(SCORES)))
    for place, draw in np.ndindex(found.shape[:2]):
        n, order, parts = numbers[place], np.random.default_rng(draw).permutation(patients), []
        for fold in range(FOLDS):
            learned = np.isin(site.patient, np.delete(order, np.s_[fold::FOLDS])[:n])
            own = _fitted(classifier, site.where(learned)) if n else classifier
            parts.append(_decided(own, site.where(np.isin(site.patient, order[fold::FOLDS]))))
        chances, true, kept, wrong = map(np.concatenate, zip(*parts, strict=True))
        ece = scores.calibration_error(chances, true, multilabel=classifier.card.multilabel)
        errors = [wrong[own].mean() if own.any() else math.nan for own in (kept, ~kept)]
        found[place, draw] = (1 - wrong.mean(), ece, kept.mean(), *errors)
    spread, means = found[..., SCORES.index("ece")].std(axis=1), found.mean(axis=1).tolist()
    return [
        {"patients": n, "ece_sd": float(sd)} | dict(zip(SCORES, own, strict=True))
        for n, sd, own in zip(numbers, spread, means, strict=True)
    ]


def _decided(classifier: Classifier, site: LabeledSite) -> tuple[NDArray[Any], ...]:
    """(n, outcomes) probabilities and labels of what the site tells apart; (n,) kept, and wrong."""
    known = site.together.any(axis=0)
    logits = classifier.logits(site.vectors, site.leads.tolist())
    chances = classifier.probabilities(logits).numpy()
    doubts = classifier.doubts(chances, site.vectors, site.ecg_share)
    kept = ~np.any(list(classifier.beyond(doubts, site.leads.tolist()).values()), axis=0)
    if classifier.card.multilabel:
        wrong = (classifier.over_threshold(chances) != site.true)[:, known].any(axis=1)
        return chances[:, known], site.true[:, known], kept, wrong
    chances = chances @ np.maximum(site.together, np.eye(len(site.together)))
    return chances, site.true, kept, site.true[np.arange(len(kept)), chances.argmax(axis=1)] == 0

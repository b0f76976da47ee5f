"""How honest a classifier is at a hospital whose labels had no part in it, and what it lacks.

    PYTHONPATH=. python benchmarks/another_hospital.py MODEL STORE [--label-names …] [--leads …]

Recordings of patients whom it has not seen, with labels that it predicts. Intervals are of 95 %,
over patients. Beside the expected calibration error stands that of a classifier with the same
probabilities that are right as often as they say: what is left of it at this number of recordings.

Where classes exclude each other, the probabilities are also changed in ways that need no labels of
the hospital: by its share of each class, as expectation and maximization finds it in the
predictions (Saerens et al. 2002), with the shares of training counting as so many recordings; by
equal shares; and by leaving out classes that the hospital does not name.

Chapman's findings about form lie beside the rhythm in its store. There, a classifier of the nine
diagnoses of PhysioNet 2020 is scored on the eight that both name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import clocs
from clocs.evaluation import metrics
from clocs.frames.make import make_frames
from clocs.models import scores
from clocs.models.calibrate import labeled_site
from clocs.models.classifier import Classifier, load_classifier
from clocs.store.store import Store
from clocs.training.checkpoint import TEST

DRAWS = 2000
COUNTS_AS = (0, 100, 400)  # recordings that the shares of training stand for
FINDINGS = {  # of Chapman, and what PhysioNet 2020 calls them
    "1AVB": "I-AVB", "APB": "PAC", "LBBB": "LBBB", "RBBB": "RBBB", "STDD": "STD", "VPB": "PVC",
}  # fmt: skip

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """n recordings of a hospital."""

    chances: Floats  # (n, classes)
    true: NDArray[np.uint8]  # (n, classes) which classes its labels stand for
    together: NDArray[np.bool_]  # (classes, classes) which are one there
    kept: NDArray[np.bool_]  # (n,) not abstained from
    patient: NDArray[np.int64]

    def sure(self, chances: Floats) -> tuple[Floats, Floats]:
        """(n,) the probability of the most probable outcome, and whether it is right."""
        merged = chances @ np.maximum(self.together, np.eye(len(self.together)))
        rows, first = np.arange(len(merged)), merged.argmax(axis=1)
        return np.minimum(merged[rows, first], 1), self.true[rows, first].astype(np.float64)


def scored(model: Classifier, store: Store, names: dict[str, str], leads: list[str]) -> Scored:
    """Recordings of patients whom it has not seen."""
    site = labeled_site(model, store, names, leads or None, torch.device("cpu"))[0]
    counts = site.leads.tolist()
    chances = model.probabilities(model.logits(site.vectors, counts)).numpy()
    beyond = model.beyond(model.doubts(chances, site.vectors, site.ecg_share), counts)
    kept = ~np.any(list(beyond.values()), axis=0)
    return Scored(chances, site.true, site.together, kept, site.patient)


def chapman_diagnoses(model: Classifier, store: Store, leads: list[str]) -> Scored:
    """Test recordings of Chapman; atrial fibrillation is its group, with flutter."""
    encoder, table = model.encoders[0].card, store.table
    frames = make_frames(
        store, spec=encoder.frame, leads=leads or scores.leads_to_read(encoder, store)
    )
    part = scores.labeled_part(model, frames, TEST)
    about = {row["id"]: row for row in table.select("id", "labels", "extra").to_dicts()}
    found = []
    for name in np.asarray(frames.recording_ids)[frames.recording[part.frame]].tolist():
        extra = json.loads(about[name]["extra"])
        own = {FINDINGS.get(one) for one in extra["beat"].split()}
        own |= {"AF"} if "AFIB" in about[name]["labels"] else set()
        own |= {"Normal"} if (extra["rhythm"], extra["beat"]) == ("SR", "NONE") else set()
        found.append([label in own for label in model.card.labels])
    known = np.isin(model.card.labels, [*FINDINGS.values(), "AF", "Normal"])
    made = scores.score_part(model, part)
    heat = np.array(model.card.temperature)
    chances = scores.probabilities(made.logits, heat, multilabel=True)
    beyond = model.beyond(made.doubts(model), part.lead_counts.tolist())
    kept = ~np.any(list(beyond.values()), axis=0)
    patient = frames.patient[part.frame].astype(np.int64)
    return Scored(chances, np.array(found, np.uint8), np.diag(known), kept, patient)


def interval(value: Callable[[NDArray[np.int64]], float], patient: NDArray[np.int64]) -> str:
    """Of these recordings, with its interval over draws of patients."""
    random, own = np.random.default_rng(0), [np.flatnonzero(patient == n) for n in set(patient)]
    drawn = [
        value(np.concatenate([own[n] for n in random.integers(len(own), size=len(own))]))
        for _ in range(DRAWS)
    ]
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return f"{value(np.arange(len(patient))):.3f} ({low:.3f}–{high:.3f})"


def error(sure: Floats, right: NDArray[Any]) -> float:
    """The expected calibration error of one outcome."""
    return scores.calibration_error(sure[:, None], right[:, None].astype(np.uint8), multilabel=True)


def expected(sure: Floats) -> Floats:
    """(draws,) calibration errors of outcomes that are right as often as these say."""
    random = np.random.default_rng(0)
    return np.array([error(sure, random.random(len(sure)) < sure) for _ in range(DRAWS)])


def print_one(model: Classifier, made: Scored) -> None:
    """Classes exclude each other."""
    sure, right = made.sure(made.chances)
    honest = expected(sure)
    labels = zip(model.card.labels, made.true.sum(axis=0).tolist(), strict=True)
    print("recordings of each class: " + ", ".join(f"{label} {n}" for label, n in labels))
    print(f"accuracy {interval(lambda n: right[n].mean(), made.patient)}")
    print(f"calibration error {interval(lambda n: error(sure[n], right[n]), made.patient)}")
    print(f"of honest probabilities {honest.mean():.3f}, {np.quantile(honest, 0.95):.3f} or more "
          "in one of 20 draws")  # fmt: skip
    print_kept(made, right == 0)
    print("\n| most probable | recordings | probability | right |\n| --- | ---: | ---: | ---: |")
    most = made.chances.argmax(axis=1)
    for place in np.flatnonzero(np.bincount(most, minlength=len(model.card.labels))):
        own = most == place
        print(f"| {model.card.labels[place]} | {own.sum()} | {sure[own].mean():.3f} | "
              f"{right[own].mean():.3f} |")  # fmt: skip
    print("\n| probabilities | calibration error | of honest ones | accuracy |")
    print("| --- | ---: | ---: | ---: |")
    for name, chances in changed(model, made):
        own, good = made.sure(chances)
        print(
            f"| {name} | {error(own, good):.3f} | {expected(own).mean():.3f} | {good.mean():.3f} |"
        )


def changed(model: Classifier, made: Scored) -> Iterator[tuple[str, Floats]]:
    """Probabilities as they are, and in each of the ways that need no labels."""
    per_class = model.card.scores["per_class"]
    trained = np.array([per_class[label]["recordings"] for label in model.card.labels], float)
    trained /= trained.sum()
    yield "as shipped", made.chances
    for count in COUNTS_AS:
        share = trained
        for _ in range(500):
            mean = _normalized(made.chances * share / trained).sum(axis=0)
            share = (mean + count * trained) / (len(made.chances) + count)
        yield f"shares found, {count} of training", _normalized(made.chances * share / trained)
    yield "equal shares", _normalized(made.chances / trained)
    yield "classes of the hospital", _normalized(made.chances * made.together.any(axis=0))


def _normalized(chances: Floats) -> Floats:
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def print_several(model: Classifier, made: Scored) -> None:
    """Several classes can hold."""
    known = made.together.any(axis=0)
    made = replace(made, chances=made.chances[:, known], true=made.true[:, known])
    names = np.array(model.card.labels)[known].tolist()
    at = np.array([np.inf if t is None else t for t in model.card.thresholds])[known]
    wrong = (made.chances >= at) != made.true
    each = [expected(own).mean() for own in made.chances.T]

    def auc(n: NDArray[np.int64]) -> float:
        return float(metrics.macro(metrics.auc_per_class(made.chances[n], made.true[n])))

    def calibration(n: NDArray[np.int64]) -> float:
        return scores.calibration_error(made.chances[n], made.true[n], multilabel=True)

    print(f"AUROC {interval(auc, made.patient)}")
    print(f"accuracy per class {interval(lambda n: 1 - wrong[n].mean(), made.patient)}")
    print(f"calibration error {interval(calibration, made.patient)}; "
          f"of honest probabilities {np.mean(each):.3f}")  # fmt: skip
    print_kept(made, wrong.any(axis=1))
    print("\n| | recordings | AUROC | sensitivity | specificity | mean probability | share | "
          "calibration error |")  # fmt: skip
    print("| --- " + "| ---: " * 7 + "|")
    for k, name in enumerate(names):
        p, y = made.chances[:, k], made.true[:, k]
        area = interval(partial(_area, p, y), made.patient)
        print(f"| {name} | {y.sum()} | {area} | {(p >= at[k])[y == 1].mean():.3f} | "
              f"{(p < at[k])[y == 0].mean():.3f} | {p.mean():.3f} | {y.mean():.3f} | "
              f"{error(p, y):.3f} |")  # fmt: skip


def _area(p: Floats, y: NDArray[np.uint8], rows: NDArray[np.int64]) -> float:
    return float(metrics.auc_per_class(p[rows, None], y[rows, None])[0])


def print_kept(made: Scored, wrong: NDArray[np.bool_]) -> None:
    """How much is kept, and the errors of both."""

    def of(chosen: NDArray[np.bool_]) -> str:
        return interval(lambda n: wrong[n][chosen[n]].mean() if chosen[n].any() else np.nan,
                        made.patient)  # fmt: skip

    print(f"kept {made.kept.mean():.1%}, error {of(made.kept)}; abstained from, {of(~made.kept)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store", type=Path)
    parser.add_argument("--label-names", default="", help="AF=AFIB,Normal=SR|SB")
    parser.add_argument("--leads", default="", help="I,II")
    chosen = parser.parse_args()
    model, store = load_classifier(chosen.model), clocs.open_store(chosen.store)
    names = dict(pair.split("=") for pair in chosen.label_names.split(",") if pair)
    leads = [lead for lead in chosen.leads.split(",") if lead]
    several = model.card.multilabel
    made = chapman_diagnoses(model, store, leads) if several else scored(model, store, names, leads)
    print(f"{model.card.name}, {len(made.true):,} recordings of {store.manifest.dataset}")
    (print_several if several else print_one)(model, made)


if __name__ == "__main__":
    main()

"""Does `--class-weights` help? A linear classifier with and without, on the same embeddings.

    python benchmarks/class_weights.py ENCODER STORE [--rare 4]

Recordings are embedded once. Temperature and thresholds of both classifiers are chosen on
validation patients, as `clocs finetune` does; all numbers are of test patients, per recording. The
recall of rare labels is given twice: at a probability of one half, which is what weights change
most, and at the thresholds of the best F1 that the card holds.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import clocs
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import Sampled, draws_of, paired
from clocs.evaluation.evaluate import frames_for
from clocs.evaluation.groups import score_groups
from clocs.evaluation.labeled import RecordingVectors
from clocs.evaluation.result import Predictions
from clocs.frames.frames import Frames
from clocs.models.finetune import assembled, calibrated
from clocs.models.scores import (
    at_thresholds,
    calibration_error,
    labeled_part,
    predictions_of,
    score_part,
)
from clocs.training.checkpoint import TEST, Checkpoint, load_checkpoint

SETTINGS = {"head": "linear", "members": "best"}


@dataclass(frozen=True)
class Measured:
    """A classifier's predictions for test recordings, and what they are worth."""

    predictions: Predictions

    @property
    def chances(self) -> NDArray[np.float64]:
        return np.asarray(self.predictions.probabilities[0])

    @property
    def scores(self) -> dict[str, float]:
        p, y, limits = self.chances, self.predictions.targets, self.predictions.thresholds[0]
        half, multilabel = np.full(y.shape[1], 0.5), self.predictions.multilabel
        return {
            "AUROC": metrics.macro(metrics.auc_per_class(p, y)),
            "average precision": metrics.macro(metrics.average_precision(p, y)),
            "macro F1, thresholds of validation": metrics.macro(metrics.f1_per_class(p, y, limits)),
            "macro F1, at one half": metrics.macro(metrics.f1_per_class(p, y, half)),
            "calibration error": calibration_error(p, y, multilabel=multilabel),
        }

    def recall(self, *, at_half: bool) -> NDArray[np.float64]:
        """(classes,)."""
        limits = self.predictions.thresholds[0]
        limits = np.full_like(limits, 0.5) if at_half else limits
        return at_thresholds(self.chances, self.predictions.targets, limits)["sensitivity"]


def measured(
    encoder: Checkpoint, frames: Frames, vectors: RecordingVectors, *, weighted: bool
) -> Measured:
    (result,) = score_groups(
        [[encoder]],
        frames,
        protocol="linear-converged",
        by="recording",
        per="recording",
        class_weights=weighted,
        resamples=0,
        vectors=vectors,
    )
    made = assembled([encoder], result, frames, "class-weights", SETTINGS)
    made = calibrated(made, frames, vectors)
    scored = score_part(made, labeled_part(made, frames, TEST), vectors=vectors)
    return Measured(predictions_of(made.card, scored))


def sampled(one: Measured, name: str) -> Sampled:
    p = one.predictions
    return Sampled(name, {0: one.scores["AUROC"]}, draws_of(p, 2000)[0])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    arguments.add_argument("encoder", help="an encoder of `clocs pretrain`, or a shipped one")
    arguments.add_argument("store", type=Path)
    arguments.add_argument("--rare", type=int, default=4, help="labels whose recall is shown")
    given = arguments.parse_args()
    encoder = load_checkpoint(given.encoder)
    frames = frames_for([[encoder]], clocs.open_store(given.store))
    vectors = RecordingVectors([encoder], "cpu")
    plain, weighted = (
        measured(encoder, frames, vectors, weighted=weighted) for weighted in (False, True)
    )
    print(f"{'':<36}{'without':>9}{'with':>9}{'difference':>12}{'ratio':>8}")

    def row(name: str, without: float, having: float) -> None:
        ratio = having / without if without else float("nan")
        print(f"{name:<36}{without:>9.3f}{having:>9.3f}{having - without:>+12.3f}{ratio:>8.2f}")

    for name, value in plain.scores.items():
        row(name, value, weighted.scores[name])
    counts = frames.target[np.unique(frames.recording, return_index=True)[1]].sum(axis=0)
    for c in np.argsort(counts)[: given.rare]:
        for at_half, words in ((True, "one half"), (False, "its threshold")):
            pair = [one.recall(at_half=at_half)[c] for one in (plain, weighted)]
            row(f"recall of {frames.labels[c]} ({counts[c]:,}) at {words}", *pair)
    found = paired(sampled(weighted, "with"), sampled(plain, "without"))
    low, high = found.ci95
    print(
        f"AUROC, with weights minus without: {found.difference:+.4f}, 95 % interval over patients "
        f"{low:+.4f} … {high:+.4f}, p = {found.p:.2g}"
    )


if __name__ == "__main__":
    main()

"""How much a diagnosis suffers from noise: a readout of clean frames, tested on noisy ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from clocs.evaluation.bootstrap import check_resamples, interval
from clocs.frames.frames import Frames
from clocs.training.checkpoint import Checkpoint
from research.analyses.frame_vectors import Readouts, about, auc_draws, with_interval
from research.noise import check_noise, kinds_at, with_noise

SNR_DB = (18.0, 12.0, 6.0, 0.0)


def noise_robustness(
    checkpoints: Sequence[Checkpoint],
    frames: Frames,
    *,
    kinds: Sequence[str] | None = None,
    snr_db: Sequence[float] = SNR_DB,
    seed: int = 0,
    resamples: int = 2000,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """The macro AUC per recording of test patients, without noise and with each kind and ratio.

    One linear readout per encoder, learned on clean training recordings, reads all of them. What is
    lost is compared patient by patient.

    Args:
        checkpoints: Seeds of one method.
        frames: Labeled frames, cut as the encoders expect them.
        kinds: Of `noise.KINDS`; all that frames of this rate can have by default.
        snr_db: Ratios of signal to noise, in dB.
        seed: Of the noise, which is the same for all encoders.
        resamples: Draws of the bootstrap over seeds and patients.
        device: Where to compute.

    Returns:
        `clean` and `noisy` scores, and settings.
    """
    check_resamples(resamples)
    kinds = kinds_at(frames.spec.rate) if kinds is None else kinds
    conditions = [(kind, float(db)) for kind in kinds for db in snr_db]
    for condition in conditions:
        check_noise(*condition)
    readouts = Readouts.fit(checkpoints, frames, device)
    seeds = [one.card.seed for one in checkpoints]

    def scored(some: Frames) -> dict[str, Any]:
        rows, chances = readouts.scores(some)
        return auc_draws(chances, rows, seeds=seeds, resamples=resamples)

    clean, noisy = scored(frames), []
    for kind, db in conditions:
        found = scored(with_noise(frames, kind, db, seed=seed))
        lost = clean["draws"] - found["draws"]
        noisy.append(
            {"kind": kind, "snr_db": db}
            | with_interval(found)
            | {"lost": clean["auc"] - found["auc"], "lost_ci95": interval(lost)}
        )
    return {
        "analysis": "noise",
        "dataset": frames.dataset,
        "split_seed": frames.split_seed,
        "leads": list(frames.leads),
        "frame": frames.spec.to_dict(),
        "encoders": [about(one) for one in checkpoints],
        "readout": "logistic regression per recording, L2 chosen on validation patients",
        "noise_seed": seed,
        "resamples": resamples,
        "clean": with_interval(clean),
        "noisy": noisy,
    }

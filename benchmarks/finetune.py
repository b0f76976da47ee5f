"""Fine-tunes an encoder that sees many leads, and compares it with a layer on the frozen one.

    PYTHONPATH=. python benchmarks/finetune.py cmsmlc-voltage stores/physionet2020 --device cuda

Prints the AUROC of validation and test recordings for each seed, with an interval over patients
and seeds, and that of the seed with the best score on validation patients. Settings were chosen on
validation patients of PhysioNet 2020 for `cmsmlc-voltage`. On two cores: `--epochs 2`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

import clocs
from clocs.evaluation.evaluate import frames_for
from clocs.evaluation.groups import score_groups
from clocs.frames.views import with_seconds
from clocs.training import Settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("encoder")
    parser.add_argument("store")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    one = clocs.load(given.encoder)
    assert isinstance(one, clocs.Checkpoint)
    group = [replace(one, card=replace(one.card, seed=seed)) for seed in range(given.seeds)]
    frames = with_seconds(frames_for([group], clocs.open_store(given.store)), given.seconds)
    settings = Settings(
        epochs=given.epochs,
        patience=given.epochs,
        batch_size=128,
        lr=3e-4,
        optimizer="adamw",
        weight_decay=0.05,
        schedule="cosine",
        warm_up=0.05,
        average=0.99,
    )
    ways: dict[str, dict[str, Any]] = {
        "linear-converged": {},
        "finetune": {
            "settings": settings,
            "head_dropout": 0.3,
            "stop_by": "auc",
            "crops": True,
            "lead_subsets": 0.5,
            "gaussian": 0.03,
            "precision": "bfloat16" if given.device.startswith("cuda") else "float32",
        },
    }
    for protocol, options in ways.items():
        own = group[:1] if protocol == "linear-converged" else group
        (made,) = score_groups(
            [own], frames, protocol=protocol, per="recording", device=given.device, **options
        )
        found = made.evaluation
        validation, test = (np.array(auc) for auc in (found.auc_validation, found.auc))
        assert found.ci95 is not None
        low, high = found.ci95
        print(f"{protocol}: test {test.mean():.4f} ({low:.4f} to {high:.4f}), ", end="")
        print(f"validation {validation.mean():.4f}")
        best = int(validation.argmax())
        pairs = " ".join(f"{a:.4f}/{b:.4f}" for a, b in zip(validation, test, strict=True))
        print(f"  of each seed, validation/test: {pairs}; the best on validation: {test[best]:.4f}")


if __name__ == "__main__":
    main()

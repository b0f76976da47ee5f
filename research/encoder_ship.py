"""Make a checkpoint of a trial of `encoder_trials.py`, to be used by every command.

    python -m research.encoder_ship 30-sharp.npz --results results.json --stores chapman \
        physionet2020 --out cmsmlc-voltage.safetensors

The stores are those of the recordings that it was trained on, with twelve leads: the leak guard
needs their hashes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from clocs.encoders.base import Weights
from clocs.frames.frames import join
from clocs.frames.make import make_frames
from clocs.pretraining.plan import Plan, make_card
from clocs.recording import FrameSpec
from clocs.store.store import open_store
from clocs.training.checkpoint import Checkpoint, hashed_recordings
from research.encoder_network import LEADS, RATE, Variant
from research.encoder_trials import variant_from

# what may differ from the defaults of a design without making another network than `voltage`
SHIPPED = ("input", "amplitudes", "reconstruct", "mix", "embedding_dim", "temperature")
BATCH = 512  # of `encoder_trials.py`
AMPLITUDES = {f"branch.{i}.{k}": f"amplitudes.linear{n}.{k}"
              for i, n in ((0, 1), (2, 2)) for k in ("weight", "bias")}  # fmt: skip


def tensors(path: Path) -> tuple[Variant, Weights, Weights]:
    """The design of a trial, its weights and its statistics, by the names of `voltage`."""
    arrays = dict(np.load(path))
    variant = variant_from(json.loads(str(arrays.pop("variant"))))
    if variant != replace(Variant(), **{name: getattr(variant, name) for name in SHIPPED}):
        raise ValueError(f"`voltage` is another design than {variant}")
    weights, buffers = {}, {}
    for name, array in arrays.items():
        kind, own = name.split(" ", 1)
        tensor = torch.from_numpy(array)[None].float()
        if kind == "statistic":
            buffers[own] = tensor
        else:
            own = AMPLITUDES.get(own) or own.removeprefix("weights.").replace("/", ".")
            weights[own] = tensor
    return variant, weights, buffers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--stores", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    variant, weights, buffers = tensors(given.weights)
    trial = json.loads(given.results.read_text())["trials"][given.weights.stem]
    spec = FrameSpec(variant.seconds, variant.samples)
    assert spec.rate == RATE
    stores = [open_store(path) for path in given.stores]
    frames = join([make_frames(store, spec=spec, leads=LEADS) for store in stores])
    plan = Plan("cmsmlc", encoder="voltage", embedding_dim=variant.embedding_dim + 64, dropout=0.0)
    card = make_card(frames, plan, 0, frame=spec, device=torch.device("cpu"))
    steps, usual = trial["training"]["steps"], asdict(Variant())
    design = {k: v for k, v in asdict(variant).items() if v != usual[k] and k != "embedding_dim"}
    epochs = round(steps * BATCH / len(np.unique(frames.recording[frames.split == 0])))
    card = replace(
        card,
        labels=(),
        training={"batch_size": BATCH, "lr": 1e-3, "optimizer": "adamw", "weight_decay": 0.01,
                  "schedule": "cosine", "warm_up": 0.05, "average": 0.998, "projection": 128,
                  "steps": steps, "trial": given.weights.stem, **design},
        metrics={"status": "all steps", "epochs": epochs, "best_epoch": epochs,
                 "validation_loss": None},
        environment={"torch": "2.11.0+cu130", "device": "cuda"},
    )  # fmt: skip
    made = Checkpoint(card, weights, buffers, hashed_recordings(frames, card.salt, (0, 1)))
    wanted = made.encoder
    shapes = {k: tuple(v.shape) for k, v in wanted.parameters(torch.tensor([0])).items()}
    assert shapes == {k: tuple(v.shape) for k, v in weights.items()}
    assert set(buffers) == set(wanted.buffers(1))
    made.save(given.out, half=True)
    print(given.out, f"{given.out.stat().st_size:,} bytes", len(made.recordings), "recordings seen")


if __name__ == "__main__":
    main()

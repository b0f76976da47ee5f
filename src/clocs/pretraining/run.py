"""Pre-training: a store, a method and seeds -> checkpoints in a folder.

Puts the parts together: frames, method, encoder, engine, checkpoints, log. Knows nothing about
evaluation or the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from clocs import keyed_random
from clocs.encoders.base import Encoder, Weights
from clocs.encoders.make import make_encoder
from clocs.errors import CheckpointError, SettingError
from clocs.files import partial_path, write_atomic
from clocs.frames.frames import Frames
from clocs.frames.views import instances
from clocs.locks import LOCK, locked
from clocs.pretraining.cards import make_checkpoint
from clocs.pretraining.log import recorded
from clocs.pretraining.methods import Method, find_method
from clocs.pretraining.objectives import make_task
from clocs.pretraining.plan import Plan
from clocs.pretraining.tensorboard import require_tensorboard
from clocs.recording import FrameSpec
from clocs.training.checkpoint import Checkpoint, load_checkpoint
from clocs.training.embed import stack
from clocs.training.fleet import epochs_done, remove_state
from clocs.training.loop import SAVE_EVERY, Epoch, Trained, fit
from clocs.training.memory import TRAINED, require_memory_to_encode
from clocs.training.signals import Signals

STATE, PLAN = "state.safetensors", "settings.json"


def pretrain_frames(
    frames: Frames,
    plan: Plan,
    out: Path,
    *,
    frame_to_use: FrameSpec | None = None,
    init: Sequence[Checkpoint] = (),
    device: torch.device | str = "cpu",
    stream: bool | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    save_every: float = SAVE_EVERY,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> list[Checkpoint]:
    """Train one encoder a seed and write `out/seed-N.safetensors` with their cards.

    Args:
        frames: The data, cut as the method sees it.
        plan: What to train.
        out: Folder for checkpoints, the log and, while it runs, the state to resume from.
        frame_to_use: The frame to evaluate with, where it differs from the training frame.
        init: Encoders to go on from: one for all seeds, or one a seed.
        device: Where to train.
        stream: Whether signals are brought to the device batch by batch; where None, if they are
            too large for it.
        resume: Go on from an interrupted run in `out`.
        tensorboard: Write event files, too, into `out/tensorboard`.
        save_every: Seconds between two savings of the state.
        on_step: Called with the steps done and the steps of an epoch.
        on_epoch: Called after each epoch.
    """
    method, device = plan.method_on(frames.dataset), torch.device(device)
    encoder = make_encoder(
        plan.encoder,
        embedding_dim=plan.embedding_dim,
        samples=frames.spec.samples,
        dropout=plan.dropout,
    )
    origins, files = _origins(init, plan, encoder), plan.files(out)
    if tensorboard:
        require_tensorboard()
    require_memory_to_encode(
        encoder,
        members=len(plan.members),
        batch=min(plan.settings.batch_size, len(frames)),
        device=device,
        copies=1 if method.asks is None else TRAINED,
    )
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"{out} is a file; give a folder for the checkpoints")
    with locked(out):
        _claim(out, plan, frames, init, resume=resume)
        if all(file.with_suffix(".json").exists() for file in files):
            remove_state(out / STATE)  # left by an interruption after the very last step
            return [load_checkpoint(file) for file in files]  # finished before
        if method.asks is None:
            trained = _untrained(frames, method, encoder, plan, device)
        else:
            task = make_task(
                frames,
                method,
                encoder,
                members=len(plan.members),
                batch_size=plan.settings.batch_size,
                choices=plan.choices,
                device=device,
                dtype=getattr(torch, plan.precision),
                perturb=[chain for chain in plan.chains if chain for _ in plan.seeds],
                start=stack(origins) if origins else None,
                stream=stream,
            )
            done = epochs_done(out / STATE)
            with recorded(out, plan, on_epoch, epochs=done, tensorboard=tensorboard) as report:
                trained = fit(
                    task,
                    [seed for _, seed in plan.members],
                    plan.settings,
                    device=device,
                    state=out / STATE,
                    save_every=save_every,
                    on_step=on_step,
                    on_epoch=report,
                )
        checkpoints = [
            make_checkpoint(
                frames,
                plan,
                encoder,
                trained,
                member,
                frame=frame_to_use or frames.spec,
                device=device,
                init=origins[member] if origins else None,
            )
            for member in range(len(plan.members))
        ]
        for file, checkpoint in zip(files, checkpoints, strict=True):
            checkpoint.save(file)
        remove_state(out / STATE)
    return checkpoints


def _origins(init: Sequence[Checkpoint], plan: Plan, encoder: Encoder) -> list[Checkpoint]:
    """The checkpoint that each member goes on from."""
    if not init:
        return []
    if find_method(plan.method).asks is None:
        raise SettingError(f"{plan.method} learns nothing, so it cannot go on from a checkpoint")
    by_seed = {checkpoint.card.seed: checkpoint for checkpoint in init}
    missing = [seed for seed in plan.seeds if seed not in by_seed]
    if missing and len(init) > 1:
        raise SettingError(
            f"--init has no checkpoint of seed {missing[0]}; give one, or one a seed"
        )
    shape = _shape(encoder)
    for checkpoint in init:
        if _shape(checkpoint.encoder) != shape:
            raise SettingError(
                f"--init holds an encoder {_shape(checkpoint.encoder)}, not {shape}; train "
                "with the same encoder, embedding dimension and frame"
            )
    return [init[0] if len(init) == 1 else by_seed[seed] for _, seed in plan.members]


def _shape(encoder: Encoder) -> str:
    """What must agree for weights to fit, in words."""
    return f"{encoder.name!r} of {encoder.samples} samples and E = {encoder.embedding_dim}"


def untrained(
    frames: Frames, plan: Plan, *, device: torch.device | str = "cpu"
) -> list[Checkpoint]:
    """Encoders of a method that learns nothing, one a seed; nothing is written."""
    method, device = plan.method_on(frames.dataset), torch.device(device)
    if method.asks is not None:
        raise SettingError(f"{plan.method} has to be trained; untrained are random and random-bn")
    encoder = make_encoder(
        plan.encoder,
        embedding_dim=plan.embedding_dim,
        samples=frames.spec.samples,
        dropout=plan.dropout,
    )
    made = _untrained(frames, method, encoder, plan, device)
    return [
        make_checkpoint(
            frames, plan, encoder, made, member, frame=frames.spec, device=device, init=None
        )
        for member in range(len(plan.seeds))
    ]


def _untrained(
    frames: Frames, method: Method, encoder: Encoder, plan: Plan, device: torch.device
) -> Trained:
    """Encoders as initialised; with `statistics`, batch norm has seen the training frames."""
    keys = keyed_random.member_keys(list(plan.seeds), device)
    weights = {k: v.to(device) for k, v in encoder.parameters(keys).items()}
    buffers = {k: v.to(device) for k, v in encoder.buffers(len(plan.seeds)).items()}
    if method.statistics:
        buffers = _statistics(frames, method, encoder, plan, weights, buffers, device)
    nothing = [0] * len(plan.seeds)
    return Trained(
        weights, buffers, [float("nan")] * len(nothing), nothing, 0, ["untrained"] * len(nothing)
    )


def _statistics(
    frames: Frames,
    method: Method,
    encoder: Encoder,
    plan: Plan,
    weights: Weights,
    buffers: Weights,
    device: torch.device,
) -> Weights:
    """Batch-norm statistics as the mean over all full batches of the training frames."""
    signals = Signals.of(frames, device)
    rows = torch.from_numpy(instances(frames, of=method.of, views=method.views, split=0).windows)
    starts = rows[:, 0].to(device)
    keys = keyed_random.member_keys(list(plan.seeds), device)
    order = starts[
        keyed_random.permutation(keyed_random.fold(keys, keyed_random.stream("order")), len(starts))
    ]
    undropped = make_encoder(
        plan.encoder, embedding_dim=plan.embedding_dim, samples=frames.spec.samples, dropout=0
    )
    size = min(plan.settings.batch_size, len(starts))
    with torch.no_grad():
        for step in range(len(starts) // size):
            x = signals.normalised(order[:, step * size : (step + 1) * size])
            _, buffers = undropped.encode_training(
                weights, buffers, x, keys, momentum=1 / (step + 1)
            )
    return buffers


def _claim(
    out: Path, plan: Plan, frames: Frames, init: Sequence[Checkpoint], *, resume: bool
) -> None:
    """Make `out` this run's folder, or refuse: nothing is overwritten."""
    want: dict[str, Any] = json.loads(
        json.dumps(
            asdict(plan)
            | {
                "data": frames.content,
                "split_seed": frames.split_seed,
                "leads": frames.leads,
                "frame": asdict(frames.spec),
                "init": [checkpoint.card.weights_sha256 for checkpoint in init],
            }
        )
    )
    of_ours = {LOCK, partial_path(out / PLAN).name}  # left by a run killed in its first moments
    if any(path.name not in of_ours for path in out.iterdir()):
        if not (out / PLAN).is_file():
            raise CheckpointError(f"{out} holds other files; give a new folder with --out")
        try:
            have = json.loads((out / PLAN).read_text(encoding="utf-8"))
        except ValueError:
            have = {}
        differing = sorted(name for name in want if have.get(name) != want[name])
        if differing:
            raise CheckpointError(
                f"{out} holds a pre-training with other settings ({', '.join(differing)}); "
                "give a new folder with --out"
            )
        if not resume:
            raise CheckpointError(
                f"{out} holds this pre-training already; add --resume to go on with it, or give a "
                "new folder with --out"
            )
    write_atomic(out / PLAN, json.dumps(want, indent=2).encode())

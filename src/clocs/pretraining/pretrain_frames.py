"""Pre-training: frames and a plan to checkpoints in a folder, with a log and a resumable state.

Also encoders that are not trained: initial weights, where wanted with batch norm fitted to data.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clocs.encoders.base import Encoder, Weights
from clocs.errors import CheckpointError, ClocsWarning, SettingError, TrainingError
from clocs.files import LOCK, leftovers, locked, write_atomic
from clocs.frames.frames import Frames
from clocs.frames.views import Instances, instances
from clocs.kernels import keyed_random
from clocs.pretraining.cards import make_card, make_checkpoint
from clocs.pretraining.epoch_log import logged, require_tensorboard
from clocs.pretraining.methods import METHODS
from clocs.pretraining.plan import Plan
from clocs.pretraining.shared_task import SharedTask, check_shareable
from clocs.pretraining.task import PretrainingTask, learnable_parts
from clocs.recording import FrameSpec
from clocs.sealed import spelled_for_files, spelled_in_code
from clocs.training.card import expect_readable
from clocs.training.checkpoint import Checkpoint, load_checkpoint
from clocs.training.embed import stack
from clocs.training.fleet import epochs_done, remove_state
from clocs.training.leak_guard import check_parts
from clocs.training.loop import SAVE_EVERY, Epoch, Trained, fit
from clocs.training.memory import TRAINED, require_memory_to_encode
from clocs.training.ranks import current
from clocs.training.signals import Signals

STATE, SETTINGS = "state.safetensors", "settings.json"


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
    recording_hashes: bool = True,
    save_every: float = SAVE_EVERY,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> list[Checkpoint]:
    """Train one encoder per seed and write `out/seed-N.safetensors` with their cards.

    Frames are cut as the method sees them; `frame_to_use` is the one to evaluate with, where it
    differs. During training, `out` also holds the state to resume from. `stream` says whether
    signals are brought to the device batch by batch; None: if they are too large for it. The other
    arguments are those of `clocs.pretrain`.

    In several processes (`clocs.training.ranks`), all call this; the first one alone touches `out`.

    Raises:
        TrainingError: Members diverged; the checkpoints of the others have been written.
    """
    device, ranks = torch.device(device), current()
    shared = plan.objective is not None and ranks.share(len(plan.members))
    encoder = plan.encoder_for(frames)
    origins, files = _origins(init, plan, encoder), plan.files(out)
    _check(frames, plan, shared=shared)
    _warn_about_leads(frames, plan)
    if plan.objective:
        # refuses before the folder is touched, as do the next lines
        _warn_about_crops(learnable_parts(frames, plan)[0])
    check_parts(frames)
    if tensorboard:
        require_tensorboard()
    require_memory_to_encode(
        encoder,
        members=len(plan.members),
        batch=min(plan.settings.batch_size, len(frames)),
        device=device,
        copies=TRAINED if plan.objective else 1,
    )
    frame, first = frame_to_use or frames.spec, origins[0] if origins else None
    expect_readable(make_card(frames, plan, 0, frame=frame, device=device, init=first))
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"{out} is a file; give a folder as `out`")
    with locked(out) if ranks.first else nullcontext():
        if ranks.first:
            _claim(out, plan, frames, init, resume=resume)
        if ranks.agreed(all(file.with_suffix(".json").exists() for file in files)):
            if ranks.first:
                remove_state(out / STATE)  # left by an interruption after the very last step
            return [load_checkpoint(file) for file in files]  # finished before
        if plan.objective is None:
            trained = _initial_weights(frames, plan, device)
        else:
            start = stack(origins) if origins else None
            kind = partial(SharedTask, ranks=ranks) if shared else PretrainingTask
            task = kind(frames, plan, device=device, start=start, stream=stream)
            learn = partial(
                fit,
                task,
                [seed for _, seed in plan.members],
                plan.settings,
                device=device,
                save_every=save_every,
                on_step=on_step,
                ranks=ranks,
            )
            if ranks.first:
                done = epochs_done(out / STATE)
                with logged(out, plan, on_epoch, epochs=done, tensorboard=tensorboard) as report:
                    trained = _resumable(learn, state=out / STATE, on_epoch=report)
            else:
                trained = learn(on_epoch=on_epoch)
        checkpoints = {
            file: make_checkpoint(
                frames,
                plan,
                trained,
                member,
                frame=frame,
                device=device,
                init=origins[member] if origins else None,
                recording_hashes=recording_hashes,
                processes=ranks.size,
                shared=shared,
            )
            for member, file in enumerate(files)
            if not trained.diverged[member]
        }
        if ranks.first:
            for file, checkpoint in checkpoints.items():
                checkpoint.save(file)
            remove_state(out / STATE)
        _check_converged(trained, plan, out)
    return list(checkpoints.values())


def _resumable(learn: Callable[..., Trained], **options: Any) -> Trained:
    try:
        return learn(**options)
    except KeyboardInterrupt as stop:
        stop.add_note("run the same command with `resume` to continue this training")
        raise


def _check(frames: Frames, plan: Plan, *, shared: bool) -> None:
    """Refuse a plan that does not fit the frames, or the processes."""
    if plan.normalization == "none" and frames.unit != "mV":
        raise SettingError(
            f"signals of {frames.dataset} are in {frames.unit}, not mV; leave out `normalization`"
        )
    if shared:
        check_shareable(plan, frames)


def _warn_about_leads(frames: Frames, plan: Plan) -> None:
    """Say which frames and leads nothing is learned from."""
    if frames.without_signal:
        warnings.warn(
            f"{frames.without_signal:,} frames × leads of {frames.dataset} are in gaps or flat and "
            "are left out",
            ClocsWarning,
            stacklevel=3,
        )
    lacking = int((~frames.present.all(axis=1)).sum())
    if plan.row.of == "frame" and lacking and not plan.many_leads:
        warnings.warn(
            f"{plan.method} compares all leads of a frame: {lacking:,} of {len(frames):,} frames "
            f"lack one of {', '.join(frames.leads)} and are left out",
            ClocsWarning,
            stacklevel=3,
        )
    seen = np.asarray(frames.present.any(axis=0))
    unseen = [lead for lead, known in zip(frames.leads, seen, strict=True) if not known]
    if plan.many_leads and unseen:
        warnings.warn(
            f"no recording of {frames.dataset} has {', '.join(unseen)}, so the encoder learns "
            "nothing of them; name those that it should see with `leads`",
            ClocsWarning,
            stacklevel=3,
        )


def _warn_about_crops(part: Instances) -> None:
    equal = 0 if part.room is None else int((part.room == 0).sum())
    if equal:
        warnings.warn(
            f"{equal:,} of {len(part):,} instances are one frame long, so that their random crops "
            "are all the same; shorter frames leave room to crop",
            ClocsWarning,
            stacklevel=3,
        )


def _check_converged(trained: Trained, plan: Plan, out: Path) -> None:
    """Name the members that diverged, if any."""
    names = [
        f"seed {seed}" + (f" of {chain}" if len(plan.chains) > 1 else "")
        for chain, seed in plan.members
    ]
    failed = [name for name, lost in zip(names, trained.diverged, strict=True) if lost]
    if not failed:
        return
    kept = [name for name in names if name not in failed]
    raise TrainingError(
        f"the training of {', '.join(failed)} diverged: the loss is no longer a finite number; "
        "try a lower `lr` or other options of the method, with a new folder as `out`"
        + (f" (the checkpoints of {', '.join(kept)} are in {out})" if kept else "")
    )


def _origins(init: Sequence[Checkpoint], plan: Plan, encoder: Encoder) -> list[Checkpoint]:
    """The checkpoint that each member starts from."""
    if not init:
        return []
    if plan.objective is None:
        raise SettingError(f"{plan.method} learns nothing, so it does not take `init`")
    by_seed = {checkpoint.card.seed: checkpoint for checkpoint in init}
    missing = [seed for seed in plan.seeds if seed not in by_seed]
    if missing and len(init) > 1:
        raise SettingError(
            f"`init` has no checkpoint of seed {missing[0]}; give one in all, or one per seed"
        )
    shape = _shape(encoder)
    for checkpoint in init:
        if _shape(checkpoint.encoder) != shape:
            raise SettingError(
                f"`init` is an encoder {_shape(checkpoint.encoder)}, not {shape}; train with the "
                "same encoder, embedding dimension and frame"
            )
    return [init[0] if len(init) == 1 else by_seed[seed] for _, seed in plan.members]


def _shape(encoder: Encoder) -> str:
    """What must agree for weights to fit."""
    leads = f", leads {', '.join(encoder.leads)}" if encoder.leads else ""
    return f"{encoder.name!r} of {encoder.samples} samples and E = {encoder.embedding_dim}{leads}"


def _claim(
    out: Path, plan: Plan, frames: Frames, init: Sequence[Checkpoint], *, resume: bool
) -> None:
    """Make `out` the folder of this run, or refuse: nothing is overwritten."""
    data = {
        "data": frames.content,
        "split_seed": frames.split_seed,
        "leads": frames.leads,
        "frame": frames.spec.to_dict(),
        "init": [checkpoint.card.weights_sha256 for checkpoint in init],
    }
    if frames.folds:
        data["folds"] = {name: folds.to_dict() for name, folds in frames.folds.items()}
    want = json.loads(json.dumps(plan.for_settings_file() | data))
    # What a run killed in its first moments leaves does not count.
    ours = {LOCK, *(path.name for path in leftovers(out / SETTINGS))}
    if any(path.name not in ours for path in out.iterdir()):
        if not (out / SETTINGS).is_file():
            raise CheckpointError(f"{out} holds other files; give a new folder as `out`")
        try:
            have = spelled_in_code(json.loads((out / SETTINGS).read_text(encoding="utf-8")))
        except ValueError:
            have = None
        if not isinstance(have, dict):
            raise CheckpointError(
                f"{out / SETTINGS} is damaged, so it cannot be told which pre-training {out} holds;"
                " give a new folder as `out`"
            )
        # options that an older version did not have were at their defaults
        have = {f.name: f.default for f in fields(Plan)} | have
        have = {option.name: option.default for option in plan.row.options} | have
        differing = sorted(name for name in want if have.get(name) != want[name])
        if differing:
            raise CheckpointError(
                f"{out} holds a pre-training with other settings ({', '.join(differing)}); "
                "give a new folder as `out`"
            )
        if not resume:
            raise CheckpointError(
                f"{out} already holds this pre-training; add `resume` to continue it, or give a "
                "new folder as `out`"
            )
    write_atomic(out / SETTINGS, json.dumps(spelled_for_files(want), indent=2).encode())


def untrained(
    frames: Frames, plan: Plan, *, device: torch.device | str = "cpu"
) -> list[Checkpoint]:
    """Encoders of a method that learns nothing, one per seed; nothing is written."""
    device = torch.device(device)
    made = _initial_weights(frames, plan, device)
    return [
        make_checkpoint(frames, plan, made, member, frame=frames.spec, device=device)
        for member in range(len(plan.seeds))
    ]


def _initial_weights(frames: Frames, plan: Plan, device: torch.device) -> Trained:
    """The members as initialized; where the method says so, batch norm has seen training frames."""
    if plan.objective is not None:
        names = " or ".join(name for name, row in METHODS.items() if row.objective is None)
        raise SettingError(f"{plan.method} has to be trained; without training use {names}")
    encoder, members = plan.encoder_for(frames), len(plan.seeds)
    keys = keyed_random.member_keys(list(plan.seeds), device)
    weights = {k: v.to(device) for k, v in encoder.parameters(keys).items()}
    buffers = {k: v.to(device) for k, v in encoder.buffers(members).items()}
    if plan.row.fits_batch_norm:
        buffers = _fitted_batch_norm(frames, plan, weights, buffers, device)
    nan = [float("nan")] * members
    return Trained(weights, buffers, nan, [0] * members, 0, ["untrained"] * members)


def _fitted_batch_norm(
    frames: Frames, plan: Plan, weights: Weights, buffers: Weights, device: torch.device
) -> Weights:
    """Batch-norm statistics as the mean over all full batches of the training frames."""
    signals, many = Signals.of(frames, device), plan.many_leads
    rows = instances(frames, of=plan.row.of, views=plan.row.views, split=0, leads_at_once=many)
    starts = torch.from_numpy(rows.in_view()).to(device)
    scale = torch.from_numpy(rows.scale_in_view()).to(device)
    keys = keyed_random.member_keys(list(plan.seeds), device)
    order_keys = keyed_random.fold(keys, keyed_random.stream("order"))
    order = keyed_random.permutation(order_keys, len(starts))
    encoder = replace(plan, dropout=0).encoder_for(frames)
    size = min(plan.settings.batch_size, len(starts))
    with torch.no_grad():
        for step in range(len(starts) // size):
            some = order[:, step * size : (step + 1) * size]
            if many:
                x = signals.standardized(starts[some])
            elif plan.normalization == "none":
                x = signals.raw(starts[some], scale[some])
            else:
                x = signals.normalized(starts[some])
            _, buffers = encoder.encode_training(weights, buffers, x, keys, momentum=1 / (step + 1))
    return buffers

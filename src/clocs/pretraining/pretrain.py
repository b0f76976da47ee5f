"""Pre-training: stores to checkpoints in a folder, with a log and a state to resume from.

Also encoders that are not trained: initial weights, where wanted with batch norm fitted to data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from clocs.encoders.base import Encoder, Weights
from clocs.encoders.make import or_default
from clocs.errors import CheckpointError, SettingError, TrainingError, warn
from clocs.files import LOCK, leftovers, locked, write_atomic, writing
from clocs.frames.frames import Frames, join
from clocs.frames.signals import memory_for_signals
from clocs.frames.splits import split_of
from clocs.frames.views import Instances, frame_for, instances
from clocs.kernels import keyed_random
from clocs.kernels.ranks import current, joined, on_this_machine, own_device
from clocs.pretraining import Comparing
from clocs.pretraining.batches import DeviceInstances, by_view
from clocs.pretraining.methods import METHODS
from clocs.pretraining.plan import (
    BatchNorm,
    Normalization,
    Plan,
    Precision,
    finite,
    make_card,
    make_checkpoint,
)
from clocs.pretraining.task import PretrainingTask, check_shareable, learnable_parts
from clocs.recording import STANDARD_LEADS, FrameSpec
from clocs.sealed import spelled_for_files, spelled_in_code
from clocs.training import Settings, settings_in
from clocs.training.card import Card, expect_readable
from clocs.training.checkpoint import Checkpoint, check_parts, load_checkpoint, load_checkpoints
from clocs.training.embed import stack
from clocs.training.loop import SAVE_EVERY, Epoch, Trained, fit
from clocs.training.replicas import epochs_done, remove_state
from clocs.training.signals import TRAINED, Signals, pick_device, require_memory

if TYPE_CHECKING:
    from clocs.store.store import Store

STATE, SETTINGS, LOG = "state.safetensors", "settings.json", "log.jsonl"
# settings that only earlier versions had, off
_OF_EARLIER_VERSIONS = {"queue": 0, "positives_within": None, "instances_per_patient": None}
MANY_LEADS_FRAME = FrameSpec(5.0, 500)  # of encoders of many leads, where nothing else is chosen


def pretrain(
    store: Store | Path | str | Sequence[Store | Path | str],
    *,
    method: str = "cmsc",
    out: Path | str,
    seeds: int | Sequence[int] = 1,
    leads: Sequence[str] | None = None,
    embedding_dim: int | None = None,
    encoder: str = "cnn",
    dropout: float | None = None,
    perturb: str | None = None,
    precision: Precision = "float32",
    batch_norm: BatchNorm = "batch",
    normalization: Normalization = "min-max",
    init: Path | str | Sequence[Checkpoint] | None = None,
    settings: Settings | None = None,
    split: Literal["hash", "folds"] | None = None,
    test_folds: Sequence[str] | None = None,
    validation_folds: Sequence[str] | None = None,
    split_seed: int = 0,
    seconds: float | None = None,
    rate: float | None = None,
    device: str | None = None,
    resume: bool = False,
    recording_hashes: bool = True,
    save_every: float = SAVE_EVERY,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    **options: Any,
) -> list[Checkpoint]:
    """Learn encoders from unlabeled ECGs, one per seed.

    Started by torchrun, all processes call this and learn together what one would; the first one
    alone writes and calls back, and all return the checkpoints.

    Args:
        store: What to learn from; several are learned from together, with the first one's frame.
        method: How to learn: cmsc, cmlc or cmsmlc (the paper's), simclr, byol, mtssl, supervised,
            or untrained random and random-bn.
        out: Folder for the checkpoints.
        seeds: How many seeds, from 0, all trained at once; in Python also which.
        leads: Leads to use; II, V2, aVL, aVR where present, else all. An encoder of many leads sees
            these at once, in this order, the twelve standard leads by default; stores may lack some
            of them.
        embedding_dim: Dimension of the embeddings; by default the encoder's own, such as 128.
        encoder: Network: cnn (the paper's), resnet, or multilead, which sees many leads at once.
        dropout: Probability; by default the encoder's own: 0.1, and 0 of many leads.
        perturb: A chain of perturbations of the views, such as 'gaussian>sa_t'.
        precision: Number format of activations; weights stay float32.
        batch_norm: Whether batch norm sees all views of a batch at once ('batch') or each by
            itself ('view').
        normalization: Scale each frame to 0 … 1 (min-max), or leave it in mV (none).
        init: Encoders to start from: a checkpoint for all seeds, or a folder with one per seed.
        epochs, patience, batch_size, lr, keep: How long and how fast to train, and which weights to
            keep; described by `clocs.training.Settings`, with their defaults.
        optimizer, weight_decay, schedule, warm_up, average: The optimizer; described there.
        settings: All of these as one object, in place of them.
        split: Whether the 'hash' of patients or official 'folds' decide who is trained and tested
            on; the folds by default where the store has some.
        test_folds: The folds to test on; where they are numbers, the last by default.
        validation_folds: The folds to validate on; where they are numbers, the last but one by
            default.
        split_seed: Random seed for the patient split.
        seconds: Duration of a frame; the store's by default, 5 for encoders of many leads.
        rate: Samples per second of a frame; the store's by default, 100 for encoders of many leads.
        device: Device to compute on: cpu, cuda, cuda:1 …; the best available by default.
        resume: Continue an interrupted run in `out`.
        recording_hashes: Whether checkpoints list hashes of the recordings they have seen, by which
            `clocs evaluate` finds copies of them in other datasets.
        save_every: Seconds between two saves of the state to resume from; 5 by default.
        on_step: Called with the number of steps done and the steps per epoch.
        on_epoch: Called after each epoch.
        options: The method's own, such as `temperature` of cmsc or `tau_d` of byol; the modules of
            `clocs.pretraining.methods` declare them.
    """
    # here, because `pretrain_frames` works without polars
    from clocs.frames.make import common_leads, leads_of_any, leads_of_those, make_frames
    from clocs.store.store import Store, as_store, expect_different_stores

    place = own_device(pick_device(device))
    with joined(place) as ranks:
        given = [store] if isinstance(store, Store | Path | str) else list(store)
        stores = [as_store(one) for one in given]
        expect_different_stores(stores)
        manifest = stores[0].manifest
        plan = Plan(
            method=method,
            seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
            encoder=encoder,
            embedding_dim=or_default(embedding_dim, encoder, "embedding_dim"),
            dropout=or_default(dropout, encoder, "dropout"),
            settings=Settings.choose(settings, manifest.batch_size, **settings_in(options)),
            options=options,
            perturb=perturb,
            precision=precision,
            batch_norm=batch_norm,
            normalization=normalization,
        )
        usual = frame_for(manifest, segments=plan.row.views.segments)
        if plan.multilead:
            usual = replace(MANY_LEADS_FRAME, filters=usual.filters)
        spec = _frame_of(usual, seconds, rate)
        if plan.multilead:
            chosen = leads_of_any(stores, leads or STANDARD_LEADS)
        else:
            chosen = common_leads(stores, leads)
        plan.check_leads(chosen, manifest.dataset)
        # of several, half of the memory is for the parts and half for all of them joined
        parts = on_this_machine() * (2 * len(stores) if len(stores) > 1 else 1)
        cut = partial(
            make_frames,
            spec=spec,
            split=split_of(split, test_folds, validation_folds),
            split_seed=split_seed,
            memory=memory_for_signals() // parts if parts > 1 else None,
        )
        made = [cut(one, leads=leads_of_those(one, chosen)).for_leads(chosen) for one in stores]
        return pretrain_frames(
            join(made, beside=stores[0].path.parent),
            plan,
            Path(out),
            frame_to_use=manifest.frame if spec is usual and not plan.multilead else spec,
            init=() if init is None else load_checkpoints(init),
            device=place,
            resume=resume,
            recording_hashes=recording_hashes,
            save_every=save_every,
            on_step=on_step if ranks.first else lambda step, steps: None,
            on_epoch=on_epoch if ranks.first else lambda epoch: None,
        )


def _frame_of(usual: FrameSpec, seconds: float | None, rate: float | None) -> FrameSpec:
    """The usual frame, or one of another duration or rate."""
    if seconds is None and rate is None:
        return usual
    seconds = usual.seconds if seconds is None else seconds
    rate = usual.rate if rate is None else rate
    if not rate > 0:
        raise SettingError(f"`rate` must be above 0 Hz, not {rate}")
    return replace(usual, seconds=seconds, samples=max(1, round(seconds * rate)))


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

    In several processes (`clocs.kernels.ranks`), all call this; the first one alone touches `out`.

    Raises:
        TrainingError: Members diverged; the checkpoints of the others have been written.
    """
    device, ranks, frame = torch.device(device), current(), frame_to_use or frames.spec
    shared = plan.objective is not None and ranks.share(len(plan.seeds))
    encoder = plan.encoder_for(frames)
    origins = _origins(init, plan, encoder)
    files = [out / f"seed-{seed}.safetensors" for seed in plan.seeds]
    # all that can be refused is refused before the folder is touched
    if plan.in_mv and frames.unit != "mV":
        raise SettingError(
            f"signals of {frames.dataset} are in {frames.unit}, not mV; leave out `normalization`"
        )
    if shared:
        check_shareable(plan, frames)
    _warn_of_what_is_not_learned(frames, plan)
    check_parts(frames)
    copies = TRAINED if plan.objective else 1
    require_memory(encoder, members=len(plan.seeds), device=device, copies=copies)
    about: dict[str, Any] = {"frame": frame, "device": device, "recording_hashes": recording_hashes}
    about |= {"processes": ranks.size, "shared": shared}
    expect_readable(make_card(frames, plan, 0, init=origins[0] if origins else None, **about))
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
            task = PretrainingTask(
                frames,
                plan,
                device=device,
                start=stack(origins) if origins else None,
                stream=stream,
                ranks=ranks,
            )
            try:
                trained = fit(
                    task,
                    list(plan.seeds),
                    plan.settings,
                    device=device,
                    state=out / STATE if ranks.first else None,
                    save_every=save_every,
                    on_step=on_step,
                    on_epoch=_logged(out, plan.seeds, on_epoch) if ranks.first else on_epoch,
                    ranks=ranks,
                )
            except KeyboardInterrupt as stop:
                stop.add_note("run the same command with `resume` to continue this training")
                raise
        checkpoints = {
            file: make_checkpoint(
                frames, plan, trained, member, init=origins[member] if origins else None, **about
            )
            for member, file in enumerate(files)
            if not trained.diverged[member]
        }
        if ranks.first:
            for file, checkpoint in checkpoints.items():
                checkpoint.save(file)
            remove_state(out / STATE)
        _expect_converged(trained, plan.seeds, out)
    return list(checkpoints.values())


def _logged(
    out: Path, seeds: Sequence[int], on_epoch: Callable[[Epoch], None]
) -> Callable[[Epoch], None]:
    """A function to call after each epoch: it writes the log, then calls back.

    Lines of epochs later than those in the saved state are dropped, as these are computed again.
    """
    log, done = out / LOG, epochs_done(out / STATE)
    if log.exists():
        lines = [line for line in log.read_bytes().splitlines(True) if line.endswith(b"\n")]
        epochs = [_epoch_of(line) for line in lines]
        if unreadable := epochs.count(0):
            warn(f"{log} has {unreadable} line(s) that cannot be read; the log goes on without")
        kept = (line for line, epoch in zip(lines, epochs, strict=True) if 0 < epoch <= done)
        write_atomic(log, b"".join(kept))

    def report(epoch: Epoch) -> None:
        of_all = {"train_loss": epoch.train_loss} | {
            f"validation_{name}": values for name, values in epoch.validation.items()
        }
        about = {
            "instances_per_second": round(epoch.instances / epoch.seconds, 1),  # of all members
            "seconds": round(epoch.seconds, 3),
        }
        with writing(log), log.open("a", encoding="utf-8") as file:
            for member, seed in enumerate(seeds):
                own = {name: finite(values[member]) for name, values in of_all.items()}
                line = {"epoch": epoch.number, "seed": seed} | own | about
                file.write(json.dumps(line) + "\n" if epoch.live[member] else "")
        on_epoch(epoch)

    return report


def _epoch_of(line: bytes) -> int:
    """The epoch that a line of the log is of; 0 where it cannot be read."""
    try:
        return int(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return 0


def _warn_of_what_is_not_learned(frames: Frames, plan: Plan) -> None:
    """Say which frames, leads and crops nothing is learned from; refuse data that teach nothing."""
    said = []
    if frames.without_signal:
        said.append(
            f"{frames.without_signal:,} frames × leads of {frames.dataset} are in gaps or flat and "
            "are left out"
        )
    lacking = int((~frames.present.all(axis=1)).sum())
    if plan.row.of == "frame" and lacking and not plan.multilead:
        said.append(
            f"{plan.method} compares all leads of a frame: {lacking:,} of {len(frames):,} frames "
            f"lack one of {', '.join(frames.leads)} and are left out"
        )
    seen = np.asarray(frames.present.any(axis=0))
    unseen = [lead for lead, known in zip(frames.leads, seen, strict=True) if not known]
    if plan.multilead and unseen:
        said.append(
            f"no recording of {frames.dataset} has {', '.join(unseen)}, so the encoder learns "
            "nothing of them; name those that it should see with `leads`"
        )
    if plan.objective:
        part: Instances = learnable_parts(frames, plan)[0]
        equal = 0 if part.room is None else int((part.room == 0).sum())
        if equal:
            said.append(
                f"{equal:,} of {len(part):,} instances are one frame long, so that their random "
                "crops are all the same; shorter frames leave room to crop"
            )
    for sentence in said:
        warn(sentence)


def _expect_converged(trained: Trained, seeds: Sequence[int], out: Path) -> None:
    """Name the members that diverged, if any."""
    failed, kept = (
        [f"seed {seed}" for seed, lost in zip(seeds, trained.diverged, strict=True) if lost is was]
        for was in (True, False)
    )
    if failed:
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
    return [init[0] if len(init) == 1 else by_seed[seed] for seed in plan.seeds]


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
    want = json.loads(json.dumps(plan.to_dict() | data))
    # What a run killed in its first moments leaves does not count.
    ours = {LOCK, *(path.name for path in leftovers(out / SETTINGS))}
    if any(path.name not in ours for path in out.iterdir()):
        if not (out / SETTINGS).is_file():
            raise CheckpointError(f"{out} holds other files; give a new folder as `out`")
        try:
            have = json.loads((out / SETTINGS).read_text(encoding="utf-8"))
        except ValueError:
            have = None
        if not isinstance(have, dict):
            raise CheckpointError(
                f"{out / SETTINGS} is damaged, so it cannot be told which pre-training {out} holds;"
                " give a new folder as `out`"
            )
        # options that an older version did not have were at their defaults
        have = {f.name: f.default for f in fields(Plan)} | spelled_in_code(have)
        defaults = {option.name: option.default for option in plan.row.options}
        if isinstance(plan.objective, Comparing):
            defaults["positives"] = plan.objective.own_positives
        have = _OF_EARLIER_VERSIONS | defaults | have
        asked = want | _OF_EARLIER_VERSIONS
        differing = sorted(name for name in asked if have.get(name) != asked[name])
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
    frames: Frames, plan: Plan, *, device: torch.device | str = "cpu", normalization: str = ""
) -> list[Checkpoint]:
    """Encoders of a method that learns nothing, one per seed; nothing is written.

    `normalization`, as cards spell it, is that of the input where the plan's is not meant.
    """
    device = torch.device(device)
    made = _initial_weights(frames, plan, device, normalization)
    about: dict[str, Any] = {"frame": frames.spec, "device": device, "normalization": normalization}
    return [
        make_checkpoint(frames, plan, made, member, **about) for member in range(len(plan.seeds))
    ]


def _initial_weights(
    frames: Frames, plan: Plan, device: torch.device, normalization: str = ""
) -> Trained:
    """The members as initialized; where the method says so, batch norm has seen training frames."""
    if plan.objective is not None:
        names = " or ".join(name for name, row in METHODS.items() if row.objective is None)
        raise SettingError(f"{plan.method} has to be trained; without training use {names}")
    encoder, members = plan.encoder_for(frames), len(plan.seeds)
    keys = keyed_random.member_keys(list(plan.seeds), device)
    weights = {k: v.to(device) for k, v in encoder.parameters(keys).items()}
    buffers = {k: v.to(device) for k, v in encoder.buffers(members).items()}
    if plan.row.fits_batch_norm:
        about: dict[str, Any] = {"device": device, "normalization": normalization}
        card = make_card(frames, plan, 0, frame=frames.spec, **about)
        buffers = _fitted_batch_norm(frames, plan, card, weights, buffers, device)
    nan = [float("nan")] * members
    return Trained(weights, buffers, nan, [0] * members, 0, ["untrained"] * members)


def _fitted_batch_norm(
    frames: Frames, plan: Plan, card: Card, weights: Weights, buffers: Weights, device: torch.device
) -> Weights:
    """Batch-norm statistics as the mean over all full batches of the training frames."""
    views = plan.row.views
    rows = instances(frames, of=plan.row.of, views=views, split=0, leads_at_once=plan.multilead)
    signals, size = Signals.from_frames(frames, device), min(plan.settings.batch_size, len(rows))
    part = DeviceInstances.from_instances(frames, rows, device)
    keys = keyed_random.member_keys(list(plan.seeds), device)
    order_keys = keyed_random.fold(keys, keyed_random.stream("order"))
    order = keyed_random.permutation(order_keys, len(rows))
    encoder = replace(plan, dropout=0).encoder_for(frames)
    with torch.no_grad():
        for step in range(len(rows) // size):
            own = order[:, step * size : (step + 1) * size]
            x = signals.as_input(card, part.starts(own, keys), by_view(part.scale, own))
            _, buffers = encoder.encode_training(weights, buffers, x, keys, momentum=1 / (step + 1))
    return buffers

"""`clocs.pretrain`: stores, a method and seeds to checkpoints in a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from clocs.encoders.make import usual_dimension, usual_dropout
from clocs.errors import SettingError
from clocs.frames.frames import Frames, join
from clocs.frames.make import common_leads, leads_of_any, leads_of_those, make_frames
from clocs.frames.signals import memory_for_signals
from clocs.frames.splits import split_of
from clocs.frames.views import frame_for
from clocs.pretraining.plan import BatchNorm, Normalization, Plan, Precision
from clocs.pretraining.pretrain_frames import pretrain_frames
from clocs.recording import STANDARD_LEADS, FrameSpec
from clocs.store.store import Store, as_store, expect_different_stores
from clocs.training.checkpoint import Checkpoint, as_checkpoints
from clocs.training.loop import SAVE_EVERY, Epoch
from clocs.training.ranks import joined, on_this_machine, own_device
from clocs.training.settings import Settings, settings_in, takes_settings

MANY_LEADS_FRAME = FrameSpec(5.0, 500)  # of encoders of many leads, where nothing else is chosen


@takes_settings
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
    perturb: str | Sequence[str] | None = None,
    instances_per_patient: int | None = None,
    precision: Precision = "float32",
    batch_norm: BatchNorm = "batch",
    normalization: Normalization = "min-max",
    init: Path | str | Sequence[Checkpoint] | None = None,
    settings: Settings | None = None,
    split: Literal["hash", "folds"] | None = None,
    test_folds: Sequence[str] | None = None,
    validation_folds: Sequence[str] | None = None,
    split_seed: int = 0,
    frame: FrameSpec | None = None,
    seconds: float | None = None,
    rate: float | None = None,
    device: str | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    recording_hashes: bool = True,
    save_every: float | None = None,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    **options: Any,
) -> list[Checkpoint]:
    """Learn encoders without labels, one per seed; write them to `out` and return them.

    Started by torchrun, all processes call this and learn together what one would; the first one
    alone writes and calls back, and all return the checkpoints.

    Args:
        store: What to learn from; several are learned from together, with the first one's frame.
        method: One of `clocs.pretraining.methods.METHODS`.
        out: Folder for the checkpoints.
        seeds: How many (seeds 0…N−1), or which.
        leads: By name; II, V2, aVL, aVR where present, else all. An encoder of many leads sees
            these at once, in this order, the twelve standard leads by default; stores may lack some
            of them.
        embedding_dim: Dimension of the embeddings; by default the encoder's own, such as 128.
        encoder: One of `clocs.encoders.make.ENCODERS`.
        dropout: Probability; by default the encoder's own: 0.1, and 0 of many leads.
        perturb: A chain of perturbations of the views, such as 'gaussian>sa_t'; several are trained
            at once, each with all seeds and into its own folder in `out`.
        instances_per_patient: The most instances that one patient contributes to an epoch; they are
            drawn anew for each.
        precision: Of activations: 'float32' or 'bfloat16'.
        batch_norm: Whether batch norm sees all views of a batch at once ('batch') or each by
            itself ('view').
        normalization: Of frames: 'min-max' to 0 … 1, or 'none' to leave them in mV.
        init: Encoders to start from: a checkpoint for all seeds, or a folder with one per seed.
        epochs, patience, batch_size, lr, keep: How long and how fast to train, and which weights to
            keep; described by `clocs.training.settings.Settings`, with their defaults.
        optimizer, weight_decay, schedule, warm_up, clip, average: The optimizer; described there.
        settings: All of these as one object, in place of them.
        split: Whether the 'hash' of patients or official 'folds' decide who is trained and tested
            on; the folds by default where the store has some.
        test_folds: The folds to test on; where they are numbers, the last by default.
        validation_folds: The folds to validate on; where they are numbers, the last but one by
            default.
        split_seed: Random seed for the patient split.
        frame: A frame other than the dataset's own; without filters, it has those of the store.
        seconds: Duration of a frame, in place of `frame`; for encoders of many leads 5 by default.
        rate: Samples per second of a frame, in place of `frame`; for encoders of many leads 100 by
            default.
        device: 'cpu', 'cuda' …; the best available by default.
        resume: Continue an interrupted run in `out`.
        tensorboard: Also write event files to `out/tensorboard`.
        recording_hashes: Whether checkpoints list hashes of the recordings they have seen, by which
            `clocs.evaluate` finds copies of them in other datasets.
        save_every: Seconds between two saves of the state to resume from; 5 by default.
        on_step: Called with the number of steps done and the steps per epoch.
        on_epoch: Called after each epoch.
        options: The method's own, such as `temperature` of cmsc or `tau_d` of byol; the modules of
            `clocs.pretraining.methods` declare them.
    """
    place = own_device(device)
    with joined(place) as ranks:
        given = [store] if isinstance(store, Store | Path | str) else list(store)
        stores = [as_store(one) for one in given]
        expect_different_stores(stores)
        manifest = stores[0].manifest
        training = Settings.choose(settings, manifest.batch_size, **settings_in(options))
        plan = Plan(
            method=method,
            seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
            encoder=encoder,
            embedding_dim=usual_dimension(encoder) if embedding_dim is None else embedding_dim,
            dropout=usual_dropout(encoder) if dropout is None else dropout,
            options=options,
            perturb=perturb if perturb is None or isinstance(perturb, str) else tuple(perturb),
            instances_per_patient=instances_per_patient,
            precision=precision,
            batch_norm=batch_norm,
            normalization=normalization,
            settings=training,
        )
        usual = frame_for(manifest, segments=plan.row.views.segments)
        if plan.many_leads:
            usual = replace(MANY_LEADS_FRAME, filters=usual.filters)
        if seconds is not None or rate is not None:
            if frame is not None:
                raise SettingError("give `frame`, or `seconds` and `rate`, not both")
            frame = _frame_of(
                usual.seconds if seconds is None else seconds, usual.rate if rate is None else rate
            )
        if frame is not None and not frame.filters:
            frame = replace(frame, filters=manifest.frame.filters)
        spec = frame or usual
        if plan.many_leads:
            chosen, frame = leads_of_any(stores, leads or STANDARD_LEADS), spec
        else:
            chosen = common_leads(stores, leads)
        by = split_of(split, test_folds, validation_folds)
        plan.check_leads(chosen, manifest.dataset)
        # of several, half of the memory is for the parts and half for all of them joined
        parts = on_this_machine() * (2 * len(stores) if len(stores) > 1 else 1)
        memory = memory_for_signals() // parts if parts > 1 else None
        own_patients = ranks.owns if plan.objective and ranks.share(len(plan.members)) else None

        def made(one: Store) -> Frames:
            own = leads_of_those(one, chosen)
            cut = make_frames(
                one,
                spec=spec,
                leads=own,
                split=by,
                split_seed=split_seed,
                memory=memory,
                of_patients=own_patients,
            )
            return cut.for_leads(chosen)

        frames = join([made(one) for one in stores], beside=stores[0].path.parent)
        return pretrain_frames(
            frames,
            plan,
            Path(out),
            frame_to_use=frame or manifest.frame,
            init=() if init is None else as_checkpoints(init),
            device=place,
            resume=resume,
            tensorboard=tensorboard,
            recording_hashes=recording_hashes,
            save_every=SAVE_EVERY if save_every is None else save_every,
            on_step=on_step if ranks.first else lambda step, steps: None,
            on_epoch=on_epoch if ranks.first else lambda epoch: None,
        )


def _frame_of(seconds: float, rate: float) -> FrameSpec:
    if not rate > 0:
        raise SettingError(f"`rate` must be above 0 Hz, not {rate}")
    return FrameSpec(seconds, max(1, round(seconds * rate)))

"""`clocs.pretrain`: stores, a method and seeds to checkpoints in a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from clocs.frames.join import join
from clocs.frames.make import common_leads, make_frames
from clocs.frames.signal_memory import memory_for_signals
from clocs.frames.views import frame_for
from clocs.pretraining.methods import find_method
from clocs.pretraining.plan import Plan, Precision
from clocs.pretraining.run import pretrain_frames
from clocs.recording import FrameSpec
from clocs.store.store import Store, as_store
from clocs.training.checkpoint import Checkpoint, as_checkpoints
from clocs.training.device import pick_device
from clocs.training.loop import SAVE_EVERY, Epoch, Settings


def pretrain(
    store: Store | Path | str | Sequence[Store | Path | str],
    *,
    method: str = "cmsc",
    out: Path | str,
    seeds: int | Sequence[int] = 1,
    leads: Sequence[str] | None = None,
    embedding_dim: int = 128,
    encoder: str = "cnn",
    dropout: float = 0.1,
    temperature: float = 0.1,
    tau_d: float = 0.9,
    segments: int | None = None,
    perturb: str | Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    positives_within: float | None = None,
    instances_per_patient: int | None = None,
    precision: Precision = "float32",
    init: Path | str | Sequence[Checkpoint] | None = None,
    settings: Settings | None = None,
    split_seed: int = 0,
    frame: FrameSpec | None = None,
    device: str | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    save_every: float | None = None,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> list[Checkpoint]:
    """Learn encoders without labels, one a seed; write them to `out` and return them.

    Args:
        store: What to learn from; several are learned from together, with the first's frame.
        method: One of `clocs.pretraining.methods.METHODS`.
        out: Folder for the checkpoints.
        seeds: How many (seeds 0…N−1), or which.
        leads: By name; II, V2, aVL, aVR where present, else all.
        embedding_dim: E.
        encoder: One of `clocs.encoders.ENCODERS`.
        dropout: Probability.
        temperature: τ of the loss.
        tau_d: How much of BYOL's target network stays at each step.
        segments: How many consecutive segments CMSC and CMSMLC compare.
        perturb: A chain of perturbations of the views, such as 'gaussian>sa_t'; several are trained
            at once, each with all seeds and into a folder of its own in `out`.
        tasks: Of MT-SSL; the paper's for the dataset by default.
        positives_within: Days; recordings of one patient further apart are no positive pair.
        instances_per_patient: The most that a patient gives to an epoch, drawn anew for each.
        precision: Of activations: 'float32' or 'bfloat16'.
        init: Encoders to go on from: a checkpoint for all seeds, or a folder with one a seed.
        settings: Epochs, patience, batch size and learning rate; the paper's by default.
        split_seed: Of the split by patient.
        frame: Another frame than the dataset's own.
        device: 'cpu', 'cuda' …; the best at hand by default.
        resume: Go on with an interrupted run in `out`.
        tensorboard: Write event files, too, into `out/tensorboard`.
        save_every: Seconds between two savings of the state to resume from; 5 by default.
        on_step: Called with the steps done and the steps of an epoch.
        on_epoch: Called after each epoch.
    """
    given = [store] if isinstance(store, Store | Path | str) else list(store)
    stores = [as_store(one) for one in given]
    manifest = stores[0].manifest
    plan = Plan(
        method=method,
        seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        encoder=encoder,
        embedding_dim=embedding_dim,
        dropout=dropout,
        temperature=temperature,
        tau_d=tau_d,
        segments=segments,
        perturb=perturb if perturb is None or isinstance(perturb, str) else tuple(perturb),
        tasks=tuple(tasks) if tasks is not None else None,
        positives_within=positives_within,
        instances_per_patient=instances_per_patient,
        precision=precision,
        settings=settings or Settings(batch_size=manifest.batch_size),
    )
    spec = frame or frame_for(manifest, segments=find_method(method).views.segments)
    chosen = common_leads(stores, leads)
    # of several, half of the memory is for the parts and half for all of them joined
    share = memory_for_signals() // (2 * len(stores)) if len(stores) > 1 else None
    frames = join(
        [
            make_frames(one, spec=spec, leads=chosen, split_seed=split_seed, memory=share)
            for one in stores
        ],
        beside=stores[0].path.parent,
    )
    return pretrain_frames(
        frames,
        plan,
        Path(out),
        frame_to_use=frame or manifest.frame,
        init=() if init is None else as_checkpoints(init),
        device=pick_device(device),
        resume=resume,
        tensorboard=tensorboard,
        save_every=SAVE_EVERY if save_every is None else save_every,
        on_step=on_step,
        on_epoch=on_epoch,
    )

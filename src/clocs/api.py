"""The verbs, in Python: what each command of the command line calls. Paths or opened stores do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs.arguments import all_loaded, opened, pick_device
from clocs.recording import FrameSpec

if TYPE_CHECKING:  # torch takes a second to import, and `prepare` has no use for it
    from clocs.checkpoint import Checkpoint
    from clocs.evaluation import By, Evaluation, Protocol, Scored
    from clocs.plan import Precision
    from clocs.store import Store
    from clocs.train import Epoch, Settings


def prepare(
    name: str,
    source: Path | str | None = None,
    *,
    out: Path | str,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Store:
    """Read a dataset's published files into a store.

    Args:
        name: 'chapman', 'physionet2020', 'physionet2017', 'cardiology' or 'synthetic'.
        source: A folder or the zip as downloaded; none for 'synthetic'.
        out: The store's folder.
        workers: That read; one a core by default.
        progress: Called with (recordings done, recordings in all).
        options: The dataset's own: `reference="v3"` for physionet2017; `patients`, `seed`,
            `recordings`, `seconds`, `rate` for synthetic.
    """
    from clocs.datasets import open_dataset
    from clocs.preparation import prepare as prepare_dataset

    return prepare_dataset(
        open_dataset(name, source, **options), Path(out), workers=workers, progress=progress
    )


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
        method: One of `clocs.methods.METHODS`.
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
    from clocs.framing import common_leads, make_frames
    from clocs.joining import join
    from clocs.methods import find_method
    from clocs.plan import Plan
    from clocs.pretraining import pretrain_frames
    from clocs.room import memory_for_signals
    from clocs.store import Store
    from clocs.train import SAVE_EVERY, Settings

    given = [store] if isinstance(store, Store | Path | str) else list(store)
    stores = [opened(one) for one in given]
    manifest = stores[0].manifest
    of_segments = find_method(method).views.segments > 1
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
    spec = frame or (manifest.segment_frame if of_segments else manifest.frame)
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
        init=() if init is None else all_loaded(init),
        device=pick_device(device),
        resume=resume,
        tensorboard=tensorboard,
        save_every=SAVE_EVERY if save_every is None else save_every,
        on_step=on_step,
        on_epoch=on_epoch,
    )


def evaluate(
    checkpoint: Checkpoint | Sequence[Checkpoint] | Path | str,
    store: Store | Path | str,
    *,
    protocol: Protocol = "linear",
    fraction: float = 1.0,
    by: By = "frame",
    leads: Sequence[str] | None = None,
    settings: Settings | None = None,
    split_seed: int = 0,
    resamples: int = 2000,
    device: str | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    **more: Any,
) -> Evaluation:
    """Score the seeds of one method on a labelled store; see `evaluate_many`.

    Args:
        checkpoint: One, several of one method, a file, or a folder (all its seeds).
        store: Labelled recordings; their own frame is used.
        protocol: 'linear', 'linear-converged', 'finetune' or 'knn'.
        fraction: Of the training part that is labelled.
        by: 'frame', as in the paper, 'patient' or 'recording'.
        leads: By name; II, V2, aVL, aVR where present, else all.
        settings: Of what is trained.
        split_seed: Of the split by patient.
        resamples: Of the bootstrap over patients.
        device: 'cpu', 'cuda' …; the best at hand by default.
        on_epoch: Called after each epoch.
        more: `labels` (a number of recordings, instead of `fraction`), `class_weights`, `k`.
    """
    return evaluate_many(
        [checkpoint],
        store,
        protocol=protocol,
        fraction=fraction,
        by=by,
        leads=leads,
        settings=settings,
        split_seed=split_seed,
        resamples=resamples,
        device=device,
        on_epoch=on_epoch,
        **more,
    )[0].evaluation


def evaluate_many(
    checkpoints: Sequence[Checkpoint | Sequence[Checkpoint] | Path | str],
    store: Store | Path | str,
    *,
    protocol: Protocol = "linear",
    leads: Sequence[str] | None = None,
    split_seed: int = 0,
    device: str | None = None,
    **how: Any,
) -> list[Scored]:
    """Score several methods at once, all trained as one fleet.

    Unless encoders are fine-tuned, the untrained ones are scored beside them, and each method is
    told whether it beats them.

    Args:
        checkpoints: For each method a file, a folder (all its seeds), one checkpoint or several.
        store: Labelled recordings; their own frame is used.
        protocol: 'linear', 'linear-converged', 'finetune' or 'knn'.
        leads: By name; II, V2, aVL, aVR where present, else all.
        split_seed: Of the split by patient.
        device: 'cpu', 'cuda' …; the best at hand by default.
        how: As of `clocs.evaluation.score_groups`: `fraction`, `by`, `labels`, `class_weights`,
            `k`, `settings`, `resamples`, `curve`, `on_epoch`.

    Returns:
        One a method, with scores and predictions; then the untrained ones.
    """
    from clocs.evaluation import score_against_random, score_groups
    from clocs.framing import make_frames

    groups = [all_loaded(one) for one in checkpoints]
    frames = make_frames(opened(store), leads=leads, split_seed=split_seed)
    score = score_groups if protocol == "finetune" else score_against_random
    return score(groups, frames, protocol=protocol, device=pick_device(device), **how)

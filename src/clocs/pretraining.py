"""Pre-training: a store, a method and seeds -> checkpoints in a folder.

Puts the parts together: frames, method, encoder, engine, checkpoints, log. Knows nothing about
evaluation or the command line.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from clocs import counter, guard
from clocs.checkpoint import Card, Checkpoint, load_checkpoint
from clocs.encoders import Encoder, Weights, make_encoder
from clocs.errors import CheckpointError, SettingError
from clocs.files import write_atomic
from clocs.fleet import epochs_done
from clocs.frames import Frames
from clocs.methods import Method, adapt
from clocs.pretext import Choices, make_task
from clocs.recording import FrameSpec
from clocs.signals import Signals
from clocs.train import Epoch, Settings, Trained, fit
from clocs.views import instances

TRAINED_ON = (0, 1)  # training and validation: both have shaped the weights
_NO_KEYS = torch.zeros(0, dtype=torch.int64)
STATE, LOG, PLAN = "state.safetensors", "log.jsonl", "settings.json"


@dataclass(frozen=True)
class Plan:
    """Everything that decides what a pre-training gives, besides the data."""

    method: str
    seeds: tuple[int, ...] = (0,)
    encoder: str = "cnn"
    embedding_dim: int = 128
    dropout: float = 0.1
    temperature: float = 0.1
    tau_d: float = 0.9
    segments: int | None = None
    perturb: str | None = None
    tasks: tuple[str, ...] | None = None
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise SettingError(f"seeds must be distinct numbers from 0, not {self.seeds}")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        if not self.temperature > 0:
            raise SettingError(f"the temperature must be above 0, not {self.temperature}")
        if not 0 <= self.tau_d <= 1:
            raise SettingError(f"τ_d must be from 0 to 1, not {self.tau_d}")

    def method_on(self, dataset: str) -> Method:
        """The method with the views that this plan asks for."""
        return adapt(
            self.method,
            dataset=dataset,
            segments=self.segments,
            perturb=self.perturb,
            tasks=self.tasks,
        )


def pretrain_frames(
    frames: Frames,
    plan: Plan,
    out: Path,
    *,
    frame_to_use: FrameSpec | None = None,
    device: torch.device | str = "cpu",
    resume: bool = False,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> list[Checkpoint]:
    """Train one encoder a seed and write `out/seed-N.safetensors` with their cards.

    Args:
        frames: The data, cut as the method sees it.
        plan: What to train.
        out: Folder for checkpoints, the log and, while it runs, the state to resume from.
        frame_to_use: The frame to evaluate with, where it differs from the training frame.
        device: Where to train.
        resume: Go on from an interrupted run in `out`.
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
    _claim(out, plan, frames, resume=resume)
    files = [out / f"seed-{seed}.safetensors" for seed in plan.seeds]
    if all(file.with_suffix(".json").exists() for file in files):
        return [load_checkpoint(file) for file in files]  # finished before
    if method.asks is None:
        trained = _untrained(frames, method, encoder, plan, device)
    else:
        trained = _train(frames, method, encoder, plan, out, device, on_step, on_epoch)
    checkpoints = [
        _checkpoint(frames, plan, encoder, trained, member, frame_to_use or frames.spec, device)
        for member in range(len(plan.seeds))
    ]
    for file, checkpoint in zip(files, checkpoints, strict=True):
        checkpoint.save(file)
    (out / STATE).unlink(missing_ok=True)
    return checkpoints


def _train(
    frames: Frames,
    method: Method,
    encoder: Encoder,
    plan: Plan,
    out: Path,
    device: torch.device,
    on_step: Callable[[int, int], None],
    on_epoch: Callable[[Epoch], None],
) -> Trained:
    task = make_task(
        frames,
        method,
        encoder,
        members=len(plan.seeds),
        batch_size=plan.settings.batch_size,
        choices=Choices(temperature=plan.temperature, tau_d=plan.tau_d),
        device=device,
    )
    log, state = out / LOG, out / STATE
    _cut_log(log, epochs_done(state))

    def report(epoch: Epoch) -> None:
        with log.open("a", encoding="utf-8") as file:
            for line in _log_lines(epoch, plan.seeds):
                file.write(json.dumps(line) + "\n")
        on_epoch(epoch)

    return fit(
        task,
        list(plan.seeds),
        plan.settings,
        device=device,
        state=state,
        on_step=on_step,
        on_epoch=report,
    )


def _untrained(
    frames: Frames, method: Method, encoder: Encoder, plan: Plan, device: torch.device
) -> Trained:
    """Encoders as initialised; with `statistics`, batch norm has seen the training frames."""
    keys = counter.member_keys(list(plan.seeds), device)
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
    keys = counter.member_keys(list(plan.seeds), device)
    order = starts[counter.permutation(counter.fold(keys, counter.stream("order")), len(starts))]
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


def _checkpoint(
    frames: Frames,
    plan: Plan,
    encoder: Encoder,
    trained: Trained,
    member: int,
    frame: FrameSpec,
    device: torch.device,
) -> Checkpoint:
    saw_data = plan.method != "random"
    splits = TRAINED_ON if saw_data else ()
    salt = guard.salt_of(frames)
    row = slice(member, member + 1)
    card = Card(
        method=plan.method,
        seed=plan.seeds[member],
        dataset=frames.dataset if saw_data else None,
        content=frames.content if saw_data else None,
        split_seed=frames.split_seed,
        leads=frames.leads,
        frame_trained=frames.spec,
        frame=frame,
        encoder={
            "name": encoder.name,
            "embedding_dim": encoder.embedding_dim,
            "samples": encoder.samples,
            "dropout": plan.dropout,
        },
        labels=frames.labels,
        training=asdict(plan.settings) | _choices(plan, frames),
        metrics={
            "status": trained.status[member],
            "epochs": trained.epochs,
            "best_epoch": trained.best_epoch[member],
            "validation_loss": _finite(trained.validation_loss[member]),
        },
        environment={
            "torch": torch.__version__,
            "device": device.type,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
        },
        salt=salt,
    )
    return Checkpoint(
        card=card,
        # the encoder's own: heads and BYOL's target network have served
        weights={name: trained.weights[name][row].cpu() for name in encoder.parameters(_NO_KEYS)},
        buffers={name: trained.buffers[name][row].cpu() for name in encoder.buffers(0)},
        patients=guard.hashed_patients(frames, salt, splits),
        recordings=guard.hashed_recordings(frames, salt, splits),
    )


def _choices(plan: Plan, frames: Frames) -> dict[str, Any]:
    """What the method was told, for the card."""
    method = plan.method_on(frames.dataset)
    views = asdict(method.views)
    given = {"temperature": plan.temperature} if method.asks in ("patient_nce", "nt_xent") else {}
    return given | ({"tau_d": plan.tau_d} if method.asks == "byol" else {}) | {"views": views}


def _finite(value: float) -> float | None:
    """JSON has no word for numbers that are none."""
    return value if math.isfinite(value) else None


def _claim(out: Path, plan: Plan, frames: Frames, *, resume: bool) -> None:
    """Make `out` this run's folder, or refuse: nothing is overwritten."""
    want: dict[str, Any] = json.loads(
        json.dumps(
            asdict(plan)
            | {
                "data": frames.content,
                "split_seed": frames.split_seed,
                "leads": frames.leads,
                "frame": asdict(frames.spec),
            }
        )
    )
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"{out} is a file; give a folder for the checkpoints")
    if out.is_dir() and any(out.iterdir()):
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
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / PLAN, json.dumps(want, indent=2).encode())


def _cut_log(log: Path, epochs: int) -> None:
    """Keep what the log says of the epochs that the state has; later ones are done again."""
    if log.exists():
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [
            line for line in lines if line.endswith("\n") and json.loads(line)["epoch"] <= epochs
        ]
        write_atomic(log, "".join(kept).encode())


def _log_lines(epoch: Epoch, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One line a live member."""
    return [
        {
            "epoch": epoch.number,
            "seed": seed,
            "train_loss": _finite(epoch.train_loss[member]),
            **{f"validation_{name}": _finite(v[member]) for name, v in epoch.validation.items()},
            "seconds": round(epoch.seconds, 3),
        }
        for member, seed in enumerate(seeds)
        if epoch.live[member]
    ]

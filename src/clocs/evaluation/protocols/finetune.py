"""Fine-tuning, the paper's transfer: the encoder and a new linear layer trained together.

Where a recording has the greatest of its frames' maxima, single frames cannot teach the layer all
of it. There, the layer is solved on vectors of recordings when the encoder has been trained, and it
starts from the one that is solved on the encoder as it was: with a random layer, the first steps
would change a good encoder for the worse (Kumar et al. 2022).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from clocs.evaluation import finetune_task
from clocs.evaluation.labeled import CurveRecorder, ProtocolInput, ProtocolOutput, with_weights
from clocs.evaluation.logistic import fit_members
from clocs.evaluation.protocols import HEAD_DROPOUT, STOP_BY, EvaluationProtocol
from clocs.evaluation.protocols.frozen import predict_linear_converged
from clocs.registry import Option
from clocs.training.checkpoint import Checkpoint
from clocs.training.loop import fit


def predict(
    given: ProtocolInput,
    *,
    encoder_lr: float,
    head_dropout: float,
    stop_by: str,
    crops: bool,
    lead_subsets: float,
    gaussian: float,
    precision: str,
) -> ProtocolOutput:
    frames, device = given.frames, given.device
    signals_of = partial(
        finetune_task.signals_of,
        device=device,
        dtype=getattr(torch, precision),
        encoder=given.checkpoints[0].encoder,
        stream=given.stream,
    )
    batch_size = min(given.settings.batch_size, len(given.parts[0].rows))
    signals = signals_of(frames, members=len(given.seeds), batch_size=batch_size)
    train = finetune_task.LabeledWindows.from_part(replace(given.parts[0], per="row"), device)
    validation = finetune_task.LabeledWindows.from_part(given.parts[1], device)
    labels, recorder = given.row_labels, CurveRecorder(given)
    solves = bool(given.checkpoints[0].card.maxima) and given.parts[1].per == "recording"
    layers = _layers_on_means(given) if solves else None
    augmentation = finetune_task.Augmentation.of(
        given.parts[0], device, crops=crops, lead_subsets=lead_subsets, gaussian=gaussian
    )
    logits: dict[int, list[Tensor]] = {}
    facts: dict[int, tuple[int, str]] = {}
    classifiers: dict[int, Checkpoint] = {}
    counts = [len(rows) for rows in labels.rows]
    together = finetune_task.members_together(counts, given.settings.batch_size)
    for number, members in enumerate(together):
        task = finetune_task.FinetuneTask(
            [given.checkpoints[m] for m in members],
            signals,
            train,
            validation,
            labels.of(members),
            encoder_lr=encoder_lr,
            head_dropout=head_dropout,
            by_auc=stop_by == "auc",
            augmentation=augmentation,
            layers=None if layers is None else [one[members] for one in layers],
        )
        recorder.members = members
        seeds = [given.seeds[m] for m in members]
        best = fit(
            task,
            seeds,
            given.settings,
            device=device,
            state=None if given.state is None else given.state / f"state-{number}.safetensors",
            save_every=given.save_every,
            on_epoch=recorder,
        )
        given.check_converged(best, members)
        found = []
        for part in () if solves else given.parts[1:]:
            own = signals
            if part.frames is not frames:
                own = signals_of(part.frames, members=len(members), batch_size=0)
            windows = finetune_task.LabeledWindows.from_part(part, device)
            found.append(task.logits(best.weights, best.buffers, windows, own))
        for place, member in enumerate(members):
            logits[member] = [part[place] for part in found]
            facts[member] = best.best_epoch[place], best.status[place]
            kept = (
                {name: tensor[place : place + 1].cpu().clone() for name, tensor in tensors.items()}
                for tensors in (best.weights, best.buffers)
            )
            one = with_weights(given.checkpoints[member], *kept)
            # without solving, it learned by the mean logit of frames
            maxima = one.card.maxima if solves else ()
            classifiers[member] = replace(one, card=replace(one.card, maxima=maxima))
    order = range(len(given.seeds))
    epochs, status = zip(*(facts[m] for m in order), strict=True)
    per_member = {"best_epoch": list(epochs), "status": list(status)}
    made = [classifiers[m] for m in order]
    if solves:
        solved = predict_linear_converged(
            replace(given, checkpoints=made, vectors=None, cache=None), strongest_l2=1.0
        )
        return replace(solved, per_member=per_member | solved.per_member, curves=recorder.curves)
    return given.output(
        *(torch.stack(part) for part in zip(*(logits[m] for m in order), strict=True)),
        per_member=per_member,
        curves=recorder.curves,
        classifiers=made,
    )


def _layers_on_means(given: ProtocolInput) -> tuple[Tensor, Tensor]:
    """Layers solved on the mean vectors of frames: what single frames are like on average."""
    by_means = [replace(one, card=replace(one.card, maxima=())) for one in given.checkpoints]
    given = replace(given, checkpoints=by_means, vectors=None)
    train, validation = (given.embedded(part) for part in given.parts[:2])
    return fit_members(train, validation, given.labels).layers()


FINETUNE = EvaluationProtocol(
    name="finetune",
    help="encoder and linear layer trained together, as in the paper's transfer",
    predict=predict,
    options=(
        Option(
            "encoder_lr",
            1.0,
            "Learning rate of the encoder, as a share of that of the layer on top",
            above=0,
        ),
        HEAD_DROPOUT,
        STOP_BY,
        Option("crops", False, "Let training frames begin anywhere in their recording"),
        Option(
            "lead_subsets",
            0.0,
            "Share of training frames seen through a random subset of their leads",
            minimum=0,
            maximum=1,
        ),
        Option(
            "gaussian",
            0.0,
            "Greatest standard deviation of noise added in training, in units of the input",
            minimum=0,
        ),
        Option("precision", "float32", "Precision of activations", choices=("float32", "bfloat16")),
    ),
    trains=True,
    against_untrained=False,
)

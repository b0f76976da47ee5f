"""Protocols of frozen encoders: linear layers, attention over feature maps, nearest neighbors."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from clocs.errors import SettingError
from clocs.evaluation.heads import AttentiveHead, LabeledMaps, LinearHead, few_threads
from clocs.evaluation.labeled import CurveRecorder, LabeledPart, ProtocolInput, ProtocolOutput
from clocs.evaluation.logistic import fit_members
from clocs.evaluation.protocols import HEAD_DROPOUT, STOP_BY, EvaluationProtocol
from clocs.pretraining.losses import unit
from clocs.registry import Option
from clocs.training.embed import embed_instances, feature_maps
from clocs.training.loop import fit


def predict_linear(given: ProtocolInput) -> ProtocolOutput:
    train, validation, *tests = given.embeddings()
    head, recorder = LinearHead(train, validation, given.labels), CurveRecorder(given)
    batch = train.features[:, : given.settings.batch_size].numel()
    with few_threads(given.device, batch):
        trained = fit(head, given.seeds, given.settings, device=given.device, on_epoch=recorder)
    given.check_converged(trained, range(len(given.seeds)))
    with torch.no_grad():
        logits = [head.logits(trained.weights, part.features) for part in (validation, *tests)]
    facts = {"best_epoch": trained.best_epoch, "status": trained.status}
    classifiers = given.on_frozen(trained.weights["weight"], trained.weights["bias"])
    return given.output(*logits, per_member=facts, curves=recorder.curves, classifiers=classifiers)


LINEAR = EvaluationProtocol(
    name="linear",
    help="one linear layer on frozen embeddings, trained with Adam, as in the paper",
    predict=predict_linear,
    trains=True,
)


def predict_linear_converged(given: ProtocolInput, *, strongest_l2: float) -> ProtocolOutput:
    train, validation, *tests = given.embeddings()
    fitted = fit_members(train, validation, given.labels, strongest_l2=strongest_l2)
    logits = [fitted.logits(part.features) for part in (validation, *tests)]
    return given.output(
        *logits,
        per_member={"l2": list(fitted.l2)},
        classifiers=given.on_frozen(*fitted.layers()),
    )


LINEAR_CONVERGED = EvaluationProtocol(
    name="linear-converged",
    help="the same layer solved to convergence, its L2 penalty chosen on validation",
    predict=predict_linear_converged,
    options=(
        Option(
            "strongest_l2",
            1.0,
            "The strongest L2 penalty to choose from, such as 100 where labels are few",
            minimum=1,
            maximum=1e6,
        ),
    ),
)


def predict_attentive(given: ProtocolInput, *, head_dropout: float, stop_by: str) -> ProtocolOutput:
    by_means = [replace(one, card=replace(one.card, maxima=())) for one in given.checkpoints]
    given = replace(given, checkpoints=by_means, vectors=None)  # logits of frames are averaged
    train, validated = (given.embedded(part) for part in given.parts[:2])
    linear = fit_members(train, validated, given.labels)

    def maps(part: LabeledPart) -> LabeledMaps:
        features, vectors = given.encoded(part, feature_maps), given.encoded(part, embed_instances)
        logits, average = linear.logits(vectors).float(), part.averaging(given.device)
        return LabeledMaps(features, logits, given.targets(part), average)

    validation = maps(given.parts[1])
    head = AttentiveHead(
        maps(replace(given.parts[0], per="row")),  # learns from rows
        validation,
        given.row_labels,
        dropout=head_dropout,
        by_auc=stop_by == "auc",
    )
    recorder = CurveRecorder(given)
    trained = fit(head, given.seeds, given.settings, device=given.device, on_epoch=recorder)
    given.check_converged(trained, range(len(given.seeds)))
    logits = [head.logits(trained.weights, validation)]
    for part in given.parts[2:]:  # one at a time: feature maps are large
        logits.append(head.logits(trained.weights, maps(part)))
    facts = {"best_epoch": trained.best_epoch, "status": trained.status, "l2": list(linear.l2)}
    return given.output(*logits, per_member=facts, curves=recorder.curves)


ATTENTIVE = EvaluationProtocol(
    name="attentive",
    help="linear-converged, and attention over the steps of the frozen feature map",
    predict=predict_attentive,
    options=(HEAD_DROPOUT, STOP_BY),
    trains=True,
)


_AT_ONCE = 50_000_000  # similarities held at a time


def predict_knn(given: ProtocolInput, *, k: int) -> ProtocolOutput:
    train, *parts = given.embeddings()
    validation, test, *further = (
        torch.stack(
            [
                votes(part.features[member], train.features[member, rows], train.targets[rows], k)
                for member, rows in enumerate(given.labeled)
            ]
        )
        .double()
        .cpu()
        .numpy()
        for part in parts
    )
    return ProtocolOutput(validation, test, test, further)


def votes(features: Tensor, known: Tensor, targets: Tensor, k: int) -> Tensor:
    """(rows, classes) the share of the k nearest labeled rows that have each class.

    features: (rows, dim) of one member, known: (labeled, dim), targets: (labeled, classes).
    """
    if not 1 <= k <= len(known):
        raise SettingError(
            f"`k` is {k}, but {len(known)} rows are labeled; give a `k` from 1 to {len(known)}"
        )
    own, bank, truth = unit(features), unit(known).T, targets.to(features.dtype)
    pieces = [
        truth[(some @ bank).topk(k, dim=1).indices].mean(dim=1)
        for some in own.split(max(1, _AT_ONCE // len(known)))
    ]
    # a zero vector is equally far from all rows: it gets the frequency of each class
    zero = (own == 0).all(dim=1, keepdim=True)
    return torch.where(zero, truth.mean(dim=0), torch.cat(pieces))


KNN = EvaluationProtocol(
    name="knn",
    help="vote of the nearest labeled frames by cosine similarity, nothing trained",
    predict=predict_knn,
    options=(Option("k", 20, "Neighbors that vote", minimum=1),),
    class_weights=False,
)

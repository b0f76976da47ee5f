"""A linear layer on frozen embeddings and attention over the steps of their feature maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clocs.evaluation.protocol import EvaluationProtocol
from clocs.evaluation.training_options import HEAD_DROPOUT, STOP_BY

if TYPE_CHECKING:
    from clocs.evaluation.protocol_data import ProtocolInput, ProtocolOutput


def predict(given: ProtocolInput, *, head_dropout: float, stop_by: str) -> ProtocolOutput:
    from dataclasses import replace

    from clocs.evaluation.attentive_head import AttentiveHead, LabeledMaps
    from clocs.evaluation.labeled_rows import LabeledPart
    from clocs.evaluation.logistic import fit_members
    from clocs.evaluation.protocol_data import CurveRecorder
    from clocs.training.embed import embed_instances, feature_maps
    from clocs.training.loop import fit

    linear = fit_members(
        given.embedded(given.parts[0]),
        given.embedded(given.parts[1]),
        given.labeled,
        class_weights=given.class_weights(),
    )

    def maps(part: LabeledPart) -> LabeledMaps:
        features, vectors = given.encoded(part, feature_maps), given.encoded(part, embed_instances)
        logits, average = linear.logits(vectors).float(), part.averaging(given.device)
        return LabeledMaps(features, logits, given.targets(part), average)

    validation = maps(given.parts[1])
    head = AttentiveHead(
        maps(replace(given.parts[0], per="row")),  # learns from rows
        validation,
        given.labeled_rows,
        given.class_weights(),
        multilabel=given.frames.multilabel,
        dropout=head_dropout,
        by_auc=stop_by == "auc",
        curve=given.curve,
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
    predict=predict,
    options=(HEAD_DROPOUT, STOP_BY),
    trains=True,
)

"""An attention head on the frozen encoder's feature map, over the steps of each frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clocs.evaluation.protocol import EvaluationProtocol
from clocs.evaluation.training_options import HEAD_DROPOUT, STOP_BY

if TYPE_CHECKING:
    from clocs.evaluation.protocol_data import ProtocolInput, ProtocolOutput


def predict(given: ProtocolInput, *, head_dropout: float, stop_by: str) -> ProtocolOutput:
    from dataclasses import replace

    from clocs.evaluation.attentive_head import AttentiveHead, LabelledMaps
    from clocs.evaluation.labelled_rows import LabelledPart
    from clocs.evaluation.protocol_data import CurveRecorder
    from clocs.training.embed import feature_maps
    from clocs.training.loop import fit

    def maps(part: LabelledPart) -> LabelledMaps:
        features = feature_maps(given.checkpoints, part.frames, part.rows, given.device)
        return LabelledMaps(features, given.targets(part), part.averaging(given.device))

    validation = maps(given.parts[1])
    head = AttentiveHead(
        maps(replace(given.parts[0], per="row")),  # learns from rows
        validation,
        given.labelled_rows,
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
    facts = {"best_epoch": trained.best_epoch, "status": trained.status}
    return given.output(*logits, per_member=facts, curves=recorder.curves)


ATTENTIVE = EvaluationProtocol(
    name="attentive",
    help="attention over the steps of the frozen feature map, one query per class",
    predict=predict,
    options=(HEAD_DROPOUT, STOP_BY),
    trains=True,
)

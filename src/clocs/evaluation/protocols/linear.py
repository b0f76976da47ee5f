"""The paper's linear evaluation: one linear layer on frozen embeddings, trained with Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clocs.evaluation.protocol import EvaluationProtocol

if TYPE_CHECKING:
    from clocs.evaluation.protocol_data import ProtocolInput, ProtocolOutput


def predict(given: ProtocolInput) -> ProtocolOutput:
    import torch

    from clocs.evaluation.linear_head import LinearHead, few_threads
    from clocs.evaluation.protocol_data import CurveRecorder
    from clocs.training.loop import fit

    train, validation, *tests = given.embeddings()
    head = LinearHead(train, validation, given.labeled, given.class_weights(), curve=given.curve)
    recorder = CurveRecorder(given)
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
    predict=predict,
    trains=True,
)

from __future__ import annotations

import pytest
import torch

from clocs.evaluation.classifier_loss import class_weights, classifier_loss
from evaluation_parts import labeled


@pytest.mark.parametrize("multilabel", [False, True])
def test_weighted_losses_equal_those_of_torch(multilabel: bool) -> None:
    data = labeled(3, 60, multilabel)
    weights = class_weights(data.targets, multilabel)
    logits, truth = data.features[0, :, :3], data.targets.float()
    found = classifier_loss(logits[None], data.targets, multilabel, weights[None])[0]
    if multilabel:
        expected = torch.nn.BCEWithLogitsLoss(pos_weight=weights)(logits, truth)
        assert torch.allclose(weights * truth.sum(dim=0), 60 - truth.sum(dim=0))
    else:
        expected = torch.nn.CrossEntropyLoss(weight=weights)(logits, truth.argmax(dim=1))
        assert torch.allclose(weights * truth.sum(dim=0), torch.tensor(20.0))
    assert torch.allclose(found, expected)

from __future__ import annotations

import pytest
import torch

from clocs.evaluation.heads import LinearHead
from clocs.evaluation.labeled import LabeledEmbeddings, MemberLabels
from clocs.training import Settings
from clocs.training.loop import fit
from evaluation_parts import labeled


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_linear_layer_learns(multilabel: bool) -> None:
    train, validation = labeled(0, 500, multilabel), labeled(1, 200, multilabel)
    head = LinearHead(train, validation, MemberLabels([torch.arange(500)], multilabel))
    losses: list[float] = []
    fit(
        head,
        [0],
        Settings(epochs=30, batch_size=50, lr=1e-2),
        device=torch.device("cpu"),
        on_epoch=lambda e: losses.append(e.validation["loss"][0]),
    )
    assert losses[-1] < 0.75 * losses[0]


def test_a_member_with_few_labels_equals_its_single() -> None:
    train, validation = labeled(0, 100, False), labeled(1, 50, False)
    both = LabeledEmbeddings(train.features.repeat(2, 1, 1), train.targets)
    both_validation = LabeledEmbeddings(validation.features.repeat(2, 1, 1), validation.targets)
    few, many = torch.arange(7), torch.arange(90)
    settings = Settings(epochs=4, batch_size=32, lr=1e-2)
    head = LinearHead(both, both_validation, MemberLabels([few, many]))
    together = fit(head, [3, 4], settings, device=torch.device("cpu"))
    head = LinearHead(train, validation, MemberLabels([few]))
    alone = fit(head, [3], settings, device=torch.device("cpu"))
    assert torch.allclose(together.weights["weight"][0], alone.weights["weight"][0], atol=1e-6)

"""The attention head: its start, its slow twin, and members that do not see each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from clocs.evaluation.heads import AttentiveHead, LabeledMaps, LinearHead, attended
from clocs.evaluation.labeled import Averaging, LabeledEmbeddings, MemberLabels
from clocs.kernels import keyed_random
from clocs.training import Settings
from clocs.training.loop import fit

CPU = torch.device("cpu")


def maps(rows: int, seed: int, members: int = 2) -> LabeledMaps:
    """A class shows in one step out of eight."""
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(members, rows, 8, 6, generator=draw)
    label = torch.randint(0, 2, (rows,), generator=draw)
    step = torch.randint(0, 8, (rows,), generator=draw)
    features[:, torch.arange(rows), step, 0] += 4
    features[:, torch.arange(rows), step, 1] += 3.0 * label
    targets = torch.nn.functional.one_hot(label, 2).to(torch.uint8)
    return LabeledMaps(features.half(), torch.zeros(members, rows, 2), targets)


def test_attention_equals_a_loop_over_rows_and_classes() -> None:
    x = maps(5, 0).features.float()
    draw = torch.Generator().manual_seed(1)
    weights = {n: torch.randn(2, 6, 3, generator=draw) for n in ("weight", "score")}
    weights["bias"] = torch.randn(2, 3, generator=draw)
    found = attended(weights, x)
    for member in range(2):
        for row in range(5):
            for label in range(3):
                score = (x[member, row] @ weights["score"][member, :, label]).softmax(dim=0)
                value = x[member, row] @ weights["weight"][member, :, label]
                expected = (score * value).sum() + weights["bias"][member, label]
                assert float(found[member, row, label]) == pytest.approx(float(expected), abs=1e-4)


def test_the_head_starts_as_the_linear_layer_that_it_is_given() -> None:
    part = maps(40, 0)
    part = replace(part, linear=torch.randn(2, 40, 2, generator=torch.Generator().manual_seed(5)))
    head = AttentiveHead(part, part, MemberLabels([torch.arange(40)] * 2))
    weights = head.parameters(keyed_random.member_keys([0, 1]))
    assert torch.equal(head.logits(weights, part), part.linear)


def test_it_learns_what_a_mean_over_time_hides() -> None:
    train, validation = maps(400, 0, 1), maps(200, 1, 1)
    every, settings = [torch.arange(400)], Settings(epochs=30, batch_size=64, lr=3e-2)
    head = AttentiveHead(train, validation, MemberLabels(every), dropout=0.1, by_auc=True)
    attentive = 1 - fit(head, [0], settings, device=CPU).validation_loss[0]
    means = [
        LabeledEmbeddings(part.features.float().mean(dim=2), part.targets)
        for part in (train, validation)
    ]
    linear = LinearHead(means[0], means[1], MemberLabels(every, curve=True))
    linear.criterion = "auc"
    assert attentive > 0.05 + 1 - fit(linear, [0], settings, device=CPU).validation_loss[0]


def test_a_member_learns_as_it_would_alone_and_logits_are_averaged_by_recording() -> None:
    train, validation = maps(64, 0), maps(30, 1)
    labeled = [torch.arange(64), torch.arange(20, 60)]
    settings = Settings(epochs=3, batch_size=16, lr=1e-2)
    both = AttentiveHead(train, validation, MemberLabels(labeled))
    together = fit(both, [0, 1], settings, device=CPU)
    alone = fit(both.of([1]), [1], settings, device=CPU)
    for name, value in alone.weights.items():
        assert torch.allclose(together.weights[name][1:], value, atol=1e-5), name
    place = torch.arange(30) // 3
    pooled = replace(validation, targets=validation.targets[::3], average=Averaging(place, 10))
    rows = both.logits(together.weights, validation)
    expected = rows.unflatten(1, (10, 3)).mean(dim=2)
    assert torch.allclose(both.logits(together.weights, pooled), expected, atol=1e-6)

"""Options that ablations vary: positive pairs, batch norm per view, no normalization."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clocs
from clocs.encoders.base import per_view
from clocs.encoders.cnn import CNN
from clocs.errors import CheckpointError, SettingError
from clocs.evaluation.groups import score_groups
from clocs.evaluation.protocols import PROTOCOLS
from clocs.frames.frames import Frames
from clocs.frames.views import Views, instances
from clocs.kernels import keyed_random
from clocs.pretraining.batches import DeviceInstances
from clocs.pretraining.losses import patient_nce, same_patient_pairs
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.pretraining.task import PretrainingTask
from clocs.store.store import Store
from clocs.training import Settings
from clocs.training.card import IN_MV
from clocs.training.checkpoint import load_checkpoint
from clocs.training.embed import embed_instances

QUICK = Settings(epochs=1, batch_size=32, lr=1e-3)
CPU = torch.device("cpu")
METHODS = ("cmsc", "cmlc", "simclr", "byol", "mtssl", "supervised")


def task_of(frames: Frames, plan: Plan) -> PretrainingTask:
    return PretrainingTask(frames, plan, device=CPU)


def test_random_crops_are_functions_of_key_row_and_view_that_no_version_changes() -> None:
    windows, room = torch.tensor([[0, 0], [1000, 1000], [2000, 2000]]), torch.tensor([500, 0, 99])
    nothing = torch.zeros(3)
    part = DeviceInstances(windows, nothing, nothing, nothing, room, (windows, room))
    rows = torch.tensor([[0, 1, 2], [2, 0, 1]])
    assert part.starts(rows, keyed_random.member_keys([0, 7])).tolist() == [
        [402, 1000, 2028, 115, 1000, 2058],
        [2032, 179, 1000, 2021, 450, 1000],
    ]


def test_pairs_of_one_instance_alone_have_no_off_diagonal_terms(small_frames: Frames) -> None:
    plan = Plan("cmsc", options={"positives": "instance"}, settings=QUICK)
    task = task_of(small_frames, plan)
    keys = keyed_random.member_keys([0], CPU)
    # eight instances of few patients, so that there would be pairs
    batch = task.batches.batch(task.train, torch.arange(8)[None], keys)
    assert bool(same_patient_pairs(batch.patients).any())
    z = torch.randn(1, 2, 8, 5, generator=torch.Generator().manual_seed(1))
    found = task.objective.loss(z, batch, {})
    u = z / z.norm(dim=-1, keepdim=True)
    s = u[0, 0] @ u[0, 1].T / 0.1
    diagonal = -s.log_softmax(1).diagonal().mean() - s.log_softmax(0).diagonal().mean()
    assert float(found) == pytest.approx(float(diagonal), rel=1e-5)
    whole = patient_nce(z, batch.patients)
    assert float(whole) > float(found) + 0.1
    with pytest.raises(SettingError, match="`positives` must be patient or instance"):
        Plan("cmsc", options={"positives": "lead"}).objective  # noqa: B018


def test_batch_norm_per_view_is_one_pass_for_each_view() -> None:
    encoder = CNN(embedding_dim=8, samples=500, dropout=0.0)
    keys = keyed_random.member_keys([3], CPU)
    weights, buffers = encoder.parameters(keys), encoder.buffers(1)
    x = torch.randn(1, 12, 500, generator=torch.Generator().manual_seed(2))
    x[:, 6:] *= 3  # the two views differ in their statistics
    z, after = per_view(encoder, 2).encode_training(weights, buffers, x, keys)
    first, middle = encoder.encode_training(weights, buffers, x[:, :6], keys)
    second, last = encoder.encode_training(weights, middle, x[:, 6:], keys)
    assert torch.allclose(z, torch.cat([first, second], dim=1), atol=1e-6)
    for name, statistic in last.items():
        assert torch.allclose(after[name], statistic), name
    at_once, _ = encoder.encode_training(weights, buffers, x, keys)
    assert not torch.allclose(z, at_once, atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("option", ["batch_norm=view", "normalization=none"])
def test_every_method_trains_with_it_and_its_card_says_so(
    few_frames: Frames, tmp_path: Path, method: str, option: str
) -> None:
    name, _, value = option.partition("=")
    usual = Plan(method, (0, 1), embedding_dim=8, settings=QUICK)
    changed: dict[str, Any] = {name: value}
    plans = (usual, replace(usual, **changed))
    first, second = (
        pretrain_frames(few_frames, plan, tmp_path / str(i)) for i, plan in enumerate(plans)
    )
    assert not torch.equal(first[1].weights["conv1.weight"], second[1].weights["conv1.weight"])
    assert second[0].card.training[name] == value and name not in first[0].card.training
    assert second[0].card.in_mv == (option == "normalization=none")


@pytest.mark.parametrize("perturb", [None, "gaussian", "flip_x(always=true)>scaling(factor=2)"])
def test_views_that_are_not_normalized_are_in_mv(small_frames: Frames, perturb: str | None) -> None:
    plan = Plan("cmsc", perturb=perturb, settings=QUICK, normalization="none")
    task = task_of(small_frames, plan)
    keys = keyed_random.member_keys([0], CPU)
    rows = torch.arange(6).expand(len(keys), -1)
    x = task.batches.batch(task.train, rows, keys).x.unflatten(1, (2, 6))
    flat = torch.from_numpy(small_frames.signals)
    for i in range(6):
        for view in range(2):
            start = int(task.train.windows[i, view])
            mv = flat[start : start + x.shape[-1]] * float(task.train.scale[i, view])
            if perturb is None:
                assert torch.allclose(x[0, view, i], mv, atol=1e-6)
            elif perturb == "gaussian":
                assert 0 < float((x[0, view, i] - mv).abs().mean()) < 0.02  # σ = 0.01 mV
            else:
                assert torch.allclose(x[0, view, i], -2 * mv, atol=1e-5)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_feeds_an_encoder_as_its_card_says(
    small_frames: Frames, tmp_path: Path, protocol: str
) -> None:
    """Beside an encoder that takes normalized frames, and alone; and in mV of any gain."""
    usual = Plan("random-bn", (0,), embedding_dim=8, settings=QUICK)
    groups = [
        pretrain_frames(small_frames, plan, tmp_path / str(i))
        for i, plan in enumerate((usual, replace(usual, normalization="none")))
    ]
    assert groups[1][0].card.normalization == IN_MV
    how: dict[str, Any] = {
        "protocol": protocol,
        "settings": replace(QUICK, epochs=2),
        "resamples": 0,
    }
    together = score_groups(groups, small_frames, **how)
    alone = [score_groups([group], small_frames, **how)[0] for group in groups]
    for one, own in zip(together, alone, strict=True):
        assert one.evaluation.auc == pytest.approx(own.evaluation.auc, abs=1e-4)
    louder = replace(small_frames, scale=small_frames.scale * 3)
    changed = score_groups(groups, louder, **how)
    assert changed[0].evaluation.auc_logits == pytest.approx(together[0].evaluation.auc_logits)
    assert changed[1].evaluation.auc_logits != together[1].evaluation.auc_logits


def test_signals_in_another_unit_are_refused_where_mv_are_needed(
    small_frames: Frames, tmp_path: Path
) -> None:
    plan = Plan("random-bn", (0,), embedding_dim=8, settings=QUICK, normalization="none")
    made = pretrain_frames(small_frames, plan, tmp_path / "a")
    unknown = replace(small_frames, unit="adu")
    rows = instances(unknown, of="lead", views=Views(), split=2)
    with pytest.raises(CheckpointError, match="synthetic is in adu, and this encoder"):
        embed_instances(made, unknown, rows)
    with pytest.raises(CheckpointError, match="this encoder reads voltages"):
        score_groups([made], unknown, protocol="finetune")
    with pytest.raises(SettingError, match="are in adu, not mV; leave out `normalization`"):
        pretrain_frames(unknown, plan, tmp_path / "b")


def test_an_encoder_in_mv_embeds_a_store_as_it_embeds_its_frames(
    small_store: Store, usual_frames: Frames, tmp_path: Path
) -> None:
    clocs.pretrain(
        small_store, method="random", out=tmp_path / "a", embedding_dim=8, normalization="none"
    )
    checkpoint = load_checkpoint(next((tmp_path / "a").glob("*.safetensors")))
    rows = instances(usual_frames, of="lead", views=Views(), split=2)
    expected = embed_instances([checkpoint], usual_frames, rows)[0].numpy()
    made = clocs.embed(tmp_path / "a", small_store, level="frame", split="test").vectors
    assert np.allclose(np.sort(made, axis=0), np.sort(expected, axis=0), atol=1e-6)


def test_a_folder_from_before_these_options_is_continued(
    small_frames: Frames, tmp_path: Path
) -> None:
    plan = Plan("cmsc", (0,), embedding_dim=8, settings=QUICK)
    made = pretrain_frames(small_frames, plan, tmp_path)
    file = tmp_path / "settings.json"
    settings = json.loads(file.read_text())
    for name in ("positives", "batch_norm", "normalisation"):
        del settings[name]
    assert "keep" not in settings["settings"]
    file.write_text(json.dumps(settings))
    again = pretrain_frames(small_frames, plan, tmp_path, resume=True)
    assert torch.equal(again[0].weights["conv1.weight"], made[0].weights["conv1.weight"])
    other = replace(plan, batch_norm="view")
    with pytest.raises(CheckpointError, match="batch_norm"):
        pretrain_frames(small_frames, other, tmp_path, resume=True)

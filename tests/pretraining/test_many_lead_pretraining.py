"""Pre-training of encoders that see many leads at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import clocs
from clocs import Frames, Store
from clocs.cli.main import Root
from clocs.encoders.make import ENCODERS
from clocs.errors import ClocsWarning, SettingError
from clocs.frames.frames import ABSENT
from clocs.frames.make import make_frames
from clocs.frames.views import MAX_LEADS
from clocs.kernels import keyed_random
from clocs.pretraining.batches import Batch, random_subsets
from clocs.pretraining.methods import METHODS
from clocs.pretraining.methods.contrastive import PatientNCE
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.pretraining.task import PretrainingTask
from clocs.recording import STANDARD_LEADS, FrameSpec
from clocs.training import Settings
from clocs.training.card import STANDARDIZED
from clocs.training.checkpoint import load_checkpoint
from clocs.training.loop import Epoch

LEADS = ("II", "V2", "I", "aVR", "aVL")  # I is absent from every recording
CPU = torch.device("cpu")
QUICK = Settings(epochs=2, batch_size=16, lr=1e-3)


class Tiny(nn.Module):
    """A network of many leads that knows which of them are there."""

    multilead = True

    def __init__(
        self, *, embedding_dim: int, samples: int, dropout: float, leads: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2 * len(leads), 8, 9, stride=8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, embedding_dim)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        mask = there[..., None].to(x.dtype).expand_as(x)
        h = self.norm(self.conv(torch.cat([x, mask], dim=1)))
        z: Tensor = self.out(torch.relu(h).mean(dim=-1))
        return z


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", Tiny)


@pytest.fixture(scope="module")
def wide(small_store: Store) -> Frames:
    """Frames of 2 s, of which some lack V2."""
    frames = make_frames(small_store, spec=FrameSpec(2.0, 200)).for_leads(LEADS)
    starts, scale = frames.starts.copy(), frames.scale.copy()
    starts[5::7, 1], scale[5::7, 1] = ABSENT, np.nan
    return replace(frames, starts=starts, scale=scale)


def plan(method: str, **more: Any) -> Plan:
    return Plan(method, encoder="tiny", embedding_dim=8, settings=QUICK, **more)


def first_batch(
    frames: Frames, method: str, *, stream: bool = False, rows: int = 12, **more: Any
) -> tuple[PretrainingTask, Batch]:
    task = PretrainingTask(frames, plan(method, **more), device=CPU, stream=stream)
    members = len(task.counts)
    keys = keyed_random.fold(keyed_random.member_keys(list(range(members))), 7)
    order = torch.arange(rows).expand(members, rows).clone()
    if stream:
        next(iter(task.stage(order, rows, 1, keys[None])))
    return task, task.batches.batch(task.train, order, keys)


def there(batch: Batch) -> Tensor:
    """(members, views, batch, leads) which leads of a view can be seen."""
    nan = batch.x.isnan()
    assert torch.equal(nan.any(dim=-1), nan.all(dim=-1))  # a lead is there or it is not
    return (~nan[..., 0]).view(len(nan), -1, batch.rows.shape[1], nan.shape[2])


@pytest.mark.parametrize(
    ("method", "views"),
    [("cmsc", 2), ("cmlc", 2), ("cmsmlc", 2), ("simclr", 2), ("byol", 2), ("mtssl", 7),
     ("supervised", 1)],
)  # fmt: skip
def test_a_batch_holds_the_views_of_its_method(wide: Frames, method: str, views: int) -> None:
    task, batch = first_batch(wide, method)
    assert batch.x.shape == (1, views * 12, len(LEADS), 200)
    seen, part = there(batch)[0], task.train
    present = part.windows[:12].transpose(0, 1) != ABSENT  # (windows, batch, leads)
    assert not present[..., 2].any() and not present[..., 1].all()
    if method in ("cmlc", "cmsmlc"):
        assert ((seen.sum(-1) >= 1) & (seen.sum(-1) <= MAX_LEADS)).all()
        assert not (seen & ~present.expand_as(seen)).any()
        assert not torch.equal(seen[0], seen[1])
    else:
        assert torch.equal(seen, present.expand_as(seen))
    known = batch.x[0, ~batch.x[0, ..., 0].isnan()]
    if method != "mtssl":
        assert torch.allclose(known.mean(dim=-1), torch.zeros(len(known)), atol=1e-4)
        assert torch.allclose(known.var(dim=-1, correction=0), torch.ones(len(known)), atol=1e-2)


def test_windows_are_those_of_the_frames_and_copies_are_perturbed_apart(wide: Frames) -> None:
    _, batch = first_batch(wide, "cmsc")
    frame = int(np.flatnonzero((wide.split == 0) & np.isin(wide.segment, [0, 2]))[3])
    for view in (0, 1):
        window = torch.from_numpy(wide.windows(np.array([frame + view]), 4)[0])
        expected = (window - window.mean()) / window.std(correction=0)
        assert torch.allclose(batch.x[0, view * 12 + 3, 4], expected, atol=1e-4)
    _, batch = first_batch(wide, "simclr")
    one, other = batch.x[0].unflatten(0, (2, 12))[:, :, 0]
    assert not torch.equal(one, other) and (one - other).square().mean() < 0.1


def test_subsets_have_1_to_most_leads_and_never_one_that_is_absent() -> None:
    present = torch.rand(2, 4000, 6) < 0.6
    present[:, :, 5] = True
    keys = keyed_random.member_keys([0, 1])
    kept = random_subsets(present, keys, 3)
    assert not (kept & ~present).any()
    count, limit = kept.sum(dim=-1), present.sum(dim=-1).clamp(max=3)
    assert int(count.min()) == 1 and bool((count <= limit).all())
    sizes = torch.bincount(count[limit == 3]).double()[1:]
    assert (sizes / sizes.sum() - 1 / 3).abs().max() < 0.03  # all sizes alike
    full = random_subsets(torch.ones(1, 9000, 6, dtype=torch.bool), keys[:1], 6)
    assert (full.double().mean(dim=(0, 1)) - 3.5 / 6).abs().max() < 0.03  # and all leads
    assert torch.equal(random_subsets(present[1:], keys[1:], 3), kept[1:])  # whoever else trains


def test_most_leads_is_refused_by_encoders_of_one_lead(wide: Frames) -> None:
    with pytest.raises(SettingError, match="cnn sees one lead at a time; leave out `most_leads`"):
        Plan("cmlc", options={"most_leads": 2}).views_on("synthetic")
    _, batch = first_batch(wide, "cmsmlc", options={"most_leads": 1})
    assert (there(batch).sum(dim=-1) == 1).all()


@pytest.mark.parametrize("method", ["cmsc", "cmsmlc"])
def test_random_crops_stay_in_their_run_and_are_the_same_streamed(
    wide: Frames, method: str
) -> None:
    options = {"crops": "random", "segments": 3}
    task, batch = first_batch(wide, method, options=options, seeds=(0, 1))
    _, streamed = first_batch(wide, method, options=options, seeds=(0, 1), stream=True)
    assert torch.equal(batch.x.nan_to_num(9), streamed.x.nan_to_num(9))
    part = task.train
    assert part.room is not None and bool((part.room > 0).any())
    starts = part.starts(batch.rows, keyed_random.member_keys([0, 1]))
    starts = starts.unflatten(1, (3, -1))
    moved = (starts - part.windows[batch.rows].transpose(1, 2))[starts != ABSENT]
    assert int(moved.min()) >= 0
    room = part.room[batch.rows][:, None, :, None].expand_as(starts)[starts != ABSENT]
    assert bool((moved <= room).all()) and len(moved.unique()) > 10
    # a crop lies in one recording and has the leads of its run throughout
    flat = np.full(len(wide.signals), -1)
    for row, lead in zip(*np.nonzero(wide.present), strict=True):
        at = wide.starts[row, lead]
        flat[at : at + 200] = wide.recording[row] * 10 + lead
    member, view, row, lead = (starts != ABSENT).nonzero(as_tuple=True)
    begin = starts[member, view, row, lead].numpy()
    first = part.windows[batch.rows[member, row], 0, lead].numpy()
    expected = flat[first]
    assert np.array_equal(flat[begin], expected) and np.array_equal(flat[begin + 199], expected)


def test_random_crops_of_encoders_of_one_lead_are_the_same_streamed(small_frames: Frames) -> None:
    frames = small_frames

    def batch(stream: bool) -> Batch:
        own = Plan("cmsc", options={"crops": "random"}, settings=QUICK)
        task = PretrainingTask(frames, own, device=CPU, stream=stream)
        keys, rows = keyed_random.member_keys([0]), torch.arange(8)[None]
        if stream:
            next(iter(task.stage(rows, 8, 1, keys[None])))
        return task.batches.batch(task.train, rows, keys)

    whole = batch(False)
    assert whole.x.shape == (1, 16, frames.spec.samples)
    assert torch.equal(whole.x, batch(True).x)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_a_resumed_training_ends_the_same(
    wide: Frames, method: str, tmp_path: Path
) -> None:
    def interrupt(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    def train(folder: str, **more: Any) -> list[clocs.Checkpoint]:
        with pytest.warns(ClocsWarning, match="has I, so the encoder learns nothing of them"):
            return pretrain_frames(
                wide, plan(method, seeds=(0, 1)), tmp_path / folder, save_every=0, **more
            )

    whole = train("whole")
    if METHODS[method].objective is not None:
        with pytest.raises(KeyboardInterrupt):
            train("stopped", on_epoch=interrupt)
    resumed = train("stopped", resume=True)
    assert [one.fingerprint for one in resumed] == [one.fingerprint for one in whole]
    card = load_checkpoint(tmp_path / "whole").card
    assert card.normalization == STANDARDIZED and card.encoder["leads"] == list(LEADS)
    names = whole[0].encoder.parameters(torch.zeros(0, dtype=torch.int64))
    assert whole[0].weights.keys() == names.keys()  # heads are dropped
    assert all(bool(t.isfinite().all()) for t in (whole[0].weights | whole[0].buffers).values())


def test_views_of_one_patient_are_positives_whatever_leads_they_show(wide: Frames) -> None:
    task, batch = first_batch(wide, "cmsmlc", rows=16)
    patients = task.train.patients[:16]
    same = (patients[:, None] == patients) & ~torch.eye(16, dtype=torch.bool)
    assert same.any()
    assert isinstance(task.objective, PatientNCE)
    assert torch.equal(task.objective.pairs(batch)[0], same)


def test_nan_never_reaches_a_loss_even_with_noise(wide: Frames) -> None:
    task, batch = first_batch(wide, "cmsmlc", perturb="gaussian(sigma=0.05)>sa_t", seeds=(0, 1))
    keys = keyed_random.member_keys([0, 1])
    weights = {k: v.requires_grad_() for k, v in task.parameters(keys).items()}
    losses, buffers = task.train_loss(weights, task.buffers(2), batch.rows, keys)
    slopes = torch.autograd.grad(losses.sum(), list(weights.values()))
    assert all(bool(t.isfinite().all()) for t in (losses, *slopes, *buffers.values()))


def test_projections_are_for_many_leads_unless_asked_for() -> None:
    def heads(own: Plan) -> set[str]:
        assert own.objective is not None
        return {name.split(".")[0] for name in own.objective.heads(dim=8, classes=0, copies=2)}

    assert heads(plan("cmsc")) == heads(plan("simclr")) == {"projection"}
    assert heads(plan("byol")) == {"projection", "predictor"}
    assert heads(plan("cmsc", options={"projection": 0})) == heads(Plan("cmsc")) == set()
    assert heads(Plan("simclr", options={"projection": 16})) == {"projection"}


def test_normalization_is_refused_for_many_leads() -> None:
    with pytest.raises(SettingError, match="leave out `normalization`"):
        plan("cmsc", normalization="none")


def test_stores_of_different_leads_are_learned_from_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def store(name: str, leads: list[str]) -> Store:
        arrays = [rng.normal(size=(len(leads), 2000)).cumsum(1) / 50 for _ in range(24)]
        return clocs.from_arrays(
            arrays, patients=list(range(24)), rate=500, leads=leads, name=name, out=tmp_path / name
        )

    both = [store("one", ["II"]), store("two", ["V1", "I", "II"])]
    frames = make_frames(both[0])
    assert frames.for_leads(STANDARD_LEADS).signals is frames.signals  # absent leads take no memory
    with pytest.warns(ClocsWarning):
        (made,) = clocs.pretrain(
            both, method="cmsmlc", encoder="tiny", embedding_dim=8, out=tmp_path / "run",
            crops="random", seconds=1, epochs=1, batch_size=8,
        )  # fmt: skip
    assert made.card.frame == made.card.frame_trained == FrameSpec(1, 100)
    assert made.card.encoder["leads"] == list(STANDARD_LEADS)
    assert [one.dataset for one in made.card.trained_on] == ["one", "two"]
    with pytest.raises(SettingError, match="one has none of the leads V1, I"):
        clocs.pretrain(both, encoder="tiny", leads=["V1", "I"], out=tmp_path / "none")


def test_the_command_line_takes_the_options_of_many_leads(
    small_store: Store, tmp_path: Path
) -> None:
    options = "--method cmsmlc --encoder tiny --embedding-dim 8 --leads V2,II,aVL --seconds 2"
    options += " --rate 50 --most-leads 2 --crops random --projection 4 --epochs 1"
    given = [
        "pretrain",
        str(small_store.path),
        *options.split(),
        "--out",
        str(tmp_path / "run"),
        "--json",
    ]
    ran = CliRunner().invoke(Root(), given, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    card = load_checkpoint(tmp_path / "run").card
    assert card.encoder["leads"] == ["V2", "II", "aVL"] and card.frame == FrameSpec(2, 100)
    expected = {"most_leads": 2, "crops": "random", "projection": 4}
    assert expected.items() <= card.training.items()
    assert card.training["views"]["most_leads"] == 2 and card.training["views"]["random_crops"]


def test_a_duration_or_rate_of_frames_may_be_chosen_for_any_encoder(
    small_store: Store, tmp_path: Path
) -> None:
    (made,) = clocs.pretrain(small_store, method="random", seconds=2, rate=200, out=tmp_path / "a")
    assert made.card.frame == made.card.frame_trained == FrameSpec(2, 400)
    with pytest.raises(SettingError, match="`rate` must be above 0 Hz, not 0"):
        clocs.pretrain(small_store, rate=0, out=tmp_path / "b")


def test_random_crops_with_batch_norm_per_view(wide: Frames, tmp_path: Path) -> None:
    own = plan(
        "cmsmlc", options={"crops": "random"}, batch_norm="view"
    )  # fmt: skip
    with pytest.warns(ClocsWarning):
        (made,) = pretrain_frames(wide, own, tmp_path / "run")
    assert made.card.metrics["validation_loss"] is not None


def test_crops_of_recordings_of_one_frame_are_equal_and_a_warning_counts_them(
    small_frames: Frames, tmp_path: Path
) -> None:
    frames = small_frames.for_leads(("II", "V2"))
    frames = replace(frames, segment=2 * frames.segment)  # none follows another
    own = plan("cmsc", options={"crops": "random", "projection": 0})
    with pytest.warns(ClocsWarning, match="instances are one frame long"):
        pretrain_frames(frames, own, tmp_path / "run")
    _, batch = first_batch(frames, "cmsc", options={"crops": "random"})
    assert torch.equal(batch.x[:, :12], batch.x[:, 12:])

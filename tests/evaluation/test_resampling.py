from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from scipy.stats import t as student

import clocs
from clocs.errors import SettingError
from clocs.evaluation import bootstrap as resampling
from clocs.evaluation.bootstrap import Resampling, mean_weights, patient_weights
from clocs.evaluation.groups import score_groups
from clocs.frames.frames import Frames
from research.analyses.label_mapping import other_hospital
from research.analyses.noise_scores import noise_robustness

NAMES = [f"p{number}" for number in range(50)]


def test_the_plan_is_the_same_function_everywhere() -> None:
    """Results made in other places are paired only if their draws are those recorded here."""
    (block,) = patient_weights("chapman", NAMES, 200)
    digest = hashlib.sha256(block.numpy().astype("<i4").tobytes()).hexdigest()
    assert digest[:16] == "11fbd3e49624fb22"
    weights = mean_weights([0, 1, 2, 3, 4], 3)
    assert weights[:, 0] == pytest.approx(
        [
            0.18247011062599416,
            -0.026434344050040803,
            0.2423593947206754,
            0.09918446534741619,
            0.5024203733559551,
        ],
        rel=1e-12,
    )


def test_a_draw_does_not_depend_on_who_else_is_drawn_nor_on_how_many_draws_follow() -> None:
    (block,) = patient_weights("chapman", NAMES, 300)
    some = patient_weights("chapman", NAMES[10:20], 2100)
    assert [len(one) for one in some] == [1000, 1000, 100]
    assert torch.equal(some[0][:300], block[:, 10:20])
    assert np.array_equal(mean_weights([0, 3], 100), mean_weights([0, 3], 900)[:, :100])
    assert not torch.equal(patient_weights("cardiology", NAMES, 300)[0], block)


def test_drawing_patients_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = patient_weights("chapman", NAMES, 40)
    monkeypatch.setattr(resampling, "_PATIENTS", 7)
    assert torch.equal(patient_weights("chapman", NAMES, 40)[0], whole)


def test_patients_count_as_often_as_in_a_bootstrap() -> None:
    (block,) = patient_weights("chapman", [str(n) for n in range(400)], 1000)
    assert block.mean().item() == pytest.approx(1, abs=0.01)
    assert block.var().item() == pytest.approx(1, abs=0.02)
    assert (block == 0).double().mean().item() == pytest.approx(np.exp(-1), abs=0.005)
    means = block.mean(dim=1)
    assert means.std().item() == pytest.approx(1 / 20, rel=0.1)  # patients are independent


def test_seeds_alone_give_the_interval_of_student() -> None:
    values = np.array([0.80, 0.83, 0.79, 0.84, 0.81])
    draws = values @ mean_weights(range(5), 20_000)
    half = student.ppf(0.975, 4) * values.std(ddof=1) / np.sqrt(5)
    low, high = np.quantile(draws, [0.025, 0.975])
    assert (low, high) == (
        pytest.approx(values.mean() - half, abs=half / 20),
        pytest.approx(values.mean() + half, abs=half / 20),
    )


def test_the_weights_of_seeds_add_up_to_one_and_a_single_seed_has_all() -> None:
    assert mean_weights(range(5), 100).sum(axis=0) == pytest.approx(np.ones(100))
    assert np.array_equal(mean_weights([7], 4), np.ones((1, 4)))
    own = Resampling.of("chapman", NAMES, [0, 1], resamples=10)
    assert (own.resamples, own.seeds.shape) == (10, (2, 10))


def test_less_than_no_draws_are_refused_before_anything_is_computed(small_frames: Frames) -> None:
    asked = (
        lambda: Resampling.of("chapman", NAMES, [0], resamples=-1),
        lambda: score_groups([], small_frames, resamples=-1),
        lambda: noise_robustness([], small_frames, resamples=-1),
        lambda: other_hospital([], small_frames, small_frames, resamples=-1),
        lambda: clocs.finetune("nowhere", "nowhere", resamples=-1),
        lambda: clocs.evaluate_classifier("nowhere", "nowhere", resamples=-1),
    )
    for call in asked:
        with pytest.raises(SettingError, match=r"`resamples` is -1; give 0 or more"):
            call()

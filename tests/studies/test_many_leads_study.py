"""The comparison of encoders of many leads: its items, and the runner that computes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from clocs.errors import SettingError
from clocs.evaluation.protocols import PROTOCOLS
from clocs.experiments.data import simulated_datasets
from clocs.experiments.ledger import open_ledger
from clocs.pretraining.methods import METHODS
from research.many_leads.data import StudyData
from research.many_leads.items import Pretraining, Scoring, items
from research.many_leads.recipe import TINY, Recipe
from research.many_leads.runner import chosen, run
from tiny_leads import tiny_leads

ONLY = ("linear-1/physionet2020/cmsmlc-chapman+physionet2020", "identity/physionet2020/cmsmlc")


@pytest.fixture(scope="module", autouse=True)
def encoder() -> Iterator[str]:
    """A small one; simulated patients are made once for all tests."""
    once = patch("research.many_leads.data.simulated_datasets", cache(simulated_datasets))
    with tiny_leads() as name, once:
        yield name


@pytest.fixture(scope="module")
def quick(encoder: str) -> Recipe:
    return replace(TINY, encoder=encoder, patients=8)


def test_every_item_has_a_name_of_its_own_and_comes_after_its_encoders() -> None:
    every = items()
    assert len({item.name for item in every}) == len(every)
    for place, item in enumerate(every):
        assert set(item.encoders) <= set(every[:place])
        encoder = item if isinstance(item, Pretraining) else item.encoder
        assert encoder.method in METHODS
        if isinstance(item, Scoring):
            assert item.protocol in PROTOCOLS


def test_an_item_brings_the_encoders_that_it_needs() -> None:
    found = chosen("a", ["linear-0.1/chapman"])
    assert [item.name.split("/")[0] for item in found] == ["pretrain", "linear-0.1"]
    with pytest.raises(SettingError, match="letters of"):
        chosen("az")


def test_trying_it_out_takes_one_item_of_each_kind() -> None:
    few = chosen(tiny=True)
    kinds = {item.name.split("/")[0].split("-")[0] for item in few}
    everything = {"pretrain", "linear", "finetune", "attentive", "hospital", "identity"}
    assert kinds == everything
    assert len(few) < len(items()) / 4


def test_results_carry_their_scores_and_settings_and_are_not_computed_twice(
    tmp_path: Path, quick: Recipe
) -> None:
    lines: list[str] = []
    done = run(tmp_path, stages="af", only=ONLY, recipe=quick, device="cpu", say=lines.append)
    assert (done.computed, done.failed, done.left) == (3, 0, 0)
    assert [line.split("/")[0] for line in lines] == ["pretrain", "linear-1", "identity"]
    with closing(open_ledger(tmp_path)) as ledger:
        runs = ledger.runs()
    row = next(one for name, one in runs.items() if name.startswith("linear-1"))
    assert row.result is not None
    assert {"auc", "ci95", "auc_validation", "settings", "weights", "seeds"} <= row.result.keys()
    assert row.seconds and row.versions["clocs"]
    assert row.settings["encoder"]["method"] == "cmsmlc"
    trained = next(one for name, one in runs.items() if name.startswith("pretrain"))
    assert trained.checkpoint and (tmp_path / trained.checkpoint / "seed-0.safetensors").is_file()
    again = run(tmp_path, stages="af", only=ONLY, recipe=quick, device="cpu")
    assert (again.computed, again.complete) == (0, True)
    with pytest.raises(SettingError, match="differ in the recipe"):
        run(tmp_path, recipe=replace(quick, steps=3), device="cpu")


def test_a_time_limit_stops_before_the_next_item_and_the_next_call_resumes(
    tmp_path: Path, quick: Recipe
) -> None:
    stopped = run(tmp_path, stages="a", only=ONLY, recipe=quick, device="cpu", seconds=0)
    assert (stopped.computed, stopped.complete) == (0, False)
    resumed = run(tmp_path, stages="a", only=ONLY, recipe=quick, device="cpu")
    assert resumed.complete


def test_a_failed_item_keeps_its_error_and_the_others_go_on(tmp_path: Path, quick: Recipe) -> None:
    only = ("attentive-1/physionet2020/cmsmlc", ONLY[0])
    lines: list[str] = []
    done = run(tmp_path, stages="da", only=only, recipe=quick, device="cpu", say=lines.append)
    assert (done.computed, done.failed) == (2, 1)  # the small encoder has no feature map
    assert any("FAILED" in line and "feature map" in line for line in lines)


def test_copies_of_one_encoder_draw_different_labeled_patients(
    tmp_path: Path, quick: Recipe
) -> None:
    name = "linear-0.1/chapman/cmsmlc-chapman+physionet2020"
    half = replace(quick, linear_draws=3)
    run(tmp_path, stages="a", only=[name], recipe=half, device="cpu")
    with closing(open_ledger(tmp_path)) as ledger:
        found = ledger.run(name)
    assert found is not None and found.result is not None
    assert found.result["seeds"] == [0, 1, 2] and found.result["encoder_seeds"] == [0]


def test_conditions_are_scored_without_training_anew(tmp_path: Path, quick: Recipe) -> None:
    name = next(i.name for i in items() if isinstance(i, Scoring) and i.conditions)
    more = replace(quick, patients=24, resamples=20)
    run(tmp_path, stages="c", only=[name], recipe=more, device="cpu")
    with closing(open_ledger(tmp_path)) as ledger:
        found = ledger.run(name)
    assert found is not None and found.result is not None
    rows = found.result["conditions"]
    kinds = {row["condition"].split()[0] for row in rows}
    assert kinds == {"leads", "noise"}
    assert all(row["ci95"][0] <= row["auc_mean"] <= row["ci95"][1] for row in rows)


def test_a_single_lead_has_its_place_among_twelve() -> None:
    data = StudyData(None, patients=4)
    frames = data.frames("physionet2017")
    assert len(frames.leads) == 12
    assert frames.present.sum(axis=1).tolist() == [1] * len(frames)
    both = data.frames("chapman", "physionet2020")
    assert both.present.all() and both.joined
    assert set(np.unique(both.split)) == {0, 1, 2}

"""`clocs.evaluate` with encoders of many leads, on stores that have them all or some or none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import clocs
from clocs import Checkpoint, Store
from clocs.cli.main import Root
from clocs.errors import ClocsWarning, SettingError
from clocs.frames.make import make_frames
from clocs.recording import UNNAMED_LEAD, FrameSpec
from tiny_leads import many_lead_checkpoints, tiny_leads

QUICK: dict[str, Any] = {"epochs": 1, "lr": 1e-2, "resamples": 50}


@pytest.fixture(scope="module", autouse=True)
def encoder() -> Iterator[str]:
    with tiny_leads() as name:
        yield name


@pytest.fixture(scope="module")
def group(small_store: Store, encoder: str) -> list[Checkpoint]:
    frames = make_frames(small_store, spec=FrameSpec(2.5, 250), leads=("I", "II", "V2"))
    return many_lead_checkpoints(frames)


def test_a_store_is_cut_into_the_encoders_frames_and_untrained_ones_are_beside_it(
    group: list[Checkpoint], small_store: Store
) -> None:
    scored = clocs.evaluate_many([group], small_store, protocol="linear-converged", **QUICK)
    names = [one.evaluation.method for one in scored]
    assert names == ["random", "random-bn"]  # the encoder itself, and what was missing
    first = scored[0].evaluation
    frames = make_frames(small_store, spec=FrameSpec(2.5, 250), leads=("I", "II", "V2"))
    assert first.test_frames == int((frames.split == 2).sum()) and first.leads == ["I", "II", "V2"]


def test_a_store_that_lacks_leads_is_evaluated_without_them(
    small_store: Store, tmp_path: Path
) -> None:
    frames = make_frames(small_store, spec=FrameSpec(2.5, 250), leads=("I", "II", "V2"))
    group = many_lead_checkpoints(frames.for_leads(("X", "V2", "II")))
    with pytest.warns(ClocsWarning, match="has no lead X: it is read from V2, II alone"):
        found = clocs.evaluate(group, small_store, protocol="knn", **QUICK)
    assert found.leads == ["V2", "II"]
    lost = many_lead_checkpoints(frames.for_leads(("II", "Y")), seeds=(0,))
    other = clocs.from_arrays(
        np.random.default_rng(0).normal(size=(6, 1, 5000)).astype(np.float32),
        patients=[str(i) for i in range(6)],
        rate=500,
        leads=["V5"],
        out=tmp_path / "v5",
    )
    with pytest.raises(SettingError, match="has none of them; it has V5"):
        clocs.evaluate(lost, other)


def test_a_store_of_one_lead_without_a_name_is_evaluated(
    group: list[Checkpoint], tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    store = clocs.from_arrays(
        random.normal(size=(60, 1, 2500)).astype(np.float32),
        patients=[str(i) for i in range(60)],
        labels=["a", "b"] * 30,
        rate=500,
        leads=[UNNAMED_LEAD],
        out=tmp_path / "one",
    )
    with pytest.warns(ClocsWarning, match="read from ECG alone"):
        found = clocs.evaluate(group, store, protocol="linear-converged", **QUICK)
    assert found.leads == ["II"] and len(found.auc) == len(group)


def test_encoders_of_one_and_of_many_leads_are_evaluated_separately(
    group: list[Checkpoint], checkpoint: Checkpoint, small_store: Store
) -> None:
    with pytest.raises(SettingError, match="one after the other"):
        clocs.evaluate_many([group, checkpoint], small_store)


def test_the_command_has_per_and_seconds(
    group: list[Checkpoint], small_store: Store, tmp_path: Path
) -> None:
    for one in group:
        one.save(tmp_path / "run" / f"seed-{one.card.seed}.safetensors")
    given = ["evaluate", str(tmp_path / "run"), str(small_store.path), "--protocol", "knn"]
    given += ["--resamples", "0", "--seconds", "5"]
    done = CliRunner().invoke(Root(), [*given, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["per"] == "recording"
    done = CliRunner().invoke(Root(), [*given, "--per", "row"])
    assert done.exit_code == 0 and "AUC per frame" in done.stdout

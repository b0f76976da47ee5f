"""Shipped models on the command line: listed, described, and used by their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import clocs
import command_line
import edf_files
from clocs.cli.main import Root
from clocs.models.model_card import model_card, shipped_models
from clocs.training.card import SHIPPED


def typed(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(Root(), [str(word) for word in words])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.stdout + result.stderr


def test_models_are_listed_with_data_leads_rate_size_score_and_license() -> None:
    listed = {one["name"]: one for one in json.loads(typed("info", "--json"))}
    assert listed.keys() == SHIPPED.keys()
    for name, one in listed.items():
        assert one["data"] and one["leads"] and one["rate"] > 0 and one["license"]
        assert one["size"] == sum(path.stat().st_size for path in SHIPPED[name].files)
        assert one["auc_ci95"][0] <= one["auc"] <= one["auc_ci95"][1]
    assert "Shipped models" in typed("info")


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_no_terminal_is_so_narrow_that_names_are_broken(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = typed("info")
    for model in shipped_models():
        assert all(word in shown for word in (model["name"], model["kind"], *model["data"]))


def test_an_encoder_in_place_of_a_classifier_names_the_classifiers_on_it(tmp_path: Path) -> None:
    file = edf_files.write(tmp_path, [edf_files.signal("II")], name="my.edf")
    said = command_line.clocs("predict", "cmsmlc-many-leads", file, code=1).stderr
    on_it = "use rhythm-chapman or rhythm-physionet2017"
    assert on_it in said
    said = command_line.clocs("predict", "cmsc-chapman", file, code=1).stderr
    assert "run `clocs finetune cmsc-chapman STORE --out" in said


@pytest.mark.parametrize("name", SHIPPED)
def test_the_card_of_a_model_is_printed_in_markdown(name: str) -> None:
    assert typed("info", name, "--verbose") == model_card(name, clocs.load(name))
    assert json.loads(typed("info", name, "--json"))


def test_a_file_is_embedded_by_a_name_with_the_leads_that_it_has(tmp_path: Path) -> None:
    leads = [edf_files.signal(lead, rate=257.0) for lead in ("V5", "II")]
    file, out = edf_files.write(tmp_path, leads, name="my.edf"), tmp_path / "e.parquet"
    with pytest.warns(UserWarning, match="lack some of the leads"):
        said = json.loads(typed("embed", "cmsc-chapman", file, "--out", out, "--json"))
    assert said["vectors"] == 1 and said["dim"] == 128


def test_a_recording_without_any_of_the_leads_gets_a_sentence(tmp_path: Path) -> None:
    file = edf_files.write(tmp_path, [edf_files.signal("V5")], name="my.edf")
    said = typed("embed", "cmsc-chapman", file, "--out", tmp_path / "e.parquet", code=1)
    assert "has none of the leads II, V2, aVL, aVR" in said
    assert "choose from V5 with --leads" in " ".join(said.split())

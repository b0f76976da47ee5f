"""`clocs prepare folder` as it is typed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from command_line import clocs
from own_files import several


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "my data"
    for patient in ("A", "B"):
        several(folder / patient, 2)
    (folder / "t.csv").write_text("file,label\nA/r0,AF\nA/r1,AF\nB/r0,SR\nB/r1,SR\n")
    return folder


def test_a_dry_run_prints_the_command_that_then_works(data: Path, tmp_path: Path) -> None:
    words = ("prepare", "folder", data, "--patient", "folder", "--labels", "t.csv")
    facts = json.loads(clocs(*words, "--out", tmp_path / "s", "--dry-run", "--json").stdout)
    assert facts["patients"] == 2
    shown = clocs(*words, "--out", tmp_path / "s", "--dry-run").stdout
    assert f"Next: {facts['command']}" in shown
    assert "--frame-seconds changes it" in shown
    assert not (tmp_path / "s").exists()
    command = shlex.split(facts["command"])
    made = json.loads(clocs(*command[1:], "--json").stdout)
    assert (made["recordings"], made["patients"]) == (4, 2)
    assert made["labels"] == {"AF": 2, "SR": 2}
    assert made["settings"] == {"patient": "folder", "labels": "t.csv"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--patient", "mother"), "--patient is 'mother'"),
        (("--labels", "x.csv"), "--labels is x.csv"),
        (("--lead-names", "II"), "--lead-names must be pairs"),
        (("--rate", "5"), "--rate must be a number at least 50"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    data: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    said = clocs("prepare", "folder", data, "--out", tmp_path / "s", *arguments, code=1).stderr
    assert words in said and "Traceback" not in said
    assert len(said.strip().splitlines()) == 1


def test_a_limit_takes_so_many_recordings_from_all_over_the_source(
    data: Path, tmp_path: Path
) -> None:
    words = ("prepare", "folder", data, "--patient", "folder", "--out", tmp_path / "s")
    made = json.loads(clocs(*words, "--limit", 2, "--json").stdout)
    assert (made["recordings"], made["patients"]) == (2, 2)  # the first and the last
    assert made["settings"]["limit"] == "2"
    assert "another settings" in clocs(*words, code=1).stderr  # it is not taken for all of them
    assert "--limit is 0; give at least 1" in clocs(*words, "--limit", 0, code=1).stderr

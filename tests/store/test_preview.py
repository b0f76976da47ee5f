"""What a dry run says is what preparing does."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wfdb

import clocs
from own_files import record, several

pytestmark = pytest.mark.usefixtures("reads_in_threads")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for patient in ("A", "B"):
        several(folder / patient, 3)
    record(folder / "B", "short", seconds=3, rate=250, leads=("ch9",))
    (folder / "B" / "r0.dat").write_bytes(b"\0")
    (folder / "report.pdf").write_bytes(b"%PDF")
    (folder / "t.csv").write_text("file,label\nA/r0,AF\nA/r1,AF;PVC\nB/r1,SR\nC/r9,SR\nD/r9,SR\n")
    return folder


def test_it_shows_what_was_understood(data: Path) -> None:
    facts = clocs.preview("folder", data, patient="folder", labels="t.csv")
    assert json.loads(json.dumps(facts)) == facts
    assert facts["files"] == {"WFDB": 7, "part of a recording": 7, "not a recording": 1}
    assert (facts["recordings"], facts["sampled"], facts["patients"]) == (7, 7, 2)
    assert facts["recordings_per_patient"] == {"least": 3, "median": 3.5, "most": 4}
    assert facts["leads"] == {"I": 5, "II": 5, "V5": 5, "ch9": 1}
    assert facts["rates"] == {"100": 5, "250": 1}
    assert facts["seconds"] == {"least": 3.0, "median": 12.0, "most": 12.0}
    assert facts["labels"] == {"AF": 2, "PVC": 1, "SR": 1} and facts["multilabel"]
    assert facts["unlabeled"] == 4
    assert facts["rows_without_recording"] == 2
    (problem,) = facts["problems"]
    assert (problem["reason"], problem["count"]) == ("truncated", 1)
    assert any("ch9" in notice for notice in facts["notices"])
    assert any("4 recordings have no row in t.csv" in notice for notice in facts["notices"])
    assert [one["id"] for one in facts["examples"]] == ["A/r0", "A/r2", "short"]
    assert facts["examples"][0]["labels"] == ["AF"]


def test_of_many_recordings_a_sample_is_read_and_all_are_counted(data: Path) -> None:
    facts = clocs.preview("folder", data, sample=3, patient="folder", labels="t.csv")
    assert (facts["recordings"], facts["sampled"], facts["patients"]) == (7, 3, 2)
    assert facts["labels"] == {"AF": 2, "PVC": 1, "SR": 1}


def test_tables_without_a_rate_are_a_question_and_then_in_quarantine(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).normal(0, 0.3, (5000, 2))
    np.savetxt(data / "A" / "plain.csv", rows, "%.3f", delimiter=",", header="I,II", comments="")
    facts = clocs.preview("folder", data)
    asked = "1 of the recordings would be in quarantine, without a sampling rate; give it in Hz"
    assert any(notice.startswith(asked) for notice in facts["notices"])
    assert [one["count"] for one in facts["problems"] if one["reason"] == "no rate"] == [1]
    assert not any(
        "say their" in note for note in clocs.preview("folder", data, rate=250)["notices"]
    )
    with warnings.catch_warnings(action="ignore"):
        store = clocs.prepare("folder", data, out=tmp_path / "store")
    (lost,) = store.quarantine.filter(reason="no rate").rows()
    assert lost[0] == "plain" and lost[2].endswith("as `rate`, such as `rate=500`")


def test_it_writes_nothing(data: Path) -> None:
    before = sorted(data.parent.rglob("*"))
    clocs.preview("folder", data)
    assert sorted(data.parent.rglob("*")) == before


def test_a_table_that_is_not_read_is_named(data: Path) -> None:
    (data / "diagnoses.xlsx").write_bytes(b"PK")
    facts: dict[str, Any] = clocs.preview("folder", data)
    (said,) = (notice for notice in facts["notices"] if "diagnoses.xlsx" in notice)
    assert "t.csv" in said and said.endswith("if one is a table of labels, give it as `labels`")


def test_published_datasets_have_a_preview_too() -> None:
    facts = clocs.preview("synthetic", patients=3)
    assert (facts["recordings"], facts["patients"]) == (6, 3)
    assert facts["frame"] == {"seconds": 5.0, "samples": 2500}


def test_recordings_with_gaps_and_annotated_rhythms_are_shown_like_any_other(
    tmp_path: Path,
) -> None:
    rows = np.random.default_rng(0).normal(0, 0.3, (2, 5000))
    rows[0, 1000:1200] = np.nan
    text = "\n".join(",".join(f"{value:.3f}" for value in row) for row in rows.T)
    (tmp_path / "gap.csv").write_text(f"# rate: 500\nI [mV],II [mV]\n{text}\n".replace("nan", ""))
    record(tmp_path, "af")
    wfdb.wrann("af", "atr", np.array([0]), ["+"], aux_note=["(AFIB"], write_dir=str(tmp_path))
    facts = clocs.preview("folder", tmp_path, labels="annotations")
    assert (facts["recordings"], facts["problems"]) == (2, [])
    assert facts["labels"] == {"AFIB": 1}

"""The command of the analyses: any encoder, frames from a file, results as JSON and in a page."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clocs.experiments.pages import filled
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.recording import FrameSpec
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint
from research.analyses.__main__ import main
from research.analyses.run import ANALYSES, analyze, read_all, save
from research.analyses.tables import tables
from tiny_leads import many_lead_checkpoints, tiny_leads

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("results/identity.md", "robustness.md")


@pytest.fixture(scope="module")
def data(small_store: Store) -> list[Frames]:
    """Two hospitals, whose labels are of known datasets."""
    frames = make_frames(small_store, spec=FrameSpec(2.5, 500), leads=("I", "II", "V2"))
    one = replace(frames, dataset="chapman", labels=("AFIB", "GSVT", "SB", "SR"))
    other = replace(frames, dataset="physionet2017", labels=("N", "A", "O", "~"))
    return [part.with_split_seed(0) for part in (one, other)]


@pytest.fixture(scope="module")
def many(data: list[Frames]) -> Iterator[list[Checkpoint]]:
    """Two seeds that see four leads at once, one of which the data lack."""
    with tiny_leads():
        yield many_lead_checkpoints(data[0].for_leads(("II", "V2", "V6", "I")))


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_takes_an_encoder_of_many_leads(
    name: str, many: list[Checkpoint], data: list[Frames], tmp_path: Path
) -> None:
    found = analyze(name, many[:1], data if name == "hospital" else data[:1], device="cpu")
    for one in found:
        assert one["encoders"][0]["encoder"]["leads"] == ["II", "V2", "V6", "I"]
        assert one["version"]
        save(one, tmp_path)
    assert len(read_all(tmp_path)) == len(found)
    part = tables(read_all(tmp_path))[name]
    assert "`tiny-leads` of 4 leads" in part and "Not measured" not in part


def test_the_command_fills_a_page(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    checkpoint.save(tmp_path / "seed-0.safetensors")
    page, out = tmp_path / "page.md", tmp_path / "out"
    page.write_text("<!-- clocs:days -->\n<!-- /clocs -->\n", encoding="utf-8")
    words = ["identity", str(tmp_path / "seed-0.safetensors"), "--data", str(small_store.path)]
    assert main([*words, "--out", str(out), "--fill", str(page), "--device", "cpu"]) == 0
    (found,) = read_all(out)
    everybody = found["patients"]
    assert f"halves, {everybody} of {everybody} |" in page.read_text(encoding="utf-8")


def test_two_datasets_are_needed_for_another_hospital(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint.save(tmp_path / "seed-0.safetensors")
    words = ["hospital", str(tmp_path / "seed-0.safetensors"), "--data", str(small_store.path)]
    assert main([*words, "--out", str(tmp_path)]) == 1
    assert "others to test on" in capsys.readouterr().err


def test_saved_frames_are_analysed_without_polars(
    checkpoint: Checkpoint, usual_frames: Frames, tmp_path: Path
) -> None:
    checkpoint.save(tmp_path / "seed-0.safetensors")
    usual_frames.save(tmp_path / "frames.safetensors")
    code = (
        "import sys; sys.modules['polars'] = sys.modules['xxhash'] = None\n"
        "from research.analyses.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["identity", str(tmp_path / "seed-0.safetensors"), "--device", "cpu"]
    more = ["--data", str(tmp_path / "frames.safetensors"), "--out", str(tmp_path / "out")]
    subprocess.run([sys.executable, "-c", code, *words, *more], check=True)
    assert len(read_all(tmp_path / "out")) == 1


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_have_the_published_numbers(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    parts = tables(read_all(DOCS / "results" / "analyses"))
    assert filled(text, parts, where=name) == text
    assert "Not measured" not in text


def test_published_results_are_strict_json() -> None:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    for path in (DOCS / "results" / "analyses").glob("*.json"):
        json.loads(path.read_text("utf-8"), parse_constant=refuse)

"""Figures that explain show what they claim, from Python and from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle

import clocs
from clocs import Checkpoint, Frames, FrameSpec, Store
from clocs.cli.main import Root
from clocs.errors import SettingError
from clocs.figures.canvas import save
from clocs.figures.draw import first_frame, show_perturbations, show_similarity, show_views
from clocs.frames.make import make_frames
from clocs.training import Settings
from clocs.training.checkpoint import load_checkpoint

SPEC = FrameSpec(5.0, 2500)


@pytest.fixture(scope="module")
def folder(small_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder after one epoch."""
    out = tmp_path_factory.mktemp("show") / "cmsc"
    settings = Settings(epochs=1, batch_size=64)
    clocs.pretrain(small_store, out=out, embedding_dim=16, settings=settings, device="cpu")
    return out


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(folder)


@pytest.fixture(scope="module")
def frames(small_store: Store) -> Frames:
    return make_frames(small_store, spec=small_store.manifest.segment_frame)


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(Root(), ["figure", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout


def drawn(path: Path) -> bool:
    """Whether the file is a picture with ink on much of it."""
    pixels = imread(path)[..., :3]
    return bool(pixels.shape[0] > 300 and (pixels.min(axis=-1) < 0.9).mean() > 0.03)


def panel(figure: Figure, title: str) -> Axes:
    (found,) = [a for a in figure.axes if a.get_title() == title or a.get_title("left") == title]
    return found


def test_a_frame_is_the_recordings_own_samples_where_the_rates_agree(small_store: Store) -> None:
    recording = small_store.recording(0)
    assert recording.rate == SPEC.rate
    np.testing.assert_array_equal(
        first_frame(recording, SPEC, "V2"), recording.select(["V2"]).signal[0, :2500]
    )
    slow = first_frame(recording, FrameSpec(10.0, 2500), "V2")
    assert slow.size == 2500
    assert np.corrcoef(slow[:1250], recording.select(["V2"]).signal[0, :2500:2])[0, 1] > 0.99
    with pytest.raises(SettingError, match="is shorter than a frame of 11 s"):
        first_frame(recording, FrameSpec(11.0, 2500), "V2")


def test_perturbations_are_drawn_in_one_row_each_as_they_are_computed(small_store: Store) -> None:
    x = first_frame(small_store.recording(0), SPEC, "II")
    figure = show_perturbations(x, SPEC, chains=("flip_x(always=true)", "gaussian>sa_t"))
    titles = ("original", "flip_x", "gaussian > sa_t")
    traces = [np.asarray(panel(figure, title).lines[0].get_ydata()) for title in titles]
    np.testing.assert_array_equal(traces[0], x)
    np.testing.assert_array_equal(traces[1], -x)
    assert np.std(traces[2] - x) > 0.01
    assert [round(y) for y in panel(figure, "original").get_xlim()] == [0, 5]


def test_views_are_framed_as_each_method_takes_them(small_store: Store) -> None:
    manifest = replace(small_store.manifest, frame=SPEC, segment_frame=SPEC)
    figure = show_views(small_store.recording(0), dataset=manifest, leads=("II", "V2", "aVL"))
    for name, letters in (("CMSC", "AB"), ("CMLC", "ABC"), ("CMSMLC", "ABCDEF")):
        axes = panel(figure, name)
        assert sorted(text.get_text() for text in axes.texts) == list(letters)
        frames = [p for p in axes.patches if isinstance(p, Rectangle) and not p.get_fill()]
        assert len(frames) == 6
        solid = [p for p in frames if p.get_linestyle() in ("-", "solid")]
        assert len(solid) == len(letters)
        assert len(axes.lines) == 3


def test_a_recording_too_short_for_the_views_is_refused(small_store: Store) -> None:
    manifest = replace(small_store.manifest, segment_frame=FrameSpec(6.0, 2500))
    with pytest.raises(SettingError, match="shorter than the 12 s"):
        show_views(small_store.recording(0), dataset=manifest, leads=("II", "V2"))


@pytest.mark.parametrize("method", ["cmsc", "cmlc", "cmsmlc"])
def test_similarities_are_marked_by_the_kind_of_their_pair(
    checkpoint: Checkpoint, frames: Frames, method: str
) -> None:
    figure = show_similarity(checkpoint, frames, method=method, batch=10)
    matrix = next(axes for axes in figure.axes if axes.images)
    marked = [p for p in matrix.patches if isinstance(p, Rectangle)]
    places = {(round(p.get_y() + 0.5), round(p.get_x() + 0.5)) for p in marked}
    assert {(i, i) for i in range(10)} <= places
    assert len(places) > 10  # some patients come more than once
    assert {(k, i) for i, k in places} == places
    values = np.array([float(text.get_text()) for text in matrix.texts]).reshape(10, 10) / 100
    assert np.abs(values).max() <= 1
    same = f"same instance (green): mean {values.diagonal().mean():.2f}"[:-1]
    assert same in figure.get_supxlabel()


def test_a_batch_that_cannot_be_drawn_is_refused(checkpoint: Checkpoint, frames: Frames) -> None:
    with pytest.raises(SettingError, match="one view"):
        show_similarity(checkpoint, frames, method="random")
    with pytest.raises(SettingError, match="`batch` is 5000"):
        show_similarity(checkpoint, frames, batch=5000)


def test_a_flat_frame_can_be_drawn(tmp_path: Path) -> None:
    save(show_perturbations(np.zeros(2500), SPEC, chains=("sa_f",)), tmp_path / "flat.png")
    assert (tmp_path / "flat.png").stat().st_size > 0


def test_every_command_writes_its_figure_and_says_where(
    small_store: Store, folder: Path, tmp_path: Path
) -> None:
    path = small_store.path
    png = tmp_path / "new" / "p.png"
    assert str(png) in run("perturbations", path, "--out", png, "--perturb", "gaussian>sa_f")
    assert drawn(png)
    png = tmp_path / "v.png"
    facts = json.loads(run("views", path, "--out", png, "--leads", "II,V1", "--json"))
    assert facts == {
        "file": str(png),
        "recording": small_store.recording(0).id,
        "leads": ["II", "V1"],
    }
    assert drawn(png)
    png = tmp_path / "s.png"
    facts = json.loads(run("similarity", path, "--checkpoint", folder, "--out", png, "--json"))
    leads = ["II", "V2", "aVL", "aVR"]
    assert facts == {"file": str(png), "method": "cmsc", "seed": 0, "leads": leads}
    assert drawn(png)


def test_similarities_use_the_leads_of_the_encoder(small_store: Store, tmp_path: Path) -> None:
    settings = Settings(epochs=1, batch_size=64)
    out = tmp_path / "one"
    clocs.pretrain(small_store, out=out, leads=["V1"], embedding_dim=16, settings=settings)
    png = tmp_path / "s.png"
    given = ("--checkpoint", out, "--out", png, "--json")
    assert json.loads(run("similarity", small_store.path, *given))["leads"] == ["V1"]


def test_a_command_refuses_what_it_cannot_draw(small_store: Store, tmp_path: Path) -> None:
    for arguments, words in (
        (["views", "--out", "views.jpg"], "ends in .png"),
        (["views", "--out", str(tmp_path / "v.png"), "--leads", "X9"], "no lead X9"),
        (["perturbations", "--out", str(tmp_path / "p.png"), "--perturb", "blur"], "choose from"),
        (["perturbations", "--out", str(tmp_path / "p.png"), "--recording", "nobody"], "nobody"),
    ):
        command = ["figure", arguments[0], str(small_store.path), *arguments[1:]]
        error = CliRunner().invoke(Root(), command).exception
        assert isinstance(error, SettingError)
        assert words in str(error)
    assert not list(tmp_path.iterdir())

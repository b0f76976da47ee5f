"""Figures in the size and the font that a journal asks for."""

from __future__ import annotations

import struct
from pathlib import Path

import click
import numpy as np
import pytest
from matplotlib.text import Text

from clocs.cli.main import root_command
from clocs.errors import ClocsWarning, SettingError
from clocs.figures.canvas import hide_frame, new_figure, save
from clocs.figures.ecg_paper import ecg_paper
from clocs.figures.style import FigureStyle
from clocs.recording import Recording

DRAWING = ("show views", "show similarity", "show perturbations", "distances", "explain",
           "evaluate")  # fmt: skip


def pixels(path: Path) -> tuple[int, int]:
    return struct.unpack(">II", path.read_bytes()[16:24])


@pytest.mark.parametrize(
    ("size", "inches"),
    [("89mm", (89 / 25.4, None)), ("3.5in", (3.5, None)), ("89x60mm", (89 / 25.4, 60 / 25.4)),
     ("3.5in x 2.5in", (3.5, 2.5)), ("9 cm × 60 mm", (9 / 2.54, 60 / 25.4))],
)  # fmt: skip
def test_sizes_are_read_as_people_write_them(size: str, inches: tuple[float, float | None]) -> None:
    assert FigureStyle(size).inches() == pytest.approx(inches)


@pytest.mark.parametrize("size", ["", "89", "mm", "1x2x3mm", "-89mm", "1mm", "9999in", "a x b mm"])
def test_other_sizes_are_refused_in_one_sentence(size: str) -> None:
    with pytest.raises(SettingError, match="`size` is"):
        FigureStyle(size)


def test_a_saved_figure_has_the_size_and_the_text_that_were_asked_for(tmp_path: Path) -> None:
    figure = new_figure(6, 3)
    axes = figure.add_subplot()
    hide_frame(axes)
    axes.plot([0, 1], label="line")
    axes.set_xlabel("seconds", size=9)
    axes.set_title("above", size=12)
    axes.legend(fontsize=9)
    save(figure, tmp_path / "one.png", style=FigureStyle("89mm", "DejaVu Serif", 6))
    width, height = pixels(tmp_path / "one.png")
    assert abs(width - 89 / 25.4 * 150) <= 1 and abs(height - width / 2) <= 1
    label = axes.get_xticklabels()[0]
    assert axes.xaxis.label.get_fontsize() == label.get_fontsize() == pytest.approx(6)
    assert axes.title.get_fontsize() == pytest.approx(8)
    legend = axes.get_legend()
    assert legend is not None and legend.get_texts()[0].get_fontsize() == pytest.approx(6)
    assert axes.title.get_fontfamily() == label.get_fontfamily() == ["DejaVu Serif"]


def test_text_that_does_not_fit_is_told(tmp_path: Path) -> None:
    figure = new_figure(6, 3)
    figure.suptitle("a title that is much too long for a figure of so few millimeters")
    with pytest.warns(ClocsWarning, match="give a larger `size` or a smaller `font_size`"):
        save(figure, tmp_path / "one.png", style=FigureStyle("20mm", font_size=9))


def test_a_font_that_is_not_installed_is_refused_with_similar_ones(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"not installed; choose from .*DejaVu Sans"):
        save(new_figure(2, 2), tmp_path / "one.png", style=FigureStyle(font="DejaVu Sanz"))
    with pytest.raises(SettingError, match="`font_size` is 0; give 1 to 72 points"):
        FigureStyle(font_size=0)


@pytest.mark.parametrize("name", DRAWING)
def test_every_command_that_draws_takes_size_and_font(name: str) -> None:
    command = root_command()
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.commands[word]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {"--size", "--font", "--font-size"} <= known


def test_small_paper_has_a_footer_of_two_lines_and_the_squares_that_can_be_seen() -> None:
    recording = Recording(
        id="one", patient="one", leads=("II",), rate=100, digital=np.zeros((1, 1000), np.int16),
        gain=np.ones(1), baseline=np.zeros(1, np.int32), unit="mV",
    )  # fmt: skip
    figure = ecg_paper(recording, note="Orange speaks for AFIB, blue against it. Not a diagnosis.")
    FigureStyle("89mm").apply(figure)
    foot = {one.get_gid(): one for one in figure.findobj(Text) if isinstance(one, Text)}
    scale, note = foot["scale"], foot["note"]
    assert scale.get_text() == "squares: 200 ms and 0.5 mV"
    assert 0 <= note.get_window_extent().y0 < note.get_window_extent().y1
    assert not note.get_window_extent().overlaps(scale.get_window_extent())


def test_titles_that_run_into_each_other_give_a_warning() -> None:
    figure = new_figure(6, 3)
    for axes in figure.subplots(1, 2):
        axes.set_title("half of the width of it", loc="left")
    FigureStyle().apply(figure)
    with pytest.warns(ClocsWarning, match="does not fit"):
        FigureStyle("60mm", font_size=9).apply(figure)

"""Figures as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from clocs.cli.options import FIGURES
from clocs.errors import SettingError
from clocs.figures.canvas import SUFFIXES, new_figure, save

BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_figure_gives_the_same_file_in_every_format(suffix: str, tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        figure = new_figure(2, 1)
        figure.add_subplot().plot([1, 2])
        save(figure, tmp_path / f"{name}{suffix}")
        made.append((tmp_path / f"{name}{suffix}").read_bytes())
    assert made[0].startswith(BEGINNINGS[suffix]) and made[0] == made[1]


def test_other_formats_are_refused_and_the_command_line_knows_all(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"\.png, \.svg, \.pdf"):
        save(new_figure(1, 1), tmp_path / "figure.gif")
    assert FIGURES == SUFFIXES

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

# Machado, Oliveira and Fernandes 2009: what is left of linear RGB without one kind of cone.
PROTAN = [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
]
DEUTAN = [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
]
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def lab(paint: str, sight: NDArray[np.float64]) -> NDArray[np.float64]:
    """A color in CIELAB, as this sight sees it."""
    rgb = np.array([int(paint[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    xyz = np.array(TO_XYZ) @ np.clip(sight @ linear, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("sight", [np.eye(3), np.array(PROTAN), np.array(DEUTAN)])
def test_colors_of_one_shape_differ_for_color_blind_eyes(
    theme: int, sight: NDArray[np.float64]
) -> None:
    css = (files("clocs.web") / "static" / "style.css").read_text(encoding="utf-8")
    for letter in "cd":
        paints = [re.findall(rf"--{letter}{i}: (#\w+)", css)[theme] for i in range(7)]
        seen = {paint: lab(paint, sight) for paint in paints}
        least = min(
            (float(np.linalg.norm(seen[a] - seen[b])), a, b) for a, b in combinations(paints, 2)
        )
        assert least[0] > 11, least

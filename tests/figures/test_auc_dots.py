from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from clocs.errors import SettingError
from clocs.figures.auc_dots import auc_dots
from clocs.figures.canvas import save


def rows() -> list[dict[str, Any]]:
    table = {("cmsc", 0.5): [0.8, 0.84], ("cmsc", 0.25): [0.7, 0.72], ("random", 0.5): [0.6, 0.58]}
    return [
        {
            "method": method,
            "fraction": fraction,
            "auc": auc,
            "auc_mean": float(np.mean(auc)),
            "auc_std": float(np.std(auc, ddof=1)),
        }
        for (method, fraction), auc in table.items()
    ]


def ys(axes: Axes, marker: str, size: float) -> list[float]:
    """Heights of all markers of a size, or ends of all lines without one."""
    chosen = [
        line for line in axes.lines if line.get_marker() == marker and line.get_markersize() == size
    ]
    return sorted(float(y) for line in chosen for y in np.asarray(line.get_ydata()))


def test_means_seeds_intervals_and_chance_are_drawn_where_they_are() -> None:
    axes = auc_dots(rows()).axes[0]
    assert ys(axes, "o", 7) == pytest.approx([0.59, 0.71, 0.82])
    assert ys(axes, "o", 3) == pytest.approx([0.58, 0.6, 0.7, 0.72, 0.8, 0.84])
    assert any(np.allclose(np.asarray(line.get_ydata()), 0.5) for line in axes.lines)
    bars = [line for line in axes.lines if line.get_linewidth() == 2.5]
    sd = rows()[0]["auc_std"]
    assert list(np.asarray(bars[0].get_ydata())) == pytest.approx([0.82 - sd, 0.82 + sd])
    known = [row | {"ci95": [0.55, 0.9]} for row in rows()]
    drawn = auc_dots(known).axes[0]
    bars = [line for line in drawn.lines if line.get_linewidth() == 2.5]
    assert all(list(np.asarray(bar.get_ydata())) == [0.55, 0.9] for bar in bars) and len(bars) == 3
    assert {"0.820", "0.710", "0.590", "chance"} <= {text.get_text() for text in axes.texts}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cmsc", "random"]


def test_one_seed_without_a_spread_and_a_missing_auc_are_drawn_as_such(tmp_path: Path) -> None:
    nan = float("nan")
    one = {"method": "cmsc", "fraction": 1.0, "auc": [0.9], "auc_mean": 0.9, "auc_std": nan}
    none = {"method": "byol", "fraction": 1.0, "auc": [nan], "auc_mean": nan, "auc_std": nan}
    figure = auc_dots([one, none])
    assert {"0.900", "n/a"} <= {text.get_text() for text in figure.axes[0].texts}
    save(figure, tmp_path / "auc.png")


def test_no_aucs_are_refused() -> None:
    with pytest.raises(SettingError, match="no AUCs"):
        auc_dots([])


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "old.png"
    target.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    figure = auc_dots(rows())
    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        save(figure, target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]

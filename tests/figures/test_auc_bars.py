from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from clocs.errors import SettingError
from clocs.figures.auc_bars import auc_bars
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


def test_auc_bars_have_the_means_as_heights_every_seed_as_a_dot_and_the_chance_line() -> None:
    axes = auc_bars(rows()).axes[0]
    heights = [p.get_height() for p in axes.patches if isinstance(p, Rectangle) and p.get_height()]
    assert heights == pytest.approx([0.82, 0.71, 0.59])
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert sorted(y for line in dots for y in np.asarray(line.get_ydata())) == pytest.approx(
        [0.58, 0.6, 0.7, 0.72, 0.8, 0.84]
    )
    assert any(np.allclose(np.asarray(line.get_ydata()), 0.5) for line in axes.lines)
    assert axes.get_ylim() == (0.4, 1.0)
    assert {"0.820", "0.710", "0.590", "chance"} <= {text.get_text() for text in axes.texts}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cmsc", "random"]


def test_one_seed_without_a_spread_and_a_missing_auc_are_drawn_as_such(tmp_path: Path) -> None:
    nan = float("nan")
    one = {"method": "cmsc", "fraction": 1.0, "auc": [0.9], "auc_mean": 0.9, "auc_std": nan}
    none = {"method": "byol", "fraction": 1.0, "auc": [nan], "auc_mean": nan, "auc_std": nan}
    figure = auc_bars([one, none])
    assert {"0.900", "n/a"} <= {text.get_text() for text in figure.axes[0].texts}
    save(figure, tmp_path / "auc.png")


def test_no_aucs_are_refused() -> None:
    with pytest.raises(SettingError, match="no AUCs"):
        auc_bars([])


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "old.png"
    target.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    figure = auc_bars(rows())
    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        save(figure, target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]

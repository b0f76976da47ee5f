"""Progress bars as a terminal of 80 columns shows them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from clocs.cli.console import training
from clocs.training.loop import Epoch


@pytest.mark.parametrize("width", [80, 120])
def test_bar_loss_and_time_left_fit_into_a_terminal(width: int) -> None:
    page = io.StringIO()
    console = Console(file=page, force_terminal=True, width=width, color_system=None)
    with training("Pre-training", 400, console) as bar:
        bar["on_epoch"](Epoch(123, 1.0, 1_234_567, [5.0], {"loss": [12.3456]}, [True]))
    line = page.getvalue().split("\x1b[2K")[-1].split("\n")[0]  # as it was drawn last
    assert len(line) == width
    assert "123/400 epochs" in line and "loss 12.346" in line
    assert line.count("━") >= 8  # about 30 % of the bar
    assert line.endswith("-:--:--")  # nothing to estimate from yet

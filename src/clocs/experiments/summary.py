"""Words: what a grid would take and how it went, in plain lines for any terminal."""

from __future__ import annotations

from clocs.experiments.reproduce import Price
from clocs.experiments.runner import Outcome


def duration(seconds: float) -> str:
    """'45 s', '12 min', '3.5 h'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def price_lines(price: Price) -> list[str]:
    """One line a unit, then the sums."""
    lines = []
    for unit in price.units:
        what = unit.name if unit.kind == "pretrain" else f"{unit.name}: {unit.encoders} encoders"
        time = duration(unit.seconds) if unit.state in ("to do", "done") else "–"
        lines.append(f"{unit.kind:<9}{what:<64}{time:>8}  {unit.state}")
    waiting = [unit for unit in price.units if unit.state == "to do"]
    trainings = sum(unit.kind == "pretrain" for unit in waiting)
    basis = "rates measured in this folder" if price.measured else "assumed rates and epochs"
    lines += [
        "",
        f"{price.cells:,} numbers: {price.cells_done:,} done, "
        f"{price.cells - price.cells_done - price.cells_unavailable:,} to do, "
        f"{price.cells_unavailable:,} need data that is not there",
        f"{trainings} pre-trainings and {len(waiting) - trainings} fleets of evaluations to do: "
        f"about {duration(price.seconds)} on {price.device} ({basis})",
    ]
    return lines


def outcome_words(outcome: Outcome) -> str:
    """How a grid stands, in one sentence."""
    parts = [f"{outcome.done:,} numbers done"]
    if outcome.failed:
        parts.append(f"{outcome.failed:,} failed (--retry tries them again)")
    if outcome.unavailable:
        parts.append(f"{outcome.unavailable:,} need data that is not there")
    if outcome.left:
        parts.append(f"{outcome.left:,} left: the same command goes on")
    return f"{', '.join(parts)}; {duration(outcome.seconds)}"

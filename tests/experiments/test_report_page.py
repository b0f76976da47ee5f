"""The report as a browser shows it, and its figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from accessibility import violations
from clocs.experiments import report_figures
from clocs.experiments.exports import open_results
from clocs.experiments.grid import grid
from clocs.experiments.report import report
from clocs.experiments.runner import run_name

from .test_report import fill


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables 1 and 2 and the distances."""
    made = tmp_path_factory.mktemp("runs")
    names = ("table-1", "table-2", "patient-distances")
    fill(made, [cell for name in names for cell in grid(name)], lambda cell: False)
    report(made)
    return made


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_but_tables_and_figures_scrolls_sideways(
    new_page: Callable[..., Page], folder: Path, width: int, scheme: str
) -> None:
    page = new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto((folder / "report" / "index.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    first = page.locator("h2").first
    expect(first).to_have_text("Findings")
    expect(first).to_be_visible()
    claims = page.locator("#claims ~ .wide").first
    assert claims.evaluate("e => e.scrollWidth <= e.clientWidth")  # stacked where it is narrow
    assert violations(page) == []


def test_what_scrolls_can_be_scrolled_by_keyboard_and_what_does_not_is_no_stop(
    new_page: Callable[..., Page], folder: Path
) -> None:
    page = new_page(viewport={"width": 390, "height": 844})
    page.goto((folder / "report" / "index.html").as_uri())
    agree = """areas => areas.length > 5 && areas.every(
      area => area.hasAttribute("tabindex") === area.scrollWidth > area.clientWidth
        && area.getAttribute("aria-label").length > 3)"""
    page.wait_for_function(f"({agree})([...document.querySelectorAll('main > .wide')])")
    table = page.locator("#table-1 ~ .wide").first
    table.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.activeElement.scrollLeft > 0")
    page.set_viewport_size({"width": 1280, "height": 800})
    page.wait_for_function(f"({agree})([...document.querySelectorAll('main > .wide')])")
    expect(table).not_to_have_attribute("tabindex", "0")


def test_all_columns_of_table_2_fit_a_usual_screen(
    new_page: Callable[..., Page], folder: Path
) -> None:
    page = new_page(viewport={"width": 1280, "height": 900})
    page.goto((folder / "report" / "index.html").as_uri())
    table = page.locator("#table-2 ~ .wide").first
    assert table.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_the_panels_of_distances_share_their_axes(folder: Path) -> None:
    """One encoder's distances are ten times another's, in bins ten times as wide."""
    results = open_results(folder)
    cells = grid("patient-distances")
    name = run_name(cells[1], 5)
    result = (results.result(cells[1]) or {}) | {"edges": [0.0, 10.0, 20.0]}
    wider = replace(results.runs[name], result=result)
    figure = report_figures.distances(replace(results, runs={**results.runs, name: wider}), cells)
    assert figure is not None
    labels = re.findall(r"<text[^>]*>([\d.]+)</text>", figure.svg)
    assert labels.count("20") == labels.count("15") == len(cells)  # the same x axis everywhere
    tops = [
        min(float(point.split(",")[1]) for point in ring.split())
        for ring in re.findall(r'<polygon points="([^"]+)"', figure.svg)
    ]
    assert tops[2] - tops[0] > 50  # its bars are a tenth as high, not stretched to the top

"""The report as a browser shows it, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from accessibility import violations
from clocs.experiments.grid import grid
from clocs.experiments.report import report

from .test_report import fill


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables 1 and 2 and the distances."""
    made = tmp_path_factory.mktemp("runs")
    names = ("table-1", "table-2", "patient-distances")
    fill(made, [cell for name in names for cell in grid(name)], lambda cell: False)
    report(made)
    return made


OPENED = "document.querySelectorAll('details.section').forEach(one => { one.open = true; })"


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_but_tables_and_figures_scrolls_sideways(
    new_page: Callable[..., Page], folder: Path, width: int, scheme: str
) -> None:
    page = new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto((folder / "report" / "index.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.locator("#findings li").first).to_be_in_viewport()
    claims = page.locator("#claims .wide").first
    expect(claims).to_be_hidden()  # all but the findings is folded
    page.goto((folder / "report" / "index.html").as_uri() + "#claims")
    expect(claims).to_be_visible()
    page.evaluate(OPENED)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert claims.evaluate("e => e.scrollWidth <= e.clientWidth")  # stacked where it is narrow
    assert violations(page) == []


def test_what_scrolls_can_be_scrolled_by_keyboard_and_what_does_not_is_no_stop(
    new_page: Callable[..., Page], folder: Path
) -> None:
    page = new_page(viewport={"width": 390, "height": 844})
    page.goto((folder / "report" / "index.html").as_uri())
    page.evaluate(OPENED)
    agree = """areas => areas.length > 5 && areas.every(
      area => area.hasAttribute("tabindex") === area.scrollWidth > area.clientWidth
        && area.getAttribute("aria-label").length > 3)"""
    page.wait_for_function(f"({agree})([...document.querySelectorAll('main > details > .wide')])")
    table = page.locator("#table-1 .wide").first
    table.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.activeElement.scrollLeft > 0")
    page.set_viewport_size({"width": 1280, "height": 800})
    page.wait_for_function(f"({agree})([...document.querySelectorAll('main > details > .wide')])")
    expect(table).not_to_have_attribute("tabindex", "0")


def test_all_columns_of_table_2_fit_a_usual_screen(
    new_page: Callable[..., Page], folder: Path
) -> None:
    page = new_page(viewport={"width": 1280, "height": 900})
    page.goto((folder / "report" / "index.html").as_uri())
    page.evaluate(OPENED)
    table = page.locator("#table-2 .wide").first
    assert table.evaluate("e => e.scrollWidth <= e.clientWidth")

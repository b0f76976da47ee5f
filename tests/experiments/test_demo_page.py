"""The page that `clocs demo` leaves, as a browser shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from accessibility import violations
from clocs.experiments import demo


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    short = {"epochs": 2, "batch_size": 64}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "PRETRAINING", short)
        patch.setattr(demo, "EVALUATION", short)
        folder = tmp_path_factory.mktemp("page") / "demo"
        demo.run_demo(folder, patients=40)
    # alone elsewhere, as someone may pass it on
    alone = tmp_path_factory.mktemp("alone") / "index.html"
    alone.write_bytes((folder / "index.html").read_bytes())
    return alone


@pytest.fixture
def page(new_page: Callable[..., Page], index: Path) -> Iterator[Page]:
    """The page, opened; whatever it asks for or complains about fails the test."""
    opened = new_page(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    complaints: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(index.as_uri(), wait_until="networkidle")
    yield opened
    opened.context.close()
    assert complaints == []
    assert asked[0] == index.as_uri()
    assert [url[:60] for url in asked[1:] if not url.startswith("data:")] == []


def test_the_headline_and_every_score_are_there(page: Page) -> None:
    assert page.title() == "clocs: the demo"
    assert page.locator("h1").inner_text() == "Learning from ECGs without labels"
    assert "40 simulated patients, 80 recordings" in page.locator("p.lead").inner_text()
    rows = page.locator("tbody tr")
    assert [rows.nth(i).locator("td").first.inner_text() for i in range(rows.count())] == [
        "random", "random-bn", "cmsc",
    ]  # fmt: skip
    for i in range(3):
        for j in (1, 2):
            cell = rows.nth(i).locator("td").nth(j).inner_text()
            score, spread = cell.split("\n")[0].split(" ± ")
            assert 0 <= float(score) <= 1
            assert 0 <= float(spread) <= 1


def test_every_picture_is_drawn_and_has_a_text_alternative(page: Page) -> None:
    pictures = page.locator("img")
    assert pictures.count() == 6
    for i in range(6):
        picture = pictures.nth(i)
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 300
        assert picture.get_attribute("alt")
        box = picture.bounding_box()
        assert box is not None
        assert box["width"] > 300


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_nothing_is_cut_off_on_a_narrow_screen(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function("width => innerWidth === width", arg=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_light_and_dark_mode(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    asked = f"(prefers-color-scheme: {scheme})"
    page.wait_for_function("asked => matchMedia(asked).matches", arg=asked)
    ink, paper = page.evaluate(
        "() => { const s = getComputedStyle(document.body); "
        "return [s.color, s.backgroundColor].map(c => c.match(/\\d+/g).slice(0, 3).map(Number)) }"
    )
    assert (sum(ink) < sum(paper)) == (scheme == "light")
    assert contrast(ink, paper) > 7  # WCAG's AAA
    white = page.locator("figure img").first.evaluate("i => getComputedStyle(i).filter === 'none'")
    assert white == (scheme == "light")  # drawn on white paper, which is darkened here
    assert violations(page) == []


def test_the_page_leads_to_the_explorer(page: Page) -> None:
    page.get_by_role("link", name="explorer").click()
    page.wait_for_function("location.hash === '#explorer'")
    shown = page.locator("#explorer ~ pre").first.inner_text()
    assert shown.startswith("clocs explore ") and "--checkpoint" in shown


def contrast(one: list[int], other: list[int]) -> float:
    def luminance(color: list[int]) -> float:
        parts = [c / 255 for c in color]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)

"""What `clocs demo` leaves, and its page as a browser shows it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from accessibility import violations
from clocs.cli.tables import demo_table
from clocs.experiments import demo
from clocs.experiments.demo import DEMO, PATIENTS, encoder_folder, finished_demo, store_folder
from clocs.explorer.open import open_session
from clocs.pretraining.pretrain import pretrain
from clocs.store.store import Store


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[demo.Demo]:
    short = {"epochs": 2, "batch_size": 64}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "PRETRAINING", short)
        patch.setattr(demo, "EVALUATION", short)
        yield demo.run_demo(tmp_path_factory.mktemp("page") / "demo", patients=40)


@pytest.fixture(scope="module")
def index(first: demo.Demo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Alone elsewhere, as someone may pass it on."""
    alone = tmp_path_factory.mktemp("alone") / "index.html"
    alone.write_bytes(first.page.read_bytes())
    return alone


def test_the_demo_shows_every_encoder_and_a_second_run_reuses_them(first: demo.Demo) -> None:
    folder, page = first.folder, first.page.read_text(encoding="utf-8")
    for method in ("random", "random-bn", "cmsc"):
        assert f"<td>{method}</td>" in page
    assert page.count("data:image/png;base64,") == 6  # four rhythms, the bars, the distances
    assert "://" not in page  # nothing is fetched from outside
    for name in ("auc.png", "distances.png", "ecg-AFIB.png"):
        assert (folder / name).stat().st_size > 10_000
        assert (folder / name).stat().st_mode == first.page.stat().st_mode
    weights = folder / "encoders-40" / "cmsc" / "seed-0.safetensors"
    before = weights.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_write_page", lambda *of: None)  # drawn once: it takes longest
        second = demo.run_demo(folder, patients=40)
    assert [e.auc for e in second.evaluations] == [e.auc for e in first.evaluations]
    assert weights.read_bytes() == before
    assert len(demo_table(second).rows) == 3
    assert set(second.json()) >= {"evaluations", "separability", "page"}
    assert f"clocs explore {folder / 'store-40'}" in second.explore and second.explore in page


@pytest.fixture
def page(new_page: Callable[..., Page], index: Path) -> Iterator[Page]:
    """The page, opened; whatever it asks for or complains about fails the test."""
    opened = new_page(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    complaints: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(index.as_uri(), wait_until="load")
    yield opened
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
            score, spread = cell.split("\n")[0].split(" ±\xa0")
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


def test_nothing_is_cut_off_on_a_narrow_screen(page: Page) -> None:
    for width in (390, 820, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("width => innerWidth === width", arg=width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_text_has_contrast_in_light_and_dark_mode(page: Page) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        asked = f"(prefers-color-scheme: {scheme})"
        page.wait_for_function("asked => matchMedia(asked).matches", arg=asked)
        ink, paper = page.evaluate(
            "() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
            ".map(c => c.match(/\\d+/g).slice(0, 3).map(Number)) }"
        )
        assert (sum(ink) < sum(paper)) == (scheme == "light")
        assert contrast(ink, paper) > 7  # WCAG's AAA
        picture = page.locator("figure img").first
        white = picture.evaluate("i => getComputedStyle(i).filter === 'none'")
        assert white == (scheme == "light")  # drawn on white paper, which is darkened here
        assert violations(page) == []


def test_the_page_leads_to_the_explorer(page: Page) -> None:
    page.get_by_role("link", name="explorer").click()
    page.wait_for_function("location.hash === '#explorer'")
    shown = page.locator("#explorer ~ pre").first.inner_text()
    assert shown.startswith("clocs explore ") and "--checkpoint" in shown


def test_the_explorer_opens_the_demo_that_is_here_and_makes_no_other(
    small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert finished_demo(DEMO) is None
    pretrain(
        small_store,
        method="random",
        out=encoder_folder(DEMO, PATIENTS, "cmsc"),
        embedding_dim=16,
    )
    shutil.copytree(small_store.path, store_folder(DEMO, PATIENTS))
    session = open_session(cache=tmp_path / "cache")
    assert session.title == "Demo with simulated ECGs"
    assert len(session.embeddings) == small_store.table["patient"].n_unique()
    assert not (tmp_path / "cache" / "demo").exists()


def contrast(one: list[int], other: list[int]) -> float:
    def luminance(color: list[int]) -> float:
        parts = [c / 255 for c in color]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)

"""The page in headless Chromium."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from clocs import Store
from clocs.explorer.run import opening_file
from explorer.conftest import Served
from upload_files import wfdb_files

# How many pixels of a canvas differ from its most common color, and how many colors it has.
INK = """canvas => {
  const copy = document.createElement("canvas");
  copy.width = canvas.width; copy.height = canvas.height;
  const pen = copy.getContext("2d");
  pen.drawImage(canvas, 0, 0);
  const data = new Uint32Array(pen.getImageData(0, 0, copy.width, copy.height).data.buffer);
  const counts = new Map();
  for (const v of data) counts.set(v, (counts.get(v) ?? 0) + 1);
  return {ink: data.length - Math.max(...counts.values()), colors: counts.size};
}"""
# The same for the map, drawn now: a WebGL buffer is gone after its frame.
MAP_INK = """() => {
  const { scatter } = clocs.map;
  scatter.draw();
  const copy = document.createElement("canvas");
  copy.width = scatter.canvas.width; copy.height = scatter.canvas.height;
  const pen = copy.getContext("2d");
  pen.drawImage(scatter.canvas, 0, 0);
  const { data } = pen.getImageData(0, 0, copy.width, copy.height);
  return data.filter((v, i) => i % 4 === 3 && v).length;
}"""


def settle(page: Page) -> None:
    """Wait until pending changes are drawn, which happens in the next frame."""
    page.evaluate("() => new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))")


def choose(page: Page, row: int) -> None:
    """Click a patient's point, once the map has its size."""
    settle(page)
    at: Any = page.evaluate(
        "row => { const s = clocs.map.scatter; "
        "return s.toScreen(s.places[2 * row], s.places[2 * row + 1]); }",
        row,
    )
    page.locator("#map").click(position={"x": at[0], "y": at[1]})
    page.wait_for_selector("#ecg[data-drawn=yes]")


def ink(canvas: Locator) -> int:
    return int(canvas.evaluate(INK)["ink"])


def expect_in_url(page: Page, words: str) -> None:
    """The address bar holds these words, now or soon: the page writes it, the browser tells it."""
    expect(page).to_have_url(re.compile(re.escape(words)))


def expect_drawn_anew(page: Page, before: str) -> str:
    """Wait until the paper has another picture than before, and return it."""
    page.wait_for_function(
        "before => document.getElementById('ecg').toDataURL() !== before", arg=before
    )
    return str(page.locator("#ecg").evaluate("c => c.toDataURL()"))


def expect_compared(page: Page) -> None:
    """Wait until both ECGs are drawn."""
    expect(page.locator("canvas.side[data-drawn=yes]")).to_have_count(2)


def test_the_map_is_drawn_and_filtered_by_its_legend(page: Page, served: Served) -> None:
    all_ink = page.evaluate(MAP_INK)
    assert all_ink > 40 * 10
    first = page.locator("#legend button").first
    name, count = first.get_attribute("data-value"), int(first.locator("small").inner_text())
    first.click()
    expect(first).to_have_attribute("aria-pressed", "false")
    shown = "count => clocs.look.filter((v, i) => i % 4 === 3 && v < 8).length === count"
    page.wait_for_function(shown, arg=len(served.session.embeddings) - count)
    expect_in_url(page, f"hide=labels%3A{name}")
    page.click("#clear-filter")
    page.wait_for_function(shown, arg=len(served.session.embeddings))
    expect(page.locator("#color-by [data-value=split]")).to_have_count(0)  # test_pseudonyms.py
    for field in ("age", "sex"):
        page.click(f"#color-by [data-value={field}]")
        expect_in_url(page, f"color={field}")
        assert page.evaluate(MAP_INK) > 40 * 10


def test_with_ids_the_split_is_shown_and_the_list_is_sorted_by_id(
    new_page: Callable[..., Page], served: Served
) -> None:
    served.session.show_ids = True
    try:
        page = new_page()
        page.goto(served.url)
        page.wait_for_selector("html[data-ready=all]")
        page.click("#color-by [data-value=split]")
        expect(page.locator("#legend button").first).to_have_attribute("data-value", "train")
        page.click("#list-box summary")
        names = page.locator("#list button span:first-child")
        expect(names).to_have_text(sorted(served.session.embeddings.rows["patient"]))
    finally:
        served.session.show_ids = False


def test_hovering_shows_the_patient_and_a_click_the_ecg_and_the_neighbors(
    page: Page, served: Served
) -> None:
    settle(page)
    at = page.evaluate("clocs.map.scatter.toScreen(...clocs.columns.positions.slice(0, 2))")
    page.locator("#map").hover(position={"x": at[0], "y": at[1]})
    expect(page.locator("#tip")).to_be_visible()
    expect(page.locator("#tip")).to_contain_text("Patient ")
    choose(page, 4)
    code = page.evaluate("clocs.state.patient")
    row = served.session.row(code)
    labels = served.session.embeddings.rows["labels"][row].to_list()
    expect(page.locator("#detail .who")).to_contain_text(labels[0])
    assert ink(page.locator("#ecg")) > 5000
    expect(page.locator("#neighbors li")).to_have_count(10)
    page.wait_for_selector("#neighbors li:last-child canvas[data-drawn=yes]")
    assert ink(page.locator("#neighbors canvas").first) > 100
    expected = served.session.neighbors(code)["neighbors"]
    listed = page.locator("#neighbors .open").evaluate_all("all => all.map(b => b.dataset.code)")
    assert listed == [n["code"] for n in expected]


def test_a_patient_is_printed_on_one_page_without_controls(page: Page) -> None:
    choose(page, 4)
    expect(page.locator(".measures dt").first).to_be_visible()
    printed = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    page.emulate_media(media="print")
    try:
        for shown in ("#ecg", ".who h2", ".measures"):
            expect(page.locator(shown)).to_be_visible()
        for hidden in ("#map-panel", ".paper-tools", "#neighbors", "#detail select"):
            assert page.locator(hidden).locator("visible=true").count() == 0, hidden
    finally:
        page.emulate_media(media="screen")


def test_layouts_zoom_and_pan_change_the_paper(page: Page) -> None:
    choose(page, 1)
    clinical = expect_drawn_anew(page, "")
    page.click("#detail [data-value=stacked]")
    stacked = expect_drawn_anew(page, clinical)
    expect_in_url(page, "layout=stacked")
    page.locator("#ecg").focus()
    page.keyboard.press("+")
    larger = expect_drawn_anew(page, stacked)
    page.keyboard.press("ArrowRight")
    expect_drawn_anew(page, larger)
    expect(page.locator(".scale")).to_contain_text("10 mm/mV")


def test_true_size_is_ten_millimeters_per_millivolt_and_no_canvas_is_scaled(page: Page) -> None:
    choose(page, 1)
    # a canvas scaled by the browser, even by half a pixel, is blurred
    shown = page.locator("#ecg").evaluate(
        "c => { const box = c.getBoundingClientRect(), r = devicePixelRatio; "
        "return [box.width * r - c.width, box.height * r - c.height]; }"
    )
    assert shown == pytest.approx([0, 0], abs=1e-3)
    page.click("#detail [data-value=stacked]")
    page.get_by_role("button", name="1:1").click()
    page.wait_for_function(
        "() => /mV *actual size/.test(document.querySelector('.scale').textContent)"
    )
    settle(page)
    # A calibration pulse is 10 mm high: find the longest dark vertical run in its columns.
    run = page.locator("#ecg").evaluate(
        """canvas => {
          const pen = canvas.getContext("2d"), ratio = devicePixelRatio, mm = 96 / 25.4 * ratio;
          const x = Math.round(5 * mm), width = 3;
          let best = 0;
          for (let dx = -width; dx <= width; dx++) {
            const column = pen.getImageData(x + dx, 0, 1, canvas.height).data;
            let length = 0;
            for (let y = 0; y < canvas.height; y++) {
              length = column[4 * y] < 140 ? length + 1 : 0;
              best = Math.max(best, length);
            }
          }
          return best / mm;
        }"""
    )
    assert run == pytest.approx(10, abs=0.5)


def test_a_neighbor_is_compared_side_by_side_and_escape_goes_back(page: Page) -> None:
    choose(page, 7)
    other = page.locator("#neighbors .open").first.get_attribute("data-code")
    page.locator("#neighbors .open").first.click()
    expect_compared(page)
    expect_in_url(page, f"with={other}")
    sides = page.locator("canvas.side")
    assert all(ink(sides.nth(i)) > 5000 for i in (0, 1))
    boxes = [sides.nth(i).bounding_box() for i in (0, 1)]
    assert boxes[0] is not None and boxes[1] is not None
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["height"] == boxes[1]["height"]
    expect(page.locator("#compare")).to_contain_text("Distance")
    page.keyboard.press("Escape")
    expect(page.locator("#compare")).to_be_hidden()
    expect(page.locator("#neighbors li")).to_have_count(10)


def test_a_lasso_counts_a_group(page: Page) -> None:
    page.click("#lasso")
    box = page.locator("#map").bounding_box()
    assert box is not None
    corners = [(0.02, 0.02), (0.98, 0.02), (0.98, 0.98), (0.02, 0.98)]
    places = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in corners]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=5)
    page.mouse.up()
    expect(page.locator("#detail h2")).to_have_text("40 patients")
    counts = page.locator("table.counts").first.locator("tbody tr td:nth-child(2)")
    assert sum(int(text) for text in counts.all_inner_texts()) == 40
    expect_in_url(page, "lasso=")
    page.goto(page.url)
    page.wait_for_selector("html[data-ready=all]")
    expect(page.locator("#detail h2")).to_have_text("40 patients")


def test_everything_can_be_done_by_keyboard(page: Page) -> None:
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type(page.evaluate("clocs.codeOf(9)")[:6])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    chosen = page.evaluate("clocs.codeOf(9)")
    page.wait_for_function("code => clocs.state.patient === code", arg=chosen)
    page.wait_for_selector("#ecg[data-drawn=yes]")
    expect(page.locator("#neighbors .open")).to_have_count(10)
    page.keyboard.press("n")
    page.keyboard.press("ArrowDown")
    second = page.locator("#neighbors .open").nth(1).get_attribute("data-code")
    expect(page.locator("#neighbors .open").nth(1)).to_be_focused()
    page.keyboard.press("g")
    expect(page.locator("#detail h2")).to_have_text(f"Patient {second}")  # not the one before
    page.wait_for_selector("#ecg[data-drawn=yes]")
    expect(page.locator("#neighbors .open").first).to_be_focused()
    page.keyboard.press("n")
    page.keyboard.press("Enter")
    expect_compared(page)
    page.keyboard.press("Escape")
    expect(page.locator("#compare")).to_be_hidden()
    page.keyboard.press("Escape")
    page.wait_for_function("() => clocs.state.patient === null")
    page.keyboard.press("m")
    expect(page.locator("#map")).to_be_focused()
    before = page.evaluate("clocs.map.scatter.center")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("+")
    moved = "before => clocs.map.scatter.center.some((v, i) => v !== before[i])"
    page.wait_for_function(moved, arg=before)


def test_a_shared_link_restores_the_view(page: Page, guarded: Served) -> None:
    choose(page, 11)
    page.click("#color-by [data-value=sex]")
    page.locator("#legend button").first.click()
    page.locator("#neighbors .open").nth(2).click()
    expect_compared(page)
    expect_in_url(page, "with=")
    before = page.evaluate(
        "[clocs.state.patient, clocs.state.other, clocs.state.color, clocs.shown]"
    )
    patient = guarded.session.embeddings.rows["patient"][11]
    assert patient not in page.url.partition("?")[2]
    page.goto(page.url)
    expect_compared(page)
    after = page.evaluate(
        "[clocs.state.patient, clocs.state.other, clocs.state.color, clocs.shown]"
    )
    assert before == after
    page.go_back()
    page.goto(f"{guarded.url}/?patient=0000000000&color=nothing&lasso=x&recording=-5&with=..")
    expect(page.locator("#detail .error")).to_contain_text("no patient")


def test_the_token_leaves_the_address_and_links_work_without_it(
    page: Page, guarded: Served, served: Served, tmp_path: Path
) -> None:
    expect(page).to_have_url(f"{guarded.url}/")
    page.reload()
    page.wait_for_selector("html[data-ready=all]")
    assert page.evaluate("document.cookie") == ""  # scripts cannot read it
    page.evaluate("navigator.clipboard.writeText = text => { clocs.copied = text; }")
    choose(page, 2)
    page.click("#copy-link")
    copied = page.wait_for_function("() => clocs.copied").json_value()
    assert "patient=" in copied and "token" not in copied
    # From another site, whose links browsers follow without the cookie.
    other = page.context.new_page()
    other.goto(served.url.replace("127.0.0.1", "localhost"))
    other.evaluate("address => { location = address; }", copied)
    other.wait_for_selector("#ecg[data-drawn=yes]")
    expect(other).to_have_url(copied)


def test_the_file_that_the_browser_is_started_with_leads_to_the_page(
    new_page: Callable[..., Page], guarded: Served
) -> None:
    with opening_file(guarded.address) as file:
        assert file.stat().st_mode & 0o077 == 0 or file.parent.stat().st_mode & 0o077 == 0
        page = new_page()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready=all]")
        expect(page).to_have_url(f"{guarded.url}/")
    stranger = new_page()  # without the token, and without a loop
    stranger.goto(served_link := f"{guarded.url}/?patient=0123456789")
    expect(stranger.locator("body")).to_contain_text("requires a token")
    expect(stranger).to_have_url(served_link)


def test_a_bad_file_is_refused_and_a_good_one_is_shown(
    page: Page, small_store: Store, tmp_path: Path
) -> None:
    for name, data in wfdb_files(small_store.recording(2)).items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "letter.txt").write_text("Dear colleague", encoding="utf-8")
    page.keyboard.press("u")
    page.set_input_files("#files", tmp_path / "letter.txt")
    expect(page.locator("#upload-error")).to_be_visible()
    expect(page.locator("#upload-error")).to_contain_text("Cannot read letter.txt as a recording")
    page.set_input_files("#files", [tmp_path / "own.hea", tmp_path / "own.dat"])
    page.wait_for_selector("#ecg[data-drawn=yes]")
    expect(page.locator("#upload")).to_be_hidden()
    assert ink(page.locator("#ecg")) > 5000
    expect(page.locator("#neighbors li")).to_have_count(10)
    page.wait_for_function("() => clocs.map.visitor?.every(Number.isFinite)")
    expect_in_url(page, "upload=")
    page.goto(page.url)
    page.wait_for_selector("#ecg[data-drawn=yes]")
    page.locator("#neighbors .open").first.click()
    expect_compared(page)


def test_map_ecg_and_neighbors_can_be_saved(page: Page) -> None:
    with page.expect_download() as saved:
        page.click("#map-png")
    assert saved.value.suggested_filename == "map.png"
    assert saved.value.path().read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    choose(page, 3)
    with page.expect_download() as saved:
        page.locator("#detail").get_by_role("button", name="PNG").click()
    assert saved.value.path().stat().st_size > 10_000
    with page.expect_download() as saved:
        page.get_by_role("link", name="CSV").click()
    lines = saved.value.path().read_text(encoding="utf-8").splitlines()
    assert len(lines) == 11 and lines[0].startswith("rank,code,name")


def test_the_report_is_shown_in_a_sandbox(page: Page) -> None:
    page.click("#tabs [data-tab=results]")
    frame = page.frame_locator("#report-frame")
    expect(frame.locator("h1")).to_have_text("Results of a run")
    assert page.evaluate("document.getElementById('report-frame').contentDocument") is None
    page.keyboard.press("Escape")
    expect(page.locator("#explore")).to_be_visible()


@pytest.mark.parametrize(("size", "theme"), [((1280, 800), "light"), ((800, 1100), "dark")])
def test_nothing_overflows_on_a_laptop_or_a_tablet(
    new_page: Callable[..., Page], served: Served, size: tuple[int, int], theme: str
) -> None:
    page = new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    page.goto(f"{served.url}/?patient={served.session.codes[5]}")
    page.wait_for_selector("#ecg[data-drawn=yes]")
    page.wait_for_selector("html[data-ready=all]")
    expect(page.locator("html")).to_have_attribute("data-theme", theme)
    settle(page)  # a canvas is drawn anew where its box has another width
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    for selector in ("#detail", "#map-panel", "header"):
        wide = page.locator(selector).evaluate("e => e.scrollWidth - e.clientWidth")
        assert wide <= 0, selector

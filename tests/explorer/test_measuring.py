"""Measuring ECGs on the page, in headless Chromium, on a laptop and on a phone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import clocs
from accessibility import violations
from explorer.conftest import Served
from explorer.test_page import expect_compared, expect_in_url, settle

LAPTOP, PHONE = (1280, 800), (390, 844)
# Texts drawn on any canvas from now on that reach beyond its right edge.
WATCH_TEXT = """() => {
  const draw = CanvasRenderingContext2D.prototype.fillText;
  clocs.clipped = [];
  CanvasRenderingContext2D.prototype.fillText = function (text, x, ...rest) {
    const right = (x + this.measureText(text).width) * this.getTransform().a;
    if (right > this.canvas.width) clocs.clipped.push(text);
    draw.call(this, text, x, ...rest);
  };
}"""
# Where a lead is on the paper: [left, baseline, pixels per second, pixels per mV].
PLACE = """([selector, lead]) => {
  const view = selector === "#ecg" ? clocs.detail.view : clocs.comparison.view;
  const viewer = view.viewers.find(({canvas}) => canvas.matches(selector));
  const {x, base, second, tall} = viewer.places.find(place => place.lead === lead);
  return [x, base, second, 10 * tall];
}"""


def opened(new_page: Callable[..., Page], url: str, size: tuple[int, int], **options: Any) -> Page:
    page = new_page(viewport={"width": size[0], "height": size[1]}, **options)
    page.goto(url)
    page.wait_for_selector("html[data-ready=all]")
    return page


def drag(page: Page, lead: str, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drags over a lead; ends in seconds from its left edge, and in mV."""
    settle(page)
    canvas = page.locator("#ecg")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    x, base, second, mv = page.evaluate(PLACE, ["#ecg", lead])
    places = [(box["x"] + x + s * second, box["y"] + base - v * mv) for s, v in (start, end)]
    page.mouse.move(*places[0])
    page.mouse.down()
    page.mouse.move(*places[1], steps=3)
    page.mouse.up()


def point(page: Page, row: int) -> Any:
    """Where a patient is on the map, once it has its size."""
    settle(page)
    x, y = page.evaluate(
        "row => { const s = clocs.map.scatter; "
        "return s.toScreen(s.places[2 * row], s.places[2 * row + 1]); }",
        row,
    )
    return {"x": x, "y": y}


def measured(page: Page) -> tuple[float, float, float]:
    """What the calipers say: ms, bpm, mV."""
    settle(page)
    text = page.locator("#detail output").inner_text()
    found = re.fullmatch(r"V1: (\d+) ms, (\d+) bpm, ([\d.]+) mV", text)
    assert found, text
    return float(found[1]), float(found[2]), float(found[3])


@pytest.mark.parametrize("size", [LAPTOP])
def test_calipers_measure_time_rate_and_amplitude_by_pointer_and_keys(
    new_page: Callable[..., Page], served: Served, size: tuple[int, int]
) -> None:
    page = opened(new_page, f"{served.url}/?patient={served.session.codes[4]}", size)
    page.wait_for_selector("#ecg[data-drawn=yes]")
    expect(page.locator("#detail .rate")).to_contain_text("bpm")
    page.wait_for_selector("#ecg[data-marked]")
    page.get_by_role("button", name="Marks").click()  # else ends snap to them
    page.get_by_role("button", name="Calipers").click()
    reading = page.locator("#detail output")
    expect(reading).to_have_text("")  # nothing is measured yet
    _, _, second, mv = page.evaluate(PLACE, ["#ecg", "V1"])
    drag(page, "V1", (0.5, 0.0), (1.25, 1.0))
    expect(reading).to_contain_text("V1: ")
    ms, bpm, size_mv = measured(page)
    assert ms == pytest.approx(750, abs=2000 / second)  # two pixels
    assert bpm == pytest.approx(60_000 / ms, abs=1)
    assert size_mv == pytest.approx(1, abs=2 / mv)
    page.locator("#ecg").focus()
    for key in ("Shift+ArrowRight", "ArrowRight", "Shift+ArrowUp"):
        page.keyboard.press(key)
    assert measured(page)[::2] == pytest.approx((ms + 44, size_mv + 0.1), abs=1.01)
    page.keyboard.press(" ")  # the other end
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("ArrowUp")
    now = measured(page)
    assert now[0] == pytest.approx(ms + 4, abs=1.01)
    assert now[2] == pytest.approx(size_mv + 0.09, abs=0.011)
    # What has been measured stays the same on other paper.
    page.click("#detail [aria-label='Gain in mm/mV'] [data-value='20']")
    page.click("#detail [aria-label='Speed in mm/s'] [data-value='50']")
    expect(page.locator(".scale")).to_contain_text("50 mm/s, 20 mm/mV")
    assert measured(page) == now
    expect_in_url(page, "gain=20&speed=50")
    page.click("#detail [data-value=beat]")  # an average beat has a time of its own
    expect(reading).to_have_text("")
    page.click("#detail [data-value=stacked]")
    assert measured(page) == now
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert violations(page) == []
    page.locator("#ecg").focus()
    page.keyboard.press("Escape")
    expect(reading).to_be_hidden()
    expect(page.locator("#ecg")).to_be_visible()  # the patient is still open
    page.click("#detail [data-value=beat]")
    expect(page.locator(".scale")).to_contain_text("beats ± standard deviation")
    assert violations(page) == []
    page.reload()
    page.wait_for_selector("#ecg[data-drawn=yes]")
    expect(page.locator(".scale")).to_contain_text("50 mm/s, 20 mm/mV")
    expect(page.locator(".scale")).to_contain_text("beats ± standard deviation")


# Onset, peak and offset of the first QRS complex of V1, in s.
FIRST = "() => clocs.detail.view.viewers[0].marks.V1.qrs[0]"


def test_a_recording_is_marked_and_measured_and_calipers_snap_to_the_marks(
    new_page: Callable[..., Page], served: Served
) -> None:
    code = served.session.codes[4]
    page = opened(new_page, f"{served.url}/?patient={code}&layout=stacked", LAPTOP)
    page.wait_for_selector("#ecg[data-marked]")
    found = clocs.measure(served.session.recording(code, 0))
    own = found.values["qrs"]
    assert own.value is not None
    row = page.locator(".measures div").filter(has=page.get_by_text("QRS", exact=True))
    expect(row.locator("dd")).to_contain_text(f"{own.value:.0f} ms")
    expect(page.locator("#detail .rate")).to_have_text(
        f"{found.values['heart_rate'].value:.0f} bpm"
    )
    onset, _, offset = page.evaluate(FIRST)
    assert (onset, offset) == pytest.approx(tuple(found.waves["V1"].qrs[0][::2]), abs=1e-3)
    page.get_by_role("button", name="Calipers").click()
    expect(page.locator(".hint")).to_contain_text("snap to the marks")
    page.get_by_role("button", name="1:1").click()
    near = 0.3 / page.evaluate(PLACE, ["#ecg", "V1"])[2]  # pixels in s: 3 ms
    drag(page, "V1", (onset - near, 0.1), (offset + near, 0.1))
    settle(page)
    found_ms = re.match(r"V1: (\d+) ms, ", page.locator("#detail output").inner_text())
    assert found_ms  # the page rounds half a millisecond up
    assert float(found_ms[1]) == pytest.approx(1000 * (offset - onset), abs=0.51)
    assert violations(page) == []


def test_a_phone_stays_narrow_and_goes_to_the_ecg_of_the_tapped_patient(
    new_page: Callable[..., Page], served: Served
) -> None:
    page = opened(new_page, served.url, PHONE, has_touch=True)
    page.locator("#map").tap(position=point(page, 4))
    page.wait_for_selector("#ecg[data-drawn=yes]")
    expect(page.locator("#detail")).to_be_focused()
    expect(page.locator("#ecg")).to_be_in_viewport()
    expect(page.locator("#neighbors li")).to_have_count(10)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    assert violations(page) == []
    page.get_by_role("button", name="Close", exact=True).tap()
    expect(page.locator("#map")).to_be_focused()
    expect(page.locator("#map")).to_be_in_viewport()
    page.goto(f"{served.url}/?patient={served.session.codes[4]}")  # a link
    page.wait_for_selector("#ecg[data-drawn=yes]")
    expect(page.locator("#ecg")).to_be_in_viewport()


@pytest.mark.parametrize("size", [PHONE])
def test_any_two_patients_are_compared_and_the_focus_returns(
    new_page: Callable[..., Page], served: Served, size: tuple[int, int]
) -> None:
    codes = served.session.codes
    near = {n["code"] for n in served.session.neighbors(codes[4])["neighbors"]}
    other = next(code for code in codes if code not in near and code != codes[4])
    page = opened(new_page, f"{served.url}/?patient={codes[4]}", size)
    page.wait_for_selector("#ecg[data-drawn=yes]")
    neighbour = page.locator("#neighbors .open").nth(2)
    neighbour.click()
    expect_compared(page)
    page.keyboard.press("Escape")
    expect(neighbour).to_be_focused()
    # By name; a wrong one is refused.
    button = page.get_by_role("button", name="Compare with")
    button.click()
    page.keyboard.type("nobody")
    page.keyboard.press("Enter")
    expect(page.locator(".pick .error")).to_contain_text("There is no patient nobody")
    assert violations(page) == []
    page.get_by_label("Patient to compare with").fill(f"Patient {other[:9]}")
    page.keyboard.press("Enter")
    expect_compared(page)
    expect_in_url(page, f"with={other}")
    apart = served.session.apart(codes[4], other)["distance"]
    expect(page.locator("#compare .between h2")).to_have_text(f"Distance {apart:.3f}")
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert violations(page) == []
    # Titles of the saved picture are not cut off.
    page.evaluate(WATCH_TEXT)
    with page.expect_download() as saved:
        page.locator("#compare").get_by_role("button", name="PNG").click()
    assert saved.value.suggested_filename == "compare.png"
    assert page.evaluate("clocs.clipped") == []
    page.click("#compare [data-value=overlay]")
    expect(page.locator("#compare canvas[data-drawn=yes]")).to_have_count(1)
    expect(page.locator("#compare .scale")).to_contain_text("first beats aligned")
    expect_in_url(page, "overlay=")
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
    # From the map.
    button.click()
    page.get_by_role("button", name="Pick on the map").click()
    expect(page.locator("#pick-note")).to_be_visible()
    page.locator("#map").click(position=point(page, list(codes).index(other)))
    expect(page.locator("#compare canvas[data-drawn=yes]")).to_have_count(1)
    assert page.evaluate("[clocs.state.patient, clocs.state.other]") == [codes[4], other]
    page.keyboard.press("Escape")
    expect(button).to_be_focused()


def test_two_fingers_zoom_the_ecg(new_page: Callable[..., Page], served: Served) -> None:
    page = opened(new_page, f"{served.url}/?patient={served.session.codes[4]}", PHONE)
    page.wait_for_selector("#ecg[data-drawn=yes]")
    before, after = page.evaluate(
        """() => {
          const canvas = document.getElementById("ecg"), { view } = clocs.detail;
          canvas.setPointerCapture = () => {};
          const send = (kind, id, x) => canvas.dispatchEvent(new PointerEvent(kind, {
            pointerId: id, clientX: x, clientY: 300, pointerType: "touch", bubbles: true }));
          const before = view.real;
          send("pointerdown", 1, 100); send("pointerdown", 2, 200);
          send("pointermove", 2, 300); send("pointerup", 1, 100); send("pointerup", 2, 300);
          return [before, view.real];
        }"""
    )
    assert after == pytest.approx(2 * before, rel=0.01)


# Of two leads below each other, the second with complexes of so many mV and a spike of 40 mV: the
# rows of pixels of the first that are inked where a complex or the spike of the second is.
ABOVE_TALL = """async (mv) => {
  const { drawPaper, heightOf, MM, rowsOf, stripsOf } = await import("/static/paper.js");
  const quiet = new Float32Array(2500), tall = quiet.map((_, i) => (i % 500 === 250 ? mv : 0));
  tall[1100] = 40;
  const signal = { leads: ["I", "II"], unit: "mV", rate: 500, seconds: 5, start: 0, traces: new Map([["I", quiet], ["II", tall]]) };
  const strips = stripsOf(signal.leads, "stacked"), rows = rowsOf([signal], strips, 10);
  const canvas = new OffscreenCanvas(600, Math.ceil(heightOf(rows) * MM)), pen = canvas.getContext("2d");
  const [first, second] = drawPaper(pen, { signal, strips, rows, width: 600, scale: 1, start: 0, gain: 10, speed: 25, seconds: 5 });
  const inked = (time, { x, second: wide, top, bottom }) => {
    const data = pen.getImageData(Math.round(x + time * wide) - 1, Math.ceil(top) + 1, 3, Math.floor(bottom - top) - 2).data;
    let count = 0;
    for (let i = 0; i < data.length; i += 12) if (Math.min(data[i], data[i + 4], data[i + 8]) < 90) count++;
    return count;
  };
  return { first: Math.max(inked(1.5, first), inked(2.2, first)), second: inked(1.5, second) / MM };
}"""  # noqa: E501


def test_tall_complexes_stay_in_their_row(new_page: Callable[..., Page], served: Served) -> None:
    page = opened(new_page, served.address, LAPTOP)
    found = page.evaluate(ABOVE_TALL, 4.8)
    assert found["first"] < 6  # its own line alone
    assert found["second"] > 40  # mm: none of the complex is cut off

"""The question for the unit, in the dialog for uploads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import unhurried
from accessibility import violations
from clocs import Store
from explorer.conftest import Served


@pytest.fixture(scope="module")
def in_millivolts(small_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recording = small_store.recording(0)
    rows = "\n".join(",".join(f"{v:.4f}" for v in row) for row in recording.signal.T)
    file = tmp_path_factory.mktemp("own") / "own.csv"
    file.write_text(f"{','.join(recording.leads)}\n{rows}\n", encoding="utf-8")
    return file


def test_a_csv_in_millivolts_taken_for_microvolts_is_a_question_until_it_is_answered(
    new_page: Callable[..., Page],
    served: Served,
    in_millivolts: Path,
) -> None:
    page = new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page.goto(served.url)
    page.wait_for_selector("html[data-ready=all]")
    page.keyboard.press("u")
    page.select_option("#unit", "µV")
    page.set_input_files("#files", in_millivolts)
    expect(page.locator("#upload-error")).to_contain_text("does not say its sampling rate")
    expect(page.locator("#rate")).to_be_focused()
    page.keyboard.type("500")
    page.keyboard.press("Enter")
    question = page.locator("#unit-question")
    expect(question).to_contain_text("In which unit are its numbers?")
    expect(question).to_contain_text("no ECG is so small")
    expect(question.locator("input[type=radio]").first).to_be_focused()
    expect(question.locator("input:checked")).to_have_count(0)  # nothing is chosen for anyone
    expect(page.locator("#unit-go")).to_be_disabled()
    assert violations(page) == []
    page.fill("#unit-gain", "2000")
    expect(question.locator(".choice").nth(2)).to_contain_text("no ECG is so small")
    expect(page.locator("#unit-go")).to_be_enabled()
    wide = page.locator("#upload").evaluate("e => e.scrollWidth - e.clientWidth")
    assert wide <= 0
    question.locator("[value=mV]").check()
    page.click("#unit-go")
    expect(page.locator("#upload")).to_be_hidden()
    expect(page.locator("#detail .who")).to_contain_text("Your own ECG")
    expect(page.locator("#neighbors li")).to_have_count(10)


def test_the_server_says_what_it_found(served: Served, in_millivolts: Path) -> None:
    listed = [("files", ("own.csv", in_millivolts.read_bytes()))]
    fields = {"rate": "500", "unit": "µV"}
    answer = unhurried.post(f"{served.url}/api/uploads", files=listed, data=fields)
    assert answer.status_code == 422 and "span" in answer.json()["message"]
    assert "rate_question" not in answer.json()
    asked = answer.json()["unit_question"]
    assert asked["name"] == "own" and asked["mv"] < 0.03 < asked["span"] < 10
    without = unhurried.post(f"{served.url}/api/uploads", files=listed)
    assert without.status_code == 422 and without.json()["rate_question"] is True
    refused = unhurried.post(f"{served.url}/api/uploads", files=listed, data={"unit": "steps"})
    assert refused.status_code == 422 and "gain" in refused.json()["message"]

"""The service's pages in headless Chromium."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from clocs import Recording
from service.conftest import Served
from upload_files import wfdb_files


def test_a_dropped_recording_is_drawn_and_predicted_with_its_json(
    served: Served, recordings: list[Recording], new_page: Callable[..., Page], tmp_path: Path
) -> None:
    problems: list[str] = []
    page = new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(served.url)
    page.wait_for_selector("html[data-ready=all]")
    expect(page.locator("#model")).to_have_value("rhythm")  # the classifier, not the encoder
    for name, content in wfdb_files(recordings[0]).items():
        (tmp_path / name).write_bytes(content)
    page.set_input_files("#files", sorted(tmp_path.iterdir()))
    page.wait_for_selector("#ecg[data-drawn=yes]")
    shown = json.loads(page.locator("#json").inner_text())
    assert shown["probabilities"].keys() == {"AF", "N", "O"}
    expect(page.locator(".bars")).to_contain_text("AF")
    expect(page.locator("#result")).to_contain_text(sorted(tmp_path.iterdir())[0].name)
    page.select_option("#model", "plain")
    expect(page.locator("#json")).to_contain_text("embedding")
    (tmp_path / "empty.csv").write_text("")
    page.set_input_files("#files", tmp_path / "empty.csv")
    expect(page.locator("#problem")).to_be_visible()
    expect(page.locator("#ecg")).to_have_count(0)  # nor the prediction of the file before
    expect(page.locator("#result")).to_have_text("No ECG is shown.")
    assert not problems


def test_the_example_needs_no_file_and_the_api_is_described_offline(
    served: Served, new_page: Callable[..., Page]
) -> None:
    page = new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(served.url)
    page.wait_for_selector("html[data-ready=all]")
    page.click("#example")
    page.wait_for_selector("#ecg[data-drawn=yes]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(f"{served.url}/docs")
    page.wait_for_selector("html[data-ready=all]")
    expect(page.locator("#docs")).to_contain_text("/models/{name}/prediction")
    assert all(url.startswith(served.url) for url in asked)

"""The tabs beside the map: quality, training, results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from playwright.sync_api import Page, expect

import unhurried
from accessibility import violations
from clocs import Store
from clocs.explorer.open import find_report, report_beside
from clocs.explorer.quality import parts_of
from clocs.explorer.session import Session
from clocs.explorer.training_runs import log_lines, run_folders
from clocs.measurements.quality import clipped_stretches
from clocs.models.measure import kept_measurements
from clocs.recording import Gap
from clocs.web.packing import unpack
from explorer.conftest import Served, serving


def write_epochs(folder: Path, first: int, last: int) -> None:
    """As `clocs pretrain` logs them, of two seeds."""
    lines = [
        {"epoch": e, "seed": s, "train_loss": 2 / e, "validation_loss": 2.1 / e + s / 9,
         "validation_spread": 0.1 * s, "instances_per_second": 1e3, "seconds": 0.5}
        for e in range(first, last + 1)
        for s in (0, 1)
    ]  # fmt: skip
    with (folder / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A training that has logged three epochs."""
    folder = tmp_path / "runs" / "cmsc"
    folder.mkdir(parents=True)
    facts = {"method": "cmsc", "seeds": [0, 1], "settings": {"epochs": 9}}
    (folder / "settings.json").write_text(json.dumps(facts), encoding="utf-8")
    write_epochs(folder, 1, 3)
    return folder


@pytest.fixture
def with_tabs(session: Session, run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """With a part at the limit in every recording."""
    part = Gap(100, 200, session.recording(session.codes[0], 0).leads[0])
    monkeypatch.setattr("clocs.explorer.quality.clipped_stretches", lambda recording: [part])
    with serving(replace(session, runs=run.parent)) as made:
        yield made


def test_a_log_is_read_without_the_line_that_is_being_written(run: Path) -> None:
    with (run / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"epoch": 4, "train_loss": NaN, "more": [1]}\n{"epoch": 5, "se')
    lines = log_lines(run)
    assert [line["epoch"] for line in lines] == [1, 1, 2, 2, 3, 3, 4]
    assert lines[-1] == {"epoch": 4, "train_loss": None}
    assert log_lines(run / "nowhere") == []


def test_trainings_and_reports_are_found(run: Path, tmp_path: Path) -> None:
    assert list(run_folders(tmp_path)) == ["runs/cmsc"] and list(run_folders(run)) == ["cmsc"]
    assert find_report(run) is None  # a training is enough
    assert report_beside(run / "seed-0.safetensors") is None
    (tmp_path / "runs" / "report").mkdir()
    page = tmp_path / "runs" / "report" / "index.html"
    page.write_text("<!doctype html><title>My own pages</title>", encoding="utf-8")
    assert report_beside(run / "seed-0.safetensors") is None  # somebody else's
    page.write_text("<!doctype html><title>clocs: the paper reproduced</title>", encoding="utf-8")
    assert report_beside(run / "seed-0.safetensors") == page


def test_gaps_flat_and_clipped_parts_are_found(small_store: Store) -> None:
    recording = small_store.recording(0)
    digital = recording.digital.copy()
    digital[0, 500:1500] = 7
    digital[1, 2000:2100] = digital[1].max() + 1
    damaged = replace(recording, digital=digital, gaps=(Gap(0, 250, recording.leads[2]),))
    found = {(one["lead"], one["kind"]): one for one in parts_of(damaged)}
    assert found["I", "flat"]["start"] == pytest.approx(1.0, abs=0.01)
    assert found["II", "clipped"]["stop"] == pytest.approx(2100 / recording.rate)
    assert found["III", "gap"]["stop"] == pytest.approx(250 / recording.rate)
    assert not clipped_stretches(replace(recording, digital=np.zeros((12, 9), np.int16)))


def test_training_curves_grow_while_it_trains(
    new_page: Callable[..., Page], with_tabs: Served, run: Path
) -> None:
    page = new_page(viewport={"width": 390, "height": 844}, color_scheme="light")
    page.goto(with_tabs.url)
    page.wait_for_selector("html[data-ready=all]")
    page.click("#tabs [data-tab=training]")
    expect(page).to_have_url(re.compile("tab=training"))
    expect(page.locator("#run-state")).to_contain_text("epoch 3 of at most 9")
    expect(page.locator(".chart")).to_have_count(2)  # the loss and what else is logged
    expect(page.locator(".chart").first.locator("polyline")).to_have_count(4)
    write_epochs(run, 4, 5)
    expect(page.locator(".charts")).to_have_attribute("data-epoch", "5")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.keyboard.press("Escape")
    expect(page.locator("#explore")).to_be_visible()
    expect(page.locator("#tabs [aria-current=page]")).to_have_text("Patients")


def test_the_quality_tab_counts_reasons_and_draws_what_is_to_blame(
    new_page: Callable[..., Page], with_tabs: Served
) -> None:
    session = with_tabs.session
    (store,) = session.stores.values()
    page = new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    facts = unhurried.get(f"{with_tabs.url}/api/quality").json()[0]
    ids = [*store.table["id"], *store.table["patient"]]
    assert not any(name in json.dumps(facts) for name in ids)  # pseudonyms alone
    page.goto(f"{with_tabs.url}/?tab=quality")
    section = page.locator(".quality")
    expect(section).to_contain_text("80 recordings in the store")
    table = kept_measurements(store).read()
    assert table is not None
    low = table.filter(pl.col("quality") < 0.5).height
    assert {one["reason"]: one["count"] for one in facts["reasons"]} == {"hard to read: noise": low}
    expect(section.locator(".reasons button")).to_have_text("hard to read: noise")
    first = section.locator(".left-out button").first
    first.click()
    expect(section.locator(".drawing")).to_have_attribute(
        "data-drawn", first.get_attribute("data-code") or ""
    )
    expect(section.locator(".strips .part")).to_have_count(1)
    page.wait_for_selector("html[data-ready=all]")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.click("#tabs [data-tab=results]")
    heading = page.frame_locator("#report-frame").locator("h1")
    expect(heading).to_have_text("Results of a run")
    page.go_back()
    expect(section).to_be_visible()


def test_a_listed_recording_is_sent_with_its_parts(with_tabs: Served) -> None:
    refused = unhurried.get(f"{with_tabs.url}/api/quality/0123456789")
    assert refused.status_code == 404 and "no samples" in refused.json()["message"]
    listed = unhurried.get(f"{with_tabs.url}/api/quality").json()[0]["recordings_listed"]
    answer = unhurried.get(f"{with_tabs.url}/api/quality/{listed[0]['code']}")
    facts, arrays = unpack(answer.content)
    assert arrays["digital"].shape[0] == len(facts["leads"])
    assert [(one["lead"], one["kind"]) for one in facts["parts"]] == [("I", "clipped")]

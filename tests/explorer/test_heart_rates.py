"""Heart rates, measured in the background while the page is open."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Page, expect

import unhurried
from accessibility import violations
from clocs import Store
from clocs.errors import BusyError, StoreError
from clocs.explorer import heart_rates as rates_module
from clocs.explorer.heart_rates import HeartRates, measure_rates, rates_folder, read_rates
from clocs.explorer.session import Session
from clocs.files import locked
from clocs.measurements.beats import heart_rate
from clocs.recording import Recording
from clocs.web.packing import unpack
from explorer.conftest import serving


def heart_rates(store: Store) -> NDArray[np.float32]:
    """One after the other, NaN where there is none."""
    found = [heart_rate(store.recording(row)) for row in range(len(store))]
    return np.array([np.nan if one is None else one for one in found], np.float32)


class StopError(Exception):
    """As if the process were killed."""


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are kept every ten recordings."""
    monkeypatch.setattr(rates_module, "_FEWEST", 10)
    monkeypatch.setattr(rates_module, "_MOST", 10)


def stopped_at(store: Store, folder: Path, most: int) -> None:
    """Measure until so many are kept."""

    def report(done: int) -> None:
        if done >= most:
            raise StopError

    with pytest.raises(StopError):
        measure_rates(store, folder, report)


def test_a_patient_has_the_median_heart_rate_of_the_recordings(
    session: Session, small_store: Store
) -> None:
    row = 7
    patient = session.embeddings.rows["patient"][row]
    ids = small_store.table.filter(pl.col("patient") == patient)["id"].to_list()
    expected = np.median([heart_rate(small_store.recording(name)) or np.nan for name in ids])
    summary = session.summary(row)
    assert summary["heart_rate"] == pytest.approx(expected, rel=1e-5)
    assert unpack(session.map())[1]["heart_rate"][row] == round(summary["heart_rate"])
    state = session.heart_rates.state()
    assert (state.state, state.measured, state.recordings) == ("ready", 80, 80)


@pytest.mark.usefixtures("small_steps")
def test_measuring_goes_on_where_it_was_stopped_and_nothing_is_measured_twice(
    small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def counted(recording: Recording) -> float | None:
        measured.append(recording.id)
        return heart_rate(recording)

    monkeypatch.setattr(rates_module, "heart_rate", counted)
    folder = rates_folder(small_store, tmp_path)
    stopped_at(small_store, folder, 30)
    part = read_rates(small_store, folder)
    assert part.done == 30 and np.isfinite(part.rates).sum() <= 30
    measure_rates(small_store, folder)
    assert sorted(measured) == sorted(small_store.table["id"])
    np.testing.assert_array_equal(read_rates(small_store, folder).rates, heart_rates(small_store))
    rows = np.isfinite(part.rates)
    assert rows[: rows.sum()].sum() < 25  # not in the order of the IDs


@pytest.mark.usefixtures("small_steps")
def test_a_damaged_recording_is_counted_and_the_others_are_measured(
    session: Session, small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = small_store.iter_signals

    def damaged(rows: list[int]) -> object:
        for row, digital in whole(rows=rows):
            if row == 5:
                raise StoreError("the samples of recording 5 have changed")
            yield row, digital

    monkeypatch.setattr(small_store, "iter_signals", damaged)
    folder = rates_folder(small_store, tmp_path)
    measure_rates(small_store, folder)
    known, expected = read_rates(small_store, folder), heart_rates(small_store)
    assert known.complete and known.unread == 1
    expected[5] = np.nan
    np.testing.assert_array_equal(known.rates, expected)
    rates = HeartRates(
        session.embeddings.rows, {small_store.manifest.dataset: small_store}, tmp_path
    )
    assert rates.state().description == "1 recording cannot be read"


def test_a_damaged_file_is_measured_again_and_two_explorers_do_not_measure_at_once(
    small_store: Store, tmp_path: Path
) -> None:
    folder = rates_folder(small_store, tmp_path)
    folder.mkdir()
    (folder / "rates.safetensors").write_bytes(b"damaged")
    assert read_rates(small_store, folder).done == 0
    with locked(folder), pytest.raises(BusyError):
        measure_rates(small_store, folder)


def test_what_cannot_be_measured_is_said_and_logged_without_folders(
    session: Session, small_store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stores = {small_store.manifest.dataset: small_store}
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    rates = HeartRates(session.embeddings.rows, stores, tmp_path / "file")
    rates.start()
    rates.wait()
    assert rates.state().state == "failed" and "terminal" in rates.state().description
    assert "heart rates of synthetic cannot be measured (" in caplog.text
    assert str(tmp_path) not in caplog.text and str(small_store.path) not in caplog.text


@pytest.mark.usefixtures("small_steps")
def test_the_page_opens_at_once_and_heart_rates_arrive_without_a_reload(
    new_page: Callable[..., Page],
    session: Session,
    small_store: Store,
    tmp_path: Path,
) -> None:
    stores = {small_store.manifest.dataset: small_store}
    stopped_at(small_store, rates_folder(small_store, tmp_path), 20)
    rates = HeartRates(session.embeddings.rows, stores, tmp_path)
    known = int(np.isfinite(rates.values).sum())
    assert 0 < known < len(rates.values)
    problems: list[str] = []
    with serving(replace(session, heart_rates=rates)) as served:
        page = new_page(viewport={"width": 390, "height": 844})
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{served.url}/?find=rate+>1&color=heart_rate&histograms=")
        page.wait_for_selector("html[data-ready=all][data-rates=working]")
        expect(page.locator("#found")).to_have_text(f"{known} of 40 patients")
        expect(page.locator("#found-rates")).to_have_text("heart rates: 25 % measured so far")
        heading = page.locator("#histograms [data-field=heart_rate] h2")
        expect(heading).to_contain_text("25 % measured so far")
        expect(page.locator("#legend [data-rates-note]")).to_have_text("25 % measured so far")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.evaluate("globalThis.same = true")
        rates.start()
        page.wait_for_selector("html[data-rates=ready]")
        whole = int(np.isfinite(session.heart_rates.values).sum())
        expect(page.locator("#found")).to_have_text(
            f"{whole} of 40 patients" if whole < 40 else "All 40 patients"
        )
        expect(page.locator("#found-rates")).to_be_hidden()
        expect(heading).to_have_text("Heart rate bpm")
        assert page.evaluate("globalThis.same")
        answer = unhurried.get(f"{served.url}/api/heart-rates").json()
        assert answer["state"] == "ready" and answer["measured"] == 80
        rates.stop()
    assert problems == []
    again = HeartRates(session.embeddings.rows, stores, tmp_path)
    for own in (rates, again):
        np.testing.assert_array_equal(own.values, session.heart_rates.values)
    if os.name == "posix":
        assert not rates_folder(small_store, tmp_path).stat().st_mode & 0o077

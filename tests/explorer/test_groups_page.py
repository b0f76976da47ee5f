"""Groups of patients on the page, in headless Chromium."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from accessibility import violations
from clocs.explorer.groups import save_cohort
from clocs.explorer.session import Session
from clocs.patients.cohort import read_cohort
from explorer.conftest import Served, serving

HALF = "clocs.group([[-99, -99], [0, -99], [0, 99], [-99, 99]])"  # of the map


@pytest.fixture(scope="module")
def own(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With a folder of its own for cohorts; IDs are shown."""
    folder = tmp_path_factory.mktemp("groups") / "cohorts"
    with serving(replace(session, cohorts=folder, show_ids=True)) as made:
        yield made


def opened(new_page: Callable[..., Page], own: Served, width: int, height: int) -> Page:
    page = new_page(viewport={"width": width, "height": height})
    page.goto(own.url)
    page.wait_for_selector("html[data-ready=all]")
    return page


def expect_sound(page: Page, width: int) -> None:
    """Nothing is wider than the screen, and axe-core finds nothing."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []


def test_a_lassoed_group_is_listed_browsed_saved_compared_and_exported(
    new_page: Callable[..., Page], own: Served, tmp_path: Path
) -> None:
    """On a telephone; on a laptop, below, what is laid out otherwise."""
    width, height = 390, 844
    page = opened(new_page, own, width, height)
    page.evaluate(HALF)
    expect(page.locator("#browse-group")).to_be_visible()
    rows: list[int] = page.evaluate("[...clocs.groups.current.rows]")
    assert 3 < len(rows) < 40
    expect(page.locator("#detail h2")).to_have_text(f"{len(rows)} patients")
    codes = [own.session.codes[row] for row in rows]
    listed = page.locator("#detail .people button")
    first = listed.evaluate_all("all => all.map(one => one.dataset.code)")
    assert first == codes[:20]
    expect_sound(page, width)

    # One ECG after another, by key and by button, and back
    listed.nth(1).click()
    expect(page.locator("#browse")).to_contain_text(f"2 of {len(rows)}")
    page.wait_for_selector("#ecg[data-drawn=yes]")
    page.keyboard.press("j")
    expect(page.locator("#browse")).to_contain_text(f"3 of {len(rows)}")
    expect(page).to_have_url(re.compile(codes[2]))
    page.wait_for_selector("#ecg[data-drawn=yes]")
    page.keyboard.press("k")
    expect(page.locator("#browse")).to_contain_text(f"2 of {len(rows)}")
    page.get_by_role("button", name="Next patient", exact=True).click()
    expect(page.locator("#browse")).to_contain_text(f"3 of {len(rows)}")
    expect(page.get_by_role("button", name="Next patient", exact=True)).to_be_focused()
    page.wait_for_selector("#ecg[data-drawn=yes]")
    page.wait_for_selector("#neighbors li:last-child canvas[data-drawn=yes]", state="attached")
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(page.locator("#detail h2")).to_have_text(f"{len(rows)} patients")

    # Exports
    ids = {f"{own.session.datasets[0]}:{own.session.name(row)}" for row in rows}
    with page.expect_download() as saved:
        page.click("#group-csv")
    file = tmp_path / "group.csv"
    saved.value.save_as(file)
    assert read_cohort(file).ids == ids

    # Saved under a name, which another browser sees
    page.click("#save-group")
    name = "Left half"
    page.fill("#cohort-name", "a/b")
    page.keyboard.press("Enter")
    expect(page.locator("#cohort-dialog .error")).to_contain_text("letters, digits")
    expect_sound(page, width)
    page.fill("#cohort-name", name)
    page.keyboard.press("Enter")
    expect(page.locator("#detail h2")).to_have_text(name)
    assert read_cohort(own.session.cohorts / f"{name}.csv").ids == ids
    link = page.url
    other = opened(new_page, own, width, height)
    other.click("#open-cohorts")
    other.locator("#cohort-dialog .people button").filter(has_text=name).click()
    expect(other.locator("#detail h2")).to_have_text(name)
    expect(other.locator("#detail code")).to_contain_text(f"{name}.csv")
    expect(other).to_have_url(link)

    # Compared with everybody else
    other.locator("#compare-with").select_option(label="all other patients")
    beats = len(own.session.stores[own.session.datasets[0]].leads)
    expect(other.locator(".beat")).to_have_count(beats)
    for row, between in (("female", "–"), ("PR, ms", "to")):
        cells = other.locator("table.compared tr").filter(has_text=re.compile(f"^{row}"))
        expect(cells.locator("td small")).to_have_count(2)
        expect(cells.locator("td small").first).to_contain_text(between)
    expect(other.locator("#detail .keys-row")).to_contain_text(f"All others: {40 - len(rows)}")
    expect_sound(other, width)
    other.keyboard.press("Escape")
    expect(other.locator("#detail h2")).to_have_text(name)


def test_a_taken_name_is_replaced_only_on_request_and_a_found_group_is_one_too(
    new_page: Callable[..., Page], own: Served
) -> None:
    save_cohort(own.session.cohorts, "taken", [("elsewhere", "1")])
    page = opened(new_page, own, 1280, 800)
    page.click("#list-box summary")
    page.click("#open-group")
    expect(page.locator("#detail h2")).to_have_text("40 patients")
    expect_sound(page, 1280)
    page.click("#save-group")
    page.fill("#cohort-name", "Taken")
    page.keyboard.press("Enter")
    expect(page.locator("#cohort-dialog .error")).to_contain_text("'taken' already")
    assert read_cohort(own.session.cohorts / "taken.csv").ids == {"elsewhere:1"}
    page.click("text=Replace it")
    expect(page.locator("#cohort-dialog")).to_have_count(0)
    assert len(read_cohort(own.session.cohorts / "taken.csv").ids) == 40


def test_a_cohort_is_renamed_and_deleted_by_its_buttons_and_by_keyboard(
    new_page: Callable[..., Page], session: Session, tmp_path: Path
) -> None:
    def focused() -> str:
        held: str = page.evaluate(
            "document.activeElement.ariaLabel ?? document.activeElement.innerText"
        )
        return held

    with serving(replace(session, cohorts=tmp_path / "cohorts")) as own:
        for name in ("First", "Second"):
            patients = [(own.session.datasets[0], own.session.name(row)) for row in range(5)]
            save_cohort(tmp_path / "cohorts", name, patients)
        page = opened(new_page, own, 1280, 800)
        page.evaluate("clocs.groups.open('Second')")
        expect(page.locator("#detail h2")).to_have_text("Second")
        page.locator("#open-cohorts").click()
        page.get_by_role("button", name="Rename Second").click()
        page.keyboard.type("Third")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.locator(".cohort").nth(1)).to_contain_text("Third")
        expect(page.locator("#detail h2")).to_have_text("Third")
        assert focused().startswith("Third")  # what was renamed, not the first
        page.reload()
        expect(page.locator("#detail h2")).to_have_text("Third")

        # By keyboard: Escape leaves the name and the dialog as they are
        page.locator("#open-cohorts").press("Enter")
        page.get_by_role("button", name="Rename Third").press("Enter")
        page.keyboard.press("Escape")
        expect(page.locator("[data-name=Third]")).to_be_focused()
        for _ in range(2):
            page.keyboard.press("Tab")
        assert focused() == "Delete Third"
        page.keyboard.press("Enter")
        assert focused() == "Really delete Third"
        page.keyboard.press("Shift+Tab")  # no answer is no
        expect(page.get_by_role("button", name="Delete Third", exact=True)).to_have_text("Delete")
        assert violations(page) == []
        for name in ("Third", "First"):
            button = page.get_by_role("button", name=f"Delete {name}", exact=True)
            button.press("Enter")
            page.keyboard.press("Enter")
            expect(page.locator(f"[data-name={name}]")).to_have_count(0)
        expect(page.get_by_role("button", name="Close", exact=True)).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("#detail h2")).to_have_text("Explore patients by their ECGs")
        page.reload()
        page.locator("#open-cohorts").click()
        expect(page.locator("#cohort-dialog")).to_contain_text("No cohort is saved yet")
        assert not list((tmp_path / "cohorts").glob("*.csv"))

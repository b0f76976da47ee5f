"""Recordings in quarantine, drawn from the files that the store was prepared from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import wfdb
from playwright.sync_api import Page, expect

import clocs
import own_files
import unhurried
from accessibility import violations
from clocs import Store
from clocs.errors import SettingError
from clocs.explorer import quarantined
from clocs.explorer.open import open_session
from clocs.explorer.quality import Quality
from clocs.explorer.quarantined import NotDrawnError, QuarantinedFiles
from clocs.explorer.session import Session
from clocs.web.packing import unpack
from explorer.conftest import serving

SECONDS = {"broken": 6.0, "cut": 2.39, "flat": 12.0}  # that can be drawn


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good records of 12 s at 100 Hz, and bad ones."""
    folder = tmp_path_factory.mktemp("files") / "ward"
    own_files.several(folder, 2)
    for name in ("broken", "gone", "empty", "rate"):
        own_files.record(folder, name)
    signals = folder / "broken.dat"
    signals.write_bytes(signals.read_bytes()[: 3 * 2 * 600 + 1])  # half, and a byte
    (folder / "gone.dat").unlink()
    shape = (1200, 2)
    for name, value in (("flat", 7), ("empty", -32768)):
        wfdb.wrsamp(
            name, fs=100, units=["mV"] * 2, sig_name=["I", "II"], fmt=["16"] * 2,
            d_signal=np.full(shape, value), adc_gain=[1000.0] * 2, baseline=[0] * 2,
            write_dir=str(folder),
        )  # fmt: skip
    header = folder / "rate.hea"
    header.write_text(header.read_text().replace(" 100 ", " 1 ", 1))
    rows = own_files.walk(240, 2, 1)
    text = "I,II\n" + "".join(f"{a / 100},{b / 100}\n" for a, b in rows.tolist())
    (folder / "cut.csv").write_text(text[: text.rstrip().rfind(",")])
    return folder


@pytest.fixture(scope="module")
def ward(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return clocs.prepare("folder", source, out=tmp_path_factory.mktemp("ward") / "store", rate=100)


@pytest.fixture
def beds(session: Session, ward: Store, source: Path) -> Session:
    """With the ward's store alone, and its source."""
    return replace(session, stores={"folder": ward}, sources={"folder": source})


def test_what_can_be_read_is_drawn_and_what_cannot_says_why(
    beds: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantined, "_in_process", lambda act: act(None))  # which is quicker
    for shown in (False, True):
        quality = Quality(replace(beds, show_ids=shown))
        listed = {one["code"]: one for one in quality.datasets[0]["recordings_listed"]}
        (store,) = beds.stores.values()
        names = dict(store.quarantine.select("id", "reason").iter_rows())
        assert names == {
            "broken": "truncated", "cut": "truncated", "flat": "flat", "empty": "nan",
            "gone": "unreadable", "rate": "implausible",
        }  # fmt: skip
        assert all(one["drawn"] for one in listed.values())
        for name in names if shown else ("broken", "gone"):
            code = quality._code("folder", name)
            if name in SECONDS:
                facts, arrays = unpack(quality.signal(code))
                assert facts["seconds"] == pytest.approx(SECONDS[name])
                assert ("breaks off" in facts["note"]) == (name in ("broken", "cut"))
                assert {p["kind"] for p in facts["parts"]} == (
                    {"flat"} if name == "flat" else set()
                )
                assert arrays["digital"].shape[0] == len(facts["leads"])
                continue
            with pytest.raises(SettingError, match="nothing of this recording") as caught:
                quality.signal(code)
            assert (name in str(caught.value)) == shown  # a file's name is an ID
        assert ("broken" in json.dumps(list(listed.values()))) == shown


def test_a_recording_that_is_too_long_is_refused_with_the_limit(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = QuarantinedFiles(source)
    monkeypatch.setattr(quarantined, "MOST_BYTES", 1 << 10)
    with pytest.raises(NotDrawnError, match="recordings of up to 0 MiB are drawn"):
        files.read("flat", detail="", rate=None)
    with pytest.raises(NotDrawnError, match="no readable file of it"):
        files.read("lat", detail="", rate=None)


def test_a_source_must_be_that_of_a_store(
    small_store: Store, encoder: Path, source: Path, tmp_path: Path
) -> None:
    def opened(*sources: Path) -> Session:
        given = {"stores": [small_store], "checkpoint": encoder, "cache": tmp_path}
        return open_session(sources=sources, **given)  # type: ignore[arg-type]

    with pytest.raises(SettingError, match="does not exist; give the folder or zip"):
        opened(tmp_path / "nowhere")
    with pytest.raises(SettingError, match="none of the stores was prepared from"):
        opened(source, tmp_path)
    assert opened(source).sources == {"synthetic": source}  # moved or renamed


@pytest.mark.parametrize(("size", "theme"), [((1280, 800), "light"), ((390, 844), "dark")])
def test_the_quality_room_draws_what_was_quarantined(
    new_page: Callable[..., Page], beds: Session, size: tuple[int, int], theme: str
) -> None:
    with serving(replace(beds, show_ids=True)) as served:
        page = new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
        page.goto(f"{served.url}/?room=quality")
        section = page.locator(".quality")
        section.locator("[data-reason=truncated]").click()
        section.locator(".left-out button", has_text="broken").click()
        expect(section.locator(".drawing")).to_contain_text("6.0 s, the file breaks off here")
        assert section.locator(".strips .trace").count() == 3
        page.wait_for_selector("html[data-ready=all]")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        section.locator("[data-reason=unreadable]").click()
        section.locator(".left-out button", has_text="gone").click()
        expect(section.locator(".drawing [role=alert]")).to_contain_text(
            re.compile("nothing of this recording can be drawn.*gone.dat", re.IGNORECASE)
        )
        answer = unhurried.get(f"{served.url}/api/quality/0123456789")
        assert answer.status_code == 404

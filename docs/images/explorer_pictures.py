"""Takes the docs' screenshots of the explorer, in the system's Chromium.

    python docs/images/explorer_pictures.py                                     # the demo
    python docs/images/explorer_pictures.py --checkpoint C --store S --store S  # the real map

Each is taken when UMAP has finished and everything is drawn. The demo's simulated patients get
their pseudonyms from a fixed key, so that the pictures are reproducible.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import wfdb
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import clocs

HERE = Path(__file__).resolve().parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LAPTOP, TABLET = (1280, 800), (1024, 1366)
SHOWN = "SB"  # the first patient with this label is shown
STRANGER = 9  # seed of the simulated patient whose ECG is uploaded
CIRCLED = "SB"  # the label to draw the lasso around
MINUTES = 60_000  # ms

FIRST = """label => {
  const bit = 1 << clocs.session.labels.indexOf(label);
  return clocs.codeOf(clocs.columns.labels.findIndex(mask => mask & bit));
}"""
# Center and radius of a circle on the screen around most patients of a label.
AROUND = """label => {
  const { scatter } = clocs.map, bit = 1 << clocs.session.labels.indexOf(label), found = [];
  for (let i = 0; i < scatter.count; i++) {
    const place = scatter.places.slice(2 * i, 2 * i + 2);
    if (clocs.columns.labels[i] & bit) found.push(scatter.toScreen(...place));
  }
  const middle = a => found.map(p => p[a]).sort((x, y) => x - y)[found.length >> 1];
  const x = middle(0), y = middle(1);
  const far = found.map(p => Math.hypot(p[0] - x, p[1] - y)).sort((a, b) => a - b);
  return [x, y, far[Math.floor(0.9 * far.length)] + 8];
}"""
SETTLED = """() => new Promise(done =>
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 200))))"""


@contextmanager
def explorer(arguments: Sequence[str | Path]) -> Iterator[str]:
    """Runs `clocs explore`; yields its address."""
    command = [sys.executable, "-m", "clocs", "explore", "--no-browse", "--token", "none", "--json"]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the explorer did not start; see above")
        yield json.loads(line)["url"]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def page_of(browser: Browser, size: tuple[int, int], theme: Any = "light") -> Iterator[Page]:
    """An empty page of this size and theme."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, locale="en-GB"
    )
    page = context.new_page()
    page.set_default_timeout(MINUTES)
    yield page
    context.close()


def look(page: Page, url: str, *, drawn: str = "") -> None:
    """Opens an address and waits for UMAP and the selector `drawn`."""
    page.goto(url)
    page.wait_for_selector("html[data-ready=all][data-map=umap]", timeout=30 * MINUTES)
    if drawn:
        page.wait_for_selector(drawn)


def take(page: Page, name: str) -> None:
    """Writes explorer-NAME.png, without the mouse pointer."""
    page.mouse.move(0, 0)
    page.evaluate(SETTLED)
    path = HERE / f"explorer-{name}.png"
    drawn = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    # 256 colors: a quarter of the size without a visible difference
    few = drawn.quantize(method=Image.Quantize.MAXCOVERAGE, kmeans=5, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(path)


def take_patient(page: Page, url: str) -> str:
    """A patient, the neighbors, and a comparison with the nearest; returns the address."""
    thumbnails = "#neighbors li:last-child canvas[data-drawn=yes]"
    look(page, url)
    code = page.evaluate(FIRST, SHOWN)
    address = f"{url}?patient={code}"
    look(page, address, drawn=thumbnails)
    take(page, "patient")
    page.locator("#neighbors").evaluate("list => list.scrollIntoView({block: 'end'})")
    take(page, "neighbours")
    nearest = page.locator("#neighbors .open").first.get_attribute("data-code")
    look(page, f"{address}&with={nearest}", drawn="canvas.side[data-drawn=yes] >> nth=1")
    take(page, "compare")
    return address


def take_group(page: Page, url: str) -> None:
    """A lasso around most patients of one label."""
    look(page, url)
    box = page.locator("#map").bounding_box()
    assert box is not None
    x, y, radius = page.evaluate(AROUND, CIRCLED)
    corners = [
        (
            min(max(x + radius * math.cos(turn * math.pi / 12), 3), box["width"] - 3) + box["x"],
            min(max(y + radius * math.sin(turn * math.pi / 12), 3), box["height"] - 3) + box["y"],
        )
        for turn in range(24)
    ]
    page.click("#lasso")
    page.mouse.move(*corners[0])
    page.mouse.down()
    for corner in corners[1:]:
        page.mouse.move(*corner)
    page.mouse.up()
    page.wait_for_selector("table.counts")
    take(page, "group")


def take_uploads(page: Page, url: str, folder: Path) -> None:
    """A file that is not a recording, and a recording of a new patient."""
    letter = folder / "letter.txt"
    letter.write_text("Dear colleague", encoding="utf-8")
    stranger = clocs.prepare("synthetic", out=folder / "stranger", patients=1, seed=STRANGER)
    recording = stranger.recording(0)
    wfdb.wrsamp(
        "own",
        fs=recording.rate,
        units=["mV"] * len(recording.leads),
        sig_name=list(recording.leads),
        p_signal=recording.signal.T.astype(float),
        fmt=["16"] * len(recording.leads),
        write_dir=str(folder),
    )
    look(page, url)
    page.click("#open-upload")
    page.set_input_files("#files", letter)
    page.wait_for_selector("#upload-error:not([hidden])")
    take(page, "bad-file")
    page.set_input_files("#files", [folder / "own.hea", folder / "own.dat"])
    page.wait_for_selector("#ecg[data-drawn=yes]")
    look(page, page.url, drawn="#neighbors li:last-child canvas[data-drawn=yes]")
    take(page, "upload")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, help="encoder; requires --store")
    parser.add_argument(
        "--store",
        type=Path,
        action="append",
        default=[],
        help="prepared recordings; may be repeated",
    )
    parser.add_argument(
        "--cache", type=Path, help="the explorer's cache folder; an empty one by default"
    )
    given = parser.parse_args()
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise SystemExit(f"needs a browser: {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as held, sync_playwright() as playwright:
        folder = Path(held)
        cache = given.cache or folder / "cache"
        arguments: list[str | Path] = ["--cache", cache]
        if given.checkpoint is not None:
            arguments += ["--checkpoint", given.checkpoint]
            for store in given.store:
                arguments += [store]
        elif not (cache / "pseudonyms.key").exists():
            cache.mkdir(parents=True, exist_ok=True)
            (cache / "pseudonyms.key").write_bytes(bytes(32))
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        with explorer(arguments) as url, page_of(browser, LAPTOP) as page:
            if given.checkpoint is not None:
                look(page, url)
                take(page, "map-real")
                return
            address = take_patient(page, url)
            take_group(page, url)
            take_uploads(page, url, folder)
            with page_of(browser, TABLET, "dark") as tablet:
                look(tablet, address, drawn="#ecg[data-drawn=yes]")
                take(tablet, "tablet-dark")


if __name__ == "__main__":
    main()

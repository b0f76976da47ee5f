"""Searching and cross-filtering many patients, and the first map beside that of another checkout.

    git worktree add ../before HEAD~1
    python benchmarks/explorer_filter.py --patients 100000 --before ../before

Drives headless Chromium at 1280 × 800 with the list and the histograms open. A search is timed from
the key until the picture that shows its result is drawn; a click on a bar in the same way. With
--before, the explorer of both checkouts is started in turn, and the time from the start of the
process to the first map is printed for both.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from clocs.explorer.patient_map import MAP, Projection
from explore import listed, middle, opened, placed, simulated

WORDS = ("atrial female age 60-70", "pvc", "bundle branch", "male rate >100", "0a1b2")
# From an input until the frame after its own drawing: what a person waits for.
DRAWN = """change => new Promise(done => {
  const began = performance.now();
  apply(change);
  const spent = performance.now() - began;
  requestAnimationFrame(() => setTimeout(() => done([spent, performance.now() - began])));
  function apply({ text, bar }) {
    const box = document.getElementById("search");
    if (bar !== undefined) { document.querySelectorAll("#histograms button")[bar].click(); return; }
    box.value = text;
    box.dispatchEvent(new Event("input"));
  }
})"""


def searches(page: Page) -> None:
    page.click("#list-box summary")
    page.click("#histograms-box summary")
    typed, clicked = [], []
    for text in WORDS * 3:
        for end in range(1, len(text) + 1):
            typed.append(page.evaluate(DRAWN, {"text": text[:end]})[1])
    page.evaluate(DRAWN, {"text": ""})
    for bar in range(page.locator("#histograms button").count()):
        for _ in range(4):  # on and off, twice
            clicked.append(page.evaluate(DRAWN, {"bar": bar})[1])
    print(f"a key in the search box         {middle(typed)}, longest {max(typed):.1f} ms")
    print(f"a click on a bar                {middle(clicked)}, longest {max(clicked):.1f} ms")


def first_maps(browser: Browser, folder: Path, before: Path | None, times: int) -> None:
    """Both checkouts in turn, so that a busy moment hits both."""
    own = str(Path(__file__).parents[1] / "src")
    sources = {"now": own, **({"before": str(before / "src")} if before else {})}
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    for again in range(times):
        for name, source in sources.items():
            os.environ["PYTHONPATH"] = source
            page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
            time.sleep(1)  # let it start up first
            process, _, _, drawn = opened(page, folder)
            seconds[name].append(drawn)
            try:
                if name == "now" and again == times - 1:
                    page.wait_for_selector("html[data-ready=all]")
                    searches(page)
            finally:
                process.terminate()
                process.wait()
                page.context.close()
    for name, spent in seconds.items():
        print(f"start to the map, {name:8s}      {listed(spent)} s")
    if before:
        ratio = np.median(seconds["now"]) / np.median(seconds["before"])
        print(f"  ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--patients", type=int, default=100_000)
    parser.add_argument(
        "--before", type=Path, help="another checkout to compare the first map with"
    )
    parser.add_argument("--times", type=int, default=5, help="starts of each")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        embeddings = simulated(settings.patients)
        embeddings.save(folder / "patients.parquet")
        projection = Projection(embeddings.vectors, folder / "cache")
        projection.file.parent.mkdir(parents=True, exist_ok=True)
        MAP.write(projection.file, {}, {"positions": placed(settings.patients)})
        path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        first_maps(browser, folder, settings.before, settings.times)
        browser.close()


if __name__ == "__main__":
    main()

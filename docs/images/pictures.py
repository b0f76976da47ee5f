"""Makes every picture of the docs, of today's pages and figures.

    python docs/images/pictures.py --stores STORES            # all of them
    python docs/images/pictures.py --stores STORES explorer   # those of one group

STORES has the prepared recordings `chapman` and `physionet2020`, both CC BY 4.0, and
`physionet2017`, ODC-By 1.0. Nothing is fetched. Beside the pictures, `pictures.json` keeps a digest
of the sources of what each one shows; tests/test_pictures.py fails where these have changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STAMPS = HERE / "pictures.json"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LAPTOP, TALL, TABLET = (1280, 800), (1280, 1200), (1024, 1366)
ENCODER, CLASSIFIER = "cmsmlc-many-leads", "diagnoses-physionet2020"
SECOND = "cmsc-chapman"  # beside the first
STORE = "physionet2020"  # whose patients the explorer shows
SHOWN = "AF"  # a patient with this label is shown, and most with it are circled
SAMPLE = sorted((ROOT / "src/clocs/formats").glob("sample*"))
MINUTES = 60_000  # ms
WIDEST = 1600  # pixels: twice the width of a page's text

# A patient with this label alone; the very first one of PhysioNet 2020 has a copy.
FIRST = """label => {
  const mask = 1 << clocs.session.labels.indexOf(label), found = [];
  clocs.columns.labels.forEach((own, i) => { if (own === mask) found.push(i); });
  return clocs.codeOf(found[Math.min(4, found.length - 1)]);
}"""
# Center and radius of a circle on the screen around half of the patients of a label.
AROUND = """label => {
  const { scatter } = clocs.map, bit = 1 << clocs.session.labels.indexOf(label), found = [];
  for (let i = 0; i < scatter.count; i++) {
    const place = scatter.places.slice(2 * i, 2 * i + 2);
    if (clocs.columns.labels[i] & bit) found.push(scatter.toScreen(...place));
  }
  const middle = a => found.map(p => p[a]).sort((x, y) => x - y)[found.length >> 1];
  const x = middle(0), y = middle(1);
  const far = found.map(p => Math.hypot(p[0] - x, p[1] - y)).sort((a, b) => a - b);
  return [x, y, far[Math.floor(0.5 * far.length)] + 8];
}"""
SETTLED = """() => new Promise(done =>
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 200))))"""


def clocs(*words: str | Path, cwd: Path = ROOT) -> None:
    """Run a command of clocs."""
    subprocess.run([sys.executable, "-m", "clocs", *words], cwd=cwd, check=True, env=environment())


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src")}


@contextmanager
def address_of(command: Sequence[str | Path], cache: Path) -> Iterator[str]:
    """Runs a server of clocs; yields its address."""
    words = [sys.executable, "-m", "clocs", *command, "--token", "none", "--json"]
    env = environment() | {"CLOCS_CACHE": str(cache)}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start; see above")
        yield json.loads(line)["url"]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def new_browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise SystemExit(f"needs a browser: {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])


@contextmanager
def page_of(browser: Browser, size: tuple[int, int], theme: Any = "light") -> Iterator[Page]:
    """An empty page of this size and theme."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, locale="en-US"
    )
    page = context.new_page()
    page.set_default_timeout(MINUTES)
    yield page
    context.close()


def take(page: Page, name: str) -> None:
    """Writes NAME.png, without the mouse pointer."""
    page.mouse.move(0, 0)
    page.evaluate(SETTLED)
    page.screenshot(path=HERE / f"{name}.png")
    shrink(name)


def shrink(name: str) -> None:
    """Few colors and at most WIDEST pixels: a fraction of the size, and pages show no more."""
    from PIL import Image

    path = HERE / f"{name}.png"
    drawn = Image.open(path).convert("RGB")
    colors = 64 if drawn.width > WIDEST else 256  # 64 are enough for fine print
    if drawn.width > WIDEST:
        height = round(drawn.height * WIDEST / drawn.width)
        drawn = drawn.resize((WIDEST, height), Image.Resampling.LANCZOS)
    few = drawn.quantize(colors, Image.Quantize.MAXCOVERAGE, 5, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    path.chmod(0o644)


def look(page: Page, url: str, *, drawn: str = "") -> None:
    """Opens an address of the explorer and waits for UMAP and the selector `drawn`."""
    page.goto(url)
    page.wait_for_selector("html[data-ready=all][data-map=umap]", timeout=30 * MINUTES)
    if drawn:
        page.wait_for_selector(drawn)


def explorer(stores: Path, work: Path) -> None:
    """The explorer on the patients of PhysioNet 2020, under fixed pseudonyms."""
    cache = work / "cache"
    cache.mkdir(mode=0o700)
    (cache / "pseudonyms.key").write_bytes(bytes(32))
    given = ["explore", "--no-browse", "--model", CLASSIFIER]
    given += ["--checkpoint", ENCODER, "--checkpoint", SECOND]
    with (
        address_of([*given, stores / STORE], cache) as url,
        new_browser() as browser,
        page_of(browser, LAPTOP) as page,
    ):
        look(page, url)
        take(page, "explorer-map")
        look(page, f"{url}?beside=1", drawn="html[data-second=umap]")
        take(page, "explorer-two")
        address = _patient(page, url)
        _group(page, url)
        _uploads(page, url, work)
        with page_of(browser, TABLET, "dark") as tablet:
            look(tablet, address, drawn="#ecg[data-marked]")
            tablet.get_by_text("Predicting").first.wait_for(state="hidden")
            take(tablet, "explorer-tablet-dark")


def measured(stores: Path, work: Path) -> None:
    """The same patients colored by the length of QRS, with histograms; measured first."""
    clocs("measure", stores / STORE)
    given = ["explore", "--no-browse", "--checkpoint", ENCODER]
    with (
        address_of([*given, stores / STORE], work / "cache") as url,
        new_browser() as browser,
        page_of(browser, TALL) as page,
    ):
        look(page, f"{url}?color=qrs&histograms=", drawn="#legend .ramp")
        take(page, "explorer-measured")


def _patient(page: Page, url: str) -> str:
    """A patient, the neighbors, and a comparison with the nearest; returns the address."""
    address = f"{url}?patient={page.evaluate(FIRST, SHOWN)}"
    look(page, address, drawn="#neighbors li:last-child canvas[data-drawn=yes]")
    page.wait_for_selector("#ecg[data-marked]")
    page.get_by_text("Predicting").first.wait_for(state="hidden")
    take(page, "explorer-patient")
    page.locator("#neighbors").evaluate("list => list.scrollIntoView({block: 'end'})")
    take(page, "explorer-neighbors")
    nearest = page.locator("#neighbors .open").first.get_attribute("data-code")
    look(page, f"{address}&with={nearest}", drawn="canvas.side[data-drawn=yes] >> nth=1")
    take(page, "explorer-compare")
    return address


def _group(page: Page, url: str) -> None:
    """A lasso around most patients of one label."""
    look(page, url)
    box = page.locator("#map").bounding_box()
    assert box is not None
    x, y, radius = page.evaluate(AROUND, SHOWN)
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
    take(page, "explorer-group")


def _uploads(page: Page, url: str, work: Path) -> None:
    """A file that is not a recording, and the sample as a recording of a new patient."""
    letter = work / "letter.txt"
    letter.write_text("Dear colleague", encoding="utf-8")
    look(page, url)
    page.click("#open-upload")
    page.set_input_files("#files", letter)
    page.wait_for_selector("#upload-error:not([hidden])")
    take(page, "explorer-bad-file")
    page.set_input_files("#files", SAMPLE)
    page.wait_for_selector("#ecg[data-drawn=yes]")
    look(page, page.url, drawn="#neighbors li:last-child canvas[data-drawn=yes]")
    page.get_by_text("Predicting").first.wait_for(state="hidden")
    take(page, "explorer-upload")


def service(stores: Path, work: Path) -> None:
    """The page of the service, with the sample and its prediction."""
    with (
        address_of(["serve", "rhythm-chapman", CLASSIFIER], work / "cache") as url,
        new_browser() as browser,
        page_of(browser, LAPTOP) as page,
    ):
        page.goto(url)
        page.wait_for_selector("html[data-ready=all]")
        page.set_input_files("#files", SAMPLE)
        page.wait_for_selector("#result canvas")
        take(page, "service")


def figures(stores: Path, work: Path) -> None:
    """What `clocs figure` draws of real recordings."""
    made: dict[str, list[str | Path]] = {
        "views": ["views", stores / "chapman"],
        "perturbations": ["perturbations", stores / "chapman"],
        "similarity": ["similarity", stores / "chapman", "--checkpoint", "cmsc-chapman"],
        "patient-distances": ["distances", stores / STORE, "--checkpoint", "cmsc-chapman"],
    }
    for name, words in made.items():
        clocs("figure", *words, "--out", HERE / f"{name}.png")
        shrink(name)


def sample(stores: Path, work: Path) -> None:
    """The ECG inside the package: what drove two predictions of it, and its waves."""
    for name, model in (("sample", "rhythm-chapman"), ("sample-diagnosis", CLASSIFIER)):
        clocs("predict", model, "sample", "--explain", HERE / f"{name}.png", cwd=work)
        shrink(name)
    clocs("measure", "sample", "--out", HERE / "measurements.png", cwd=work)
    shrink("measurements")


def demo(stores: Path, work: Path) -> None:
    """The page that the demo writes."""
    clocs("demo", "--out", work / "demo")
    _page(work / "demo/index.html", "demo", (1280, 560))


def report(stores: Path, work: Path) -> None:
    """The report of the published results."""
    clocs("reproduce", "report", "--out", ROOT / "docs/results", "--report", work / "report")
    _page(work / "report/index.html", "report", (1280, 900))


def robustness(stores: Path, work: Path) -> None:
    """Scores under noise, and patients found again, from the published results."""
    from clocs.figures.canvas import hide_frame, new_figure, save

    folder = ROOT / "docs/results/analyses"
    noise = json.loads(next(folder.glob("noise-physionet2020-*.json")).read_text("utf-8"))
    figure = new_figure(10, 3.6)
    left, right = figure.subplots(1, 2)
    for kind in dict.fromkeys(row["kind"] for row in noise["noisy"]):
        rows = [row for row in noise["noisy"] if row["kind"] == kind]
        left.plot(
            [row["snr_db"] for row in rows],
            [row["auc"] for row in rows],
            "o-",
            label=kind.replace("-", " "),
        )
    left.axhline(noise["clean"]["auc"], color="gray", linestyle="--", label="without noise")
    left.set(xlabel="signal to noise, dB", ylabel="AUC, PhysioNet 2020", xticks=(0, 6, 12, 18))
    left.legend(fontsize=8, loc="center left", bbox_to_anchor=(0.01, 0.51))
    bars = []
    for path in folder.glob("identity-and-disease-ptb-*.json"):
        found = json.loads(path.read_text("utf-8"))
        facts = found["encoders"][0]
        names = {"random-bn": "untrained", "cmsmlc": "cmsmlc-many-leads"}
        name = names.get(facts["method"], facts["method"].replace("-", " "))
        if facts["method"] == "cmsc":
            name = f"cmsc-{facts['trained_on']}"
        pairs = (found["pairs"][kind]["cosine"]["top1"] for kind in ("another day", "halves"))
        bars.append((*pairs, name))
    for place, (day, half, _) in enumerate(sorted(bars)):
        right.barh(place + 0.2, 100 * half, 0.38, color="#9db8cc")
        right.barh(place - 0.2, 100 * day, 0.38, color="#0072b2")
    right.set_yticks(range(len(bars)), [name for *_, name in sorted(bars)])
    right.barh([0], [0], color="#9db8cc", label="the other half of the recording")
    right.barh([0], [0], color="#0072b2", label="a recording of another day")
    right.set_xlabel("patients of PTB Diagnostic found first, %")
    right.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.4, 1))
    for axes in (left, right):
        hide_frame(axes)
    save(figure, HERE / "robustness.png")
    shrink("robustness")


def strips(stores: Path, work: Path) -> None:
    """ECGs of datasets, the sample in several formats, and what three lines of Python draw."""
    from diagrams import dataset_ecgs, same_ecg, three_lines

    keep(dataset_ecgs(stores), "datasets")
    keep(same_ecg(work), "formats")
    shutil.copyfile(three_lines(work), HERE / "python.png")
    shrink("python")


def diagrams(stores: Path, work: Path) -> None:
    """What no command draws: the chart of scaling.md, and diagrams."""
    from diagrams import exported, extended, million

    for name, figure in (("scaling", million()), ("export", exported()), ("extending", extended())):
        keep(figure, name)


def keep(figure: Figure, name: str) -> None:
    """Writes a figure as NAME.png."""
    from clocs.figures.canvas import save

    save(figure, HERE / f"{name}.png", dpi=150)
    shrink(name)


def _page(file: Path, name: str, size: tuple[int, int]) -> None:
    with new_browser() as browser, page_of(browser, size) as page:
        page.goto(file.as_uri())
        take(page, name)


@dataclass(frozen=True)
class Group:
    """Pictures that are made together."""

    make: Callable[[Path, Path], None]  # from the stores, in a working folder
    names: tuple[str, ...]  # without .png
    shows: tuple[str, ...]  # patterns of the sources that draw what they show


GROUPS = {
    "explorer": Group(
        explorer,
        tuple(
            f"explorer-{name}"
            for name in (
                "map", "patient", "neighbors", "compare", "group", "upload", "bad-file",
                "tablet-dark", "two",
            )
        ),
        ("src/clocs/explorer/static/*", "src/clocs/web/static/*"),
    ),
    "measured": Group(
        measured,
        ("explorer-measured",),
        ("src/clocs/explorer/static/*", "src/clocs/web/static/*"),
    ),
    "service": Group(
        service, ("service",), ("src/clocs/service/static/*", "src/clocs/web/static/*")
    ),
    "figures": Group(
        figures,
        ("views", "perturbations", "similarity", "patient-distances"),
        ("src/clocs/figures/*.py",),
    ),
    "sample": Group(
        sample,
        ("sample", "sample-diagnosis", "measurements"),
        (
            "src/clocs/figures/ecg.py",
            "src/clocs/models/explain.py",
            "src/clocs/formats/sample*",
            "src/clocs/weights/delineator.safetensors",
        ),
    ),
    "strips": Group(
        strips,
        ("datasets", "formats", "python"),
        ("docs/images/diagrams.py", "src/clocs/figures/ecg.py", "src/clocs/formats/sample*"),
    ),
    "diagrams": Group(
        diagrams,
        ("scaling", "export", "extending"),
        ("docs/images/diagrams.py", "docs/scaling.md"),
    ),
    "robustness": Group(robustness, ("robustness",), ("docs/results/analyses/*.json",)),
    "demo": Group(demo, ("demo",), ("src/clocs/experiments/templates/demo*",)),
    "report": Group(report, ("report",), ("src/clocs/experiments/templates/report*",)),
}  # fmt: skip


def digest(patterns: Sequence[str], root: Path = ROOT) -> str:
    """Of the names and contents of the files that match."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def stamp(group: Group) -> None:
    """Note what the pictures of a group show now."""
    known = json.loads(STAMPS.read_text("utf-8")) if STAMPS.is_file() else {}
    for name in group.names:
        picture = hashlib.sha256((HERE / f"{name}.png").read_bytes()).hexdigest()[:16]
        known[name] = {"shows": digest(group.shows), "picture": picture}
    known = {name: known[name] for name in sorted(known)}
    STAMPS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--stores", type=Path, required=True)
    given = parser.parse_args()
    for name in given.groups or GROUPS:
        with tempfile.TemporaryDirectory() as work:
            GROUPS[name].make(given.stores.resolve(), Path(work))
        stamp(GROUPS[name])
        print(name)


if __name__ == "__main__":
    main()

"""Drawing the explorer's points: its own two painters next to established libraries.

    python benchmarks/scatter.py [--points 100000] [--seconds 4]

Needs npm, for regl-scatterplot and deck.gl at the versions below; the explorer itself does not.
Headless Chromium pans the same cloud of points with each, in separate pages, and measures frames
per second and the time to the first frame. The pages have no content security policy: regl would
not run under the explorer's.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import subprocess
import tarfile
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, sync_playwright

PACKAGES = {
    "regl": "2.1.1",
    "pub-sub-es": "3.0.0",
    "regl-scatterplot": "1.16.0",
    "deck.gl": "9.4.0",
}
WIDTH, HEIGHT = 534, 594
PAGE = """<!doctype html><meta charset="utf-8"><canvas id="c" width="534" height="594"></canvas>
<script type="module">
CONSTANTS
const painter = location.hash.slice(1), n = POINTS, canvas = document.getElementById("c");
const script = (src) => new Promise((go, no) => {
  const tag = Object.assign(document.createElement("script"), { src, onload: go, onerror: no });
  document.head.append(tag);
});
const places = new Float32Array(2 * n);
for (let i = 0; i < n; i++) {
  const r = Math.sqrt(-2 * Math.log((i + 1) / (n + 1)));
  places[2 * i] = 0.12 * r * Math.cos(i * 2.4) + 0.4 * Math.cos((i % 9) * 0.7);
  places[2 * i + 1] = 0.12 * r * Math.sin(i * 2.4) + 0.4 * Math.sin((i % 9) * 0.7);
}
const COLORS = [
  "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#383f45", "#882255", "#44aa99",
];
const bytes = COLORS.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const makers = {
  async own(kind) {
    const { Scatter } = await import("/static/scatter.js");
    const scatter = new Scatter(canvas, kind), look = new Uint8Array(4 * n);
    for (let i = 0; i < n; i++) look.set([...bytes[i % 9], 1], 4 * i);
    scatter.resize(WIDTH, HEIGHT);
    scatter.setPlaces(places);
    scatter.setLook(look);
    scatter.fit();
    scatter.draw();
    return (dx, dy) => { scatter.pan(dx, dy); scatter.draw(); };
  },
  pixels: () => makers.own("pixels"),
  webgl2: () => makers.own("webgl2"),
  async "regl-scatterplot"() {
    window.createPubSub = (await import("/pub-sub-es/package/dist/index.js")).default;
    await script("/regl/package/dist/regl.min.js");
    await script("/regl-scatterplot/package/dist/regl-scatterplot.min.js");
    const plot = createScatterplot.default({
      canvas, width: WIDTH, height: HEIGHT, pointSize: 3, opacity: 0.72, colorBy: "valueA",
      pointColor: COLORS,
    });
    const x = [], y = [], valueA = [];
    for (let i = 0; i < n; i++) {
      x.push(places[2 * i]);
      y.push(places[2 * i + 1]);
      valueA.push(i % 9);
    }
    await plot.draw({ x, y, valueA });
    let at = [0, 0];
    return (dx, dy) => {
      at = [at[0] + dx / 300, at[1] + dy / 300];
      const moved = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, at[0], at[1], 0, 1];
      plot.view(new Float32Array(moved), { preventEvent: true });
    };
  },
  async "deck.gl"() {
    await script("/deck.gl/package/dist.min.js");
    const colors = new Uint8Array(4 * n);
    for (let i = 0; i < n; i++) colors.set([...bytes[i % 9], 184], 4 * i);
    const layer = new deck.ScatterplotLayer({
      id: "points", radiusUnits: "pixels", getRadius: 1.5,
      data: {
        length: n,
        attributes: {
          getPosition: { value: places, size: 2 }, getFillColor: { value: colors, size: 4 },
        },
      },
    });
    const state = (x, y) => ({ target: [x, y, 0], zoom: 8.2 });
    let plot;
    await new Promise((go) => {
      plot = new deck.Deck({
        canvas, width: WIDTH, height: HEIGHT, views: new deck.OrthographicView({}),
        viewState: state(0, 0), layers: [layer], onAfterRender: go,
      });
    });
    let at = [0, 0];
    return (dx, dy) => {
      at = [at[0] - dx / 300, at[1] + dy / 300];
      plot.setProps({ viewState: state(...at) });
    };
  },
};
const frame = () => new Promise(requestAnimationFrame);
window.measure = async (seconds) => {
  const began = performance.now(), move = await makers[painter]();
  await frame(); await frame();
  const first = performance.now() - began, gaps = [];
  for (let i = 0, last = await frame(), end = last + 1000 * seconds; last < end; i++) {
    move(4 * Math.sin(i / 9), 3 * Math.cos(i / 7));
    const now = await frame();
    gaps.push(now - last);
    last = now;
  }
  return [first, gaps.length > 9 ? gaps.slice(3) : gaps];
};
window.loaded = true;
</script>"""


def fetch(folder: Path) -> None:
    """Unpack each package into a folder of its name."""
    for name, version in PACKAGES.items():
        done = subprocess.run(
            ["npm", "pack", "--silent", f"{name}@{version}"],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
        with tarfile.open(folder / done.stdout.strip()) as packed:
            packed.extractall(folder / name, filter="data")


def size(folder: Path, painter: str) -> int:
    """Bytes that a page loads for this painter."""
    if painter in ("pixels", "webgl2"):
        own = {"pixels": "pixels.js", "webgl2": "gl.js"}[painter]
        return sum((folder / "static" / name).stat().st_size for name in ("scatter.js", own))
    if painter == "deck.gl":
        return (folder / "deck.gl/package/dist.min.js").stat().st_size
    parts = ("regl/package/dist/regl.min.js", "pub-sub-es/package/dist/index.js")
    whole = (*parts, "regl-scatterplot/package/dist/regl-scatterplot.min.js")
    return sum((folder / name).stat().st_size for name in whole)


def measure(
    browser: Browser, address: str, painter: str, seconds: float
) -> tuple[float, list[float]]:
    page = browser.new_context(viewport={"width": 800, "height": 700}).new_page()
    page.goto(f"{address}#{painter}")
    page.wait_for_function("window.loaded")
    first, gaps = page.evaluate("seconds => window.measure(seconds)", seconds)
    page.context.close()
    return first, gaps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=4)
    settings = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        as_file(files("clocs.explorer") / "static") as static,
    ):
        folder = Path(name)
        fetch(folder)
        shutil.copytree(static, folder / "static")
        numbers = {"POINTS": settings.points, "WIDTH": WIDTH, "HEIGHT": HEIGHT}
        constants = "".join(f"const {name} = {value};" for name, value in numbers.items())
        (folder / "index.html").write_text(PAGE.replace("CONSTANTS", constants), encoding="utf-8")
        handler = functools.partial(Quiet, directory=name)
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with sync_playwright() as playwright:
            path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            print(f"{settings.points:,} points, {WIDTH} × {HEIGHT} pixels")
            for painter in ("pixels", "webgl2", "regl-scatterplot", "deck.gl"):
                address = f"http://127.0.0.1:{server.server_port}/"
                first, gaps = measure(browser, address, painter, settings.seconds)
                print(
                    f"{painter:<18}{1000 / np.mean(gaps):6.1f} frames/s, 95 % within "
                    f"{np.percentile(gaps, 95):5.0f} ms; first after {first:5.0f} ms; "
                    f"{size(folder, painter) / 1000:7,.0f} kB"
                )
            browser.close()
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


if __name__ == "__main__":
    main()

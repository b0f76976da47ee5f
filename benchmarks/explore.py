"""The explorer with many patients: start-up time, query time and frame rate.

    python benchmarks/explore.py --patients 100000

Uses simulated embeddings (clusters on a sphere) and a cached map. Measures from outside:
- the time from starting the process until a running browser has drawn the map;
- a similarity query over HTTP, next to a plain numpy search of the same vectors;
- a frame of panning and zooming in headless Chromium, and one drawing by each of the two painters.
With --umap the map is computed as well (minutes).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page, sync_playwright

from clocs.explorer.patient_map import MAP, Projection
from clocs.patients.embeddings import Embeddings
from clocs.web.packing import unpack

# Times between frames while the map is dragged and zoomed, and the time of one drawing.
MOVE = """async ([seconds]) => {
  const { map } = clocs, gaps = [];
  const end = performance.now() + 1000 * seconds;
  await new Promise(done => {
    let last = performance.now(), i = 0;
    const step = now => {
      gaps.push(now - last); last = now; i++;
      map.scatter.pan(8 * Math.sin(i / 9), 6 * Math.cos(i / 7));
      map.scatter.zoomAt(200, 200, 1 + 0.03 * Math.sin(i / 15));
      map.move();
      now < end ? requestAnimationFrame(step) : done();
    };
    requestAnimationFrame(step);
  });
  return [gaps.slice(5), map.scatter.share];
}"""
DRAW = """async ([kind, times]) => {
  const { Scatter } = await import("/static/scatter.js");
  const canvas = document.createElement("canvas");
  const began = performance.now();
  const scatter = new Scatter(canvas, kind);
  const started = performance.now() - began;
  scatter.resize(534, 594);
  scatter.setPlaces(clocs.columns.positions);
  scatter.setLook(clocs.look);
  scatter.fit();
  const spent = [];
  const pixel = new Uint8Array(4);
  for (let i = 0; i < times; i++) {
    const began = performance.now();
    scatter.draw();
    const { gl } = scatter.painter; // reading a pixel waits for the drawing
    if (gl) gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);
    spent.push(performance.now() - began);
  }
  return [started, spent.slice(2)];
}"""


def simulated(n: int, dim: int = 128) -> Embeddings:
    """Clusters of unit vectors with labels, ages and sexes."""
    generator = np.random.default_rng(0)
    cluster = generator.integers(0, 9, n)
    vectors = generator.normal(size=(9, dim))[cluster] + 0.9 * generator.normal(size=(n, dim))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = np.array(["AF", "I-AVB", "LBBB", "Normal", "PAC", "PVC", "RBBB", "STD", "STE"])
    rows = Embeddings.make_rows(
        {
            "dataset": ["simulated"] * n,
            "patient": [f"P{i:07d}" for i in range(n)],
            "labels": [[name] for name in names[cluster]],
            "split": generator.choice(["train", "validation", "test"], n, p=[0.6, 0.2, 0.2]),
            "age": generator.uniform(18, 95, n),
            "sex": generator.choice(["female", "male"], n),
        },
        n,
    )
    return Embeddings(vectors.astype(np.float32), rows, "patient", "simulated")


def placed(n: int) -> NDArray[np.float32]:
    """A map of blobs, as UMAP makes them."""
    generator = np.random.default_rng(0)
    cluster = generator.integers(0, 9, n)
    centers = generator.uniform(-12, 12, size=(9, 2))
    places = centers[cluster] + generator.normal(size=(n, 2)) * 2.2
    return np.asarray(places, np.float32)


def start(folder: Path) -> tuple[subprocess.Popen[bytes], str, float]:
    """Starts the explorer; returns the process, its address and its start time."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "clocs", "explore", "--no-browse", "--token", "none", "--json"),
            *("--embeddings", str(folder / "patients.parquet")),
        ],
        stdout=subprocess.PIPE,
        env=os.environ | {"CLOCS_CACHE": str(folder / "cache")},
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["url"], began


def get(url: str) -> bytes:
    with urlopen(url) as answer:
        return bytes(answer.read())


def middle(values: Any) -> str:
    return f"median {np.median(values):.1f} ms, 95 % {np.percentile(values, 95):.1f} ms"


def queries(url: str, codes: list[str], embeddings: Embeddings) -> None:
    spent, plain = [], []
    rows = np.random.default_rng(1).integers(0, len(codes), 200)
    get(f"{url}api/patients/{codes[0]}/neighbors")
    for row in rows:
        began = time.perf_counter()
        get(f"{url}api/patients/{codes[row]}/neighbors?k=10")
        spent.append(1000 * (time.perf_counter() - began))
        began = time.perf_counter()
        near = embeddings.vectors @ embeddings.vectors[row]
        np.argsort(-near)[1:11]
        plain.append(1000 * (time.perf_counter() - began))
    print(f"similarity query over HTTP      {middle(spent)}")
    print(f"  plain numpy search, no HTTP   {middle(plain)}")
    print(f"  ratio {np.median(plain) / np.median(spent):.2f}")


def opened(page: Page, folder: Path) -> tuple[subprocess.Popen[bytes], str, float, float]:
    """Starts and opens the explorer; also returns seconds until its address and until the map."""
    process, url, began = start(folder)
    known = time.perf_counter() - began
    page.goto(url, wait_until="commit")
    page.wait_for_selector("html[data-ready]", state="attached")
    return process, url, known, time.perf_counter() - began


def move_and_draw(page: Page) -> None:
    gaps, share = page.evaluate(MOVE, [5])
    rate = 1000 / np.mean(gaps)
    print(f"panning and zooming             {middle(gaps)} per frame, {rate:.0f} frames/s")
    print(f"  points drawn while moving     {100 * share:.0f} %")
    print(f"  drawn by                      {page.evaluate('clocs.map.scatter.kind')}")
    for kind in ("pixels", "webgl2"):
        begun, spent = page.evaluate(DRAW, [kind, 30])
        print(f"  one drawing, {kind:8s}         {middle(spent)}; set up in {begun:.0f} ms")
    pick = page.evaluate(
        "() => { const b = performance.now(); for (let i = 0; i < 1000; i++) "
        "clocs.map.scatter.pick(i % 534, i % 594); return (performance.now() - b); }"
    )
    print(f"finding the point under mouse   {pick:.1f} µs")
    recolor = page.evaluate(
        "() => { const b = performance.now(); clocs.recolor(); return performance.now() - b; }"
    )
    print(f"recoloring all patients        {recolor:.0f} ms")
    print(f"WebGL renderer                  {page.evaluate(RENDERER)}")


RENDERER = """() => {
  const gl = document.createElement("canvas").getContext("webgl2");
  const info = gl?.getExtension("WEBGL_debug_renderer_info");
  return info ? gl.getParameter(info.UNMASKED_RENDERER_WEBGL) : "none";
}"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--patients", type=int, default=100_000)
    parser.add_argument("--umap", action="store_true", help="compute the map as well")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        embeddings = simulated(settings.patients)
        embeddings.save(folder / "patients.parquet")
        projection = Projection(embeddings.vectors, folder / "cache")
        if settings.umap:
            began = time.perf_counter()
            projection._compute()
            print(f"UMAP, once                      {time.perf_counter() - began:.0f} s")
        else:
            projection.file.parent.mkdir(parents=True, exist_ok=True)
            MAP.write(projection.file, {}, {"positions": placed(settings.patients)})
        with sync_playwright() as playwright:
            path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            measure(browser, folder, embeddings)
            browser.close()


def measure(browser: Browser, folder: Path, embeddings: Embeddings) -> None:
    known, drawn = [], []
    for again in reversed(range(5)):
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        time.sleep(1)  # let it start up first
        process, url, *seconds = opened(page, folder)
        try:
            known.append(seconds[0])
            drawn.append(seconds[1])
            if not again:
                facts, arrays = unpack(get(f"{url}api/map"))
                assert facts["projection"]["kind"] == "umap"
                size = sum(array.nbytes for array in arrays.values()) / 1e6
                print(f"{len(embeddings):,} patients, {size:.1f} MB of map")
                print(f"start to the address            {listed(known)} s")
                print(f"start to the map drawn          {listed(drawn)} s")
                page.wait_for_selector("html[data-ready=all]")
                move_and_draw(page)
                queries(url, [bytes(code).hex() for code in arrays["codes"]], embeddings)
        finally:
            process.terminate()
            process.wait()
            page.context.close()


def listed(seconds: list[float]) -> str:
    return f"median {np.median(seconds):.2f} of " + ", ".join(f"{one:.2f}" for one in seconds)


if __name__ == "__main__":
    main()
